//! Where the memory of pools and graph nodes lies: on a device, on the host, or managed.
//!
//! Host and managed memory of pools and graph nodes is charged to no device. Each of the two has an
//! address window, which is a [`Device`](super::device::Device) without a limit: pools and graph
//! nodes then follow the same rules everywhere.

use crate::result_code::{ApiResult, INVALID_VALUE};

/// The number of the window with host memory; lower numbers are devices.
pub(crate) const HOST_WINDOW: u32 = 1 << 16;
/// The number of the window with managed memory.
pub(crate) const MANAGED_WINDOW: u32 = HOST_WINDOW + 1;
/// Address space of each of the two.
pub(super) const OFF_DEVICE_BYTES: u64 = 1 << 40;

const PINNED: u32 = 1;
const MANAGED: u32 = 2;
const NONE: u32 = 0;
const DEVICE: u32 = 1;
const HOST: u32 = 2;
const HOST_NUMA: u32 = 3;

/// The kind of memory behind a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MemoryKind {
    #[default]
    Device,
    Host,
    Managed,
}

impl MemoryKind {
    /// The name in the log; `None` for device memory, which needs none.
    pub(crate) fn log_name(self) -> Option<&'static str> {
        match self {
            Self::Device => None,
            Self::Host => Some("host"),
            Self::Managed => Some("managed"),
        }
    }
}

/// `CUmemAllocationType` and `CUmemLocation` of a pool or an allocation node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    allocation: u32,
    kind: u32,
    id: i32,
}

impl Location {
    /// The memory of a device.
    pub(crate) fn of_device(ordinal: u32) -> Self {
        Self { allocation: PINNED, kind: DEVICE, id: ordinal as i32 }
    }

    /// Checks the header's numbers. Only managed memory may be without a location.
    pub(crate) fn new(allocation: u32, kind: u32, id: i32) -> ApiResult<Self> {
        let is_valid = match kind {
            NONE => allocation == MANAGED,
            DEVICE | HOST | HOST_NUMA => [PINNED, MANAGED].contains(&allocation),
            _ => false,
        };
        // The driver ignores the id of these two.
        let id = if [NONE, HOST].contains(&kind) { 0 } else { id };
        if is_valid { Ok(Self { allocation, kind, id }) } else { Err(INVALID_VALUE) }
    }

    pub(crate) fn memory(self) -> MemoryKind {
        match (self.allocation, self.kind) {
            (MANAGED, _) => MemoryKind::Managed,
            (_, DEVICE) => MemoryKind::Device,
            _ => MemoryKind::Host,
        }
    }

    /// The window with the memory. A device may not exist.
    pub(crate) fn window(self) -> u32 {
        match self.memory() {
            MemoryKind::Device => u32::try_from(self.id).unwrap_or(u32::MAX),
            MemoryKind::Host => HOST_WINDOW,
            MemoryKind::Managed => MANAGED_WINDOW,
        }
    }

    /// The memory that another process shares: of a device, or of a NUMA node of the host.
    pub(crate) fn of_window(window: u32) -> Self {
        if window == HOST_WINDOW {
            Self { allocation: PINNED, kind: HOST_NUMA, id: 0 }
        } else {
            Self::of_device(window)
        }
    }

    /// True for memory that other processes may open.
    pub(crate) fn is_shareable(self) -> bool {
        self.allocation == PINNED && self.kind != HOST
    }

    /// The device that the location names, also for managed memory that prefers it.
    pub(crate) fn named_device(self) -> Option<u32> {
        (self.kind == DEVICE).then(|| u32::try_from(self.id).unwrap_or(u32::MAX))
    }
}

/// True for the windows of host and managed memory.
pub(crate) fn is_off_device(window: u32) -> bool {
    window == HOST_WINDOW || window == MANAGED_WINDOW
}

/// The device ordinal of a window in the log; -1 if it is none.
pub(crate) fn log_ordinal(window: u32) -> i32 {
    if is_off_device(window) { -1 } else { window as i32 }
}
