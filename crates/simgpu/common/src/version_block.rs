//! The version block: 64 bytes in the template's data that `simgpu-setup` fills in per library.
//!
//! Each library must report the versions that the installed wheel was compiled against. The user's
//! machine has no compiler, so `simgpu-setup` finds the block by its symbol and overwrites it.
//!
//! ```text
//! 0         8         12      16       20     24      28       32      64
//! | magic   | runtime | cudnn | cublas | nccl | cufft | driver | zero |
//! | 8 bytes | u32     | u32   | u32    | u32  | u32   | u32    |      |
//! ```

/// First bytes of the block; the last byte is the layout's version.
pub const MAGIC: [u8; 8] = *b"SIMGPU\0\x01";

/// Name of the block in the template's dynamic symbol table.
pub const BLOCK_SYMBOL: &str = "simgpu_version_block";

/// The block, as it lies in the file.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct VersionBlock(pub [u8; 64]);

/// Versions that an installed wheel was compiled against, each in its library's encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WheelVersions {
    /// CUDA runtime, `1000 * major + 10 * minor`.
    pub runtime: u32,
    /// cuDNN: `10000 * major + 100 * minor + patch` from 9 on, `1000 * major + ...` before.
    pub cudnn: u32,
    /// cuBLAS, `10000 * major + 100 * minor + patch`.
    pub cublas: u32,
    /// NCCL, `10000 * major + 100 * minor + patch`.
    pub nccl: u32,
    /// cuFFT, `1000 * major + 100 * minor + patch`.
    pub cufft: u32,
    /// CUDA version of the simulated driver, in the runtime's encoding.
    pub driver: u32,
}

impl Default for WheelVersions {
    fn default() -> Self {
        Self { runtime: 12080, cudnn: 91002, cublas: 120_804, nccl: 22705, cufft: 11303, driver: 13030 }
    }
}

impl VersionBlock {
    /// The block that is compiled into the template.
    pub const fn new() -> Self {
        let mut bytes = [0; 64];
        let mut at = 0;
        while at < MAGIC.len() {
            bytes[at] = MAGIC[at];
            at += 1;
        }
        Self(bytes)
    }
}

impl Default for VersionBlock {
    fn default() -> Self {
        Self::new()
    }
}

impl WheelVersions {
    /// Encodes the versions as a block.
    pub fn to_bytes(self) -> [u8; 64] {
        let mut bytes = VersionBlock::new().0;
        let fields = [self.runtime, self.cudnn, self.cublas, self.nccl, self.cufft, self.driver];
        for (slot, field) in bytes[8..].chunks_exact_mut(4).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a block; an unfilled template has the defaults.
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let word = |index: usize| {
            let at = 8 + 4 * index;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..8] != MAGIC || word(0) == 0 {
            return Self::default();
        }
        Self {
            runtime: word(0),
            cudnn: word(1),
            cublas: word(2),
            nccl: word(3),
            cufft: word(4),
            driver: word(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_round_trip_through_the_block() {
        let versions = WheelVersions {
            runtime: 13020,
            cudnn: 92000,
            cublas: 130_000,
            nccl: 23007,
            cufft: 12000,
            driver: 13030,
        };
        assert_eq!(WheelVersions::from_bytes(&versions.to_bytes()), versions);
    }

    #[test]
    fn unfilled_block_reads_as_defaults() {
        assert_eq!(WheelVersions::from_bytes(&VersionBlock::new().0), WheelVersions::default());
    }
}
