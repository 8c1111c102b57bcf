//! The facts block: 64 bytes inside the template's data, filled in by `simgpu-setup` for each library it makes.
//!
//! A library must answer with the versions that the installed wheel was compiled against, and there is no compiler on the user's
//! machine to bake them in -> the template carries a block that is found by its symbol and overwritten in the file.
//!
//! ```text
//! 0        8         12          16          20         24          28        32                      64
//! | magic  | runtime | cudnn     | cublas    | nccl     | cufft     | driver  | zero                  |
//! | 8 bytes| u32     | u32       | u32       | u32      | u32       | u32     |                       |
//! ```

/// First bytes of the block; the number at the end is its version.
pub const MAGIC: [u8; 8] = *b"SIMGPU\0\x01";

/// Name of the block in the template's dynamic symbol table.
pub const BLOCK_SYMBOL: &str = "simgpu_facts_block";

/// The block as it lies in the file.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct FactsBlock(pub [u8; 64]);

/// Versions that an installed wheel was compiled against, each in the library's own encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
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
    /// CUDA version of the simulated driver, encoded as the runtime's.
    pub driver: u32,
}

impl Default for Facts {
    fn default() -> Self {
        Self { runtime: 12080, cudnn: 91002, cublas: 120_804, nccl: 22705, cufft: 11303, driver: 13030 }
    }
}

impl FactsBlock {
    /// The block that the template is compiled with.
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

impl Default for FactsBlock {
    fn default() -> Self {
        Self::new()
    }
}

impl Facts {
    /// The bytes of a block with these facts.
    pub fn to_bytes(self) -> [u8; 64] {
        let mut bytes = FactsBlock::new().0;
        let fields = [self.runtime, self.cudnn, self.cublas, self.nccl, self.cufft, self.driver];
        for (slot, field) in bytes[8..].chunks_exact_mut(4).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads a block; a template that nobody filled in has the defaults.
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
    fn facts_survive_the_block() {
        let facts =
            Facts { runtime: 13020, cudnn: 92000, cublas: 130_000, nccl: 23007, cufft: 12000, driver: 13030 };
        assert_eq!(Facts::from_bytes(&facts.to_bytes()), facts);
    }

    #[test]
    fn an_unfilled_block_reads_as_the_defaults() {
        assert_eq!(Facts::from_bytes(&FactsBlock::new().0), Facts::default());
    }
}
