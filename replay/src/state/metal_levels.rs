//! The memory of recorded Metal calls at one moment.

/// The bytes of recorded Metal calls on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MetalLevels {
    /// Ordinal of the device.
    pub device: u8,
    /// Bytes of all calls.
    pub bytes: u64,
    /// Bytes of heaps.
    pub heaps: u64,
    /// Bytes of buffers and textures in heaps.
    pub buffers: u64,
}
