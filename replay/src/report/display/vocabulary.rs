//! What things are called where the memory comes from CUDA's driver, and where it comes from Metal.
//!
//! Constraint: one report is of either, and a sentence that names the other's calls sends its reader looking for what is not there.
//! Consequence: no sentence spells such a name itself; it takes it from here.

/// The names for one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// True of Metal.
    pub is_metal: bool,
    /// Whose reserved memory it is.
    pub reserver: &'static str,
    /// The row of a table for it.
    pub reserved_row: &'static str,
    /// Who gives memory to the process.
    pub source: &'static str,
    /// The same in a word, for a legend.
    pub source_short: &'static str,
    /// What is reserved comes in these; one of them.
    pub segment: &'static str,
    /// What lies in them; one of them.
    pub block: &'static str,
    /// What gives back what is reserved and unused.
    pub empty_cache: &'static str,
    /// Memory of the process that is not reserved for tensors.
    pub outside: &'static str,
    /// A call that takes memory; one of them.
    pub call: &'static str,
    /// What the device's size is.
    pub size_of_device: &'static str,
}

impl Vocabulary {
    /// For a trace whose header says this.
    pub(crate) fn of(pluggable: Option<&str>, is_metal: bool) -> Self {
        if is_metal {
            return Self {
                is_metal,
                reserver: "Metal heaps",
                reserved_row: "in Metal heaps",
                source: "Metal",
                source_short: "Metal",
                segment: "heap",
                block: "buffer",
                empty_cache: "torch.mps.empty_cache()",
                outside: "This is memory of Metal in no heap: buffers and textures of their own.",
                call: "call of Metal",
                size_of_device: "recommended",
            };
        }
        let (reserver, reserved_row) = match pluggable {
            Some("caching" | "uncached") => ("gpumemtrace's allocator", "reserved by allocator"),
            _ => ("PyTorch", "reserved by PyTorch"),
        };
        Self {
            is_metal,
            reserver,
            reserved_row,
            source: "the driver",
            source_short: "driver",
            segment: "segment",
            block: "block",
            empty_cache: "torch.cuda.empty_cache()",
            outside: "This is driver memory (cudaMalloc and its like).",
            call: "driver call",
            size_of_device: "in all",
        }
    }
}
