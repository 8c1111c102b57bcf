//! The words that differ between traces: between CUDA and Metal, and where times are unknown.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_replay::compare::{Backend, ComparedRun};
use gpumemtrace_replay::report::{PluggableMode, TraceInfo};

/// First minor version of PyTorch 2 that reads `PYTORCH_ALLOC_CONF`
/// ([pytorch#183387](https://github.com/pytorch/pytorch/issues/183387)).
const ALLOC_CONF_SINCE: u32 = 10;

/// The nouns for one trace. Texts take them from here, so that a report on Metal does not mention
/// CUDA calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vocabulary {
    /// True for traces of Metal.
    pub(crate) is_metal: bool,
    /// False for a snapshot of PyTorch without times.
    pub(crate) has_times: bool,
    /// What reserves memory for tensors.
    pub(crate) reserver: &'static str,
    /// The table row of reserved memory.
    pub(crate) reserved_row: &'static str,
    /// What hands memory to the process.
    pub(crate) source: &'static str,
    /// The same in one word, for a legend.
    pub(crate) source_short: &'static str,
    /// A range of reserved memory.
    pub(crate) segment: &'static str,
    /// An allocation inside a segment.
    pub(crate) block: &'static str,
    /// The call that returns unused reserved memory.
    pub(crate) empty_cache: &'static str,
    /// The environment variable with the settings of PyTorch's allocator.
    pub(crate) alloc_conf: &'static str,
    /// A sentence on memory that is not reserved for tensors.
    pub(crate) outside: &'static str,
}

impl Vocabulary {
    /// PyTorch with its own allocator.
    pub(crate) const CUDA: Self = Self {
        is_metal: false,
        has_times: true,
        reserver: "PyTorch",
        reserved_row: "reserved",
        source: "the driver",
        source_short: "driver",
        segment: "segment",
        block: "block",
        empty_cache: "torch.cuda.empty_cache()",
        alloc_conf: "PYTORCH_ALLOC_CONF",
        outside: "This is driver memory (cudaMalloc and its like).",
    };

    const METAL: Self = Self {
        is_metal: true,
        has_times: true,
        reserver: "Metal heaps",
        reserved_row: "in Metal heaps",
        source: "Metal",
        source_short: "Metal",
        segment: "heap",
        block: "buffer",
        empty_cache: "torch.mps.empty_cache()",
        alloc_conf: "PYTORCH_ALLOC_CONF",
        outside: "This is memory of Metal in no heap: buffers and textures of their own.",
    };

    /// The nouns for a trace of a report.
    pub(crate) fn of_trace(info: &TraceInfo) -> Self {
        let has_times = info.duration_ns.is_some() || !info.is_torch_snapshot();
        let words = Self::new(info.is_metal(), info.pluggable);
        let alloc_conf = info.torch.as_deref().map_or(words.alloc_conf, alloc_conf_of);
        Self { has_times, alloc_conf, ..words }
    }

    /// The nouns for a run of a comparison.
    pub(crate) fn of_run(run: &ComparedRun) -> Self {
        Self::new(run.backend == Backend::Mps, run.pluggable)
    }

    fn new(is_metal: bool, pluggable: Option<PluggableMode>) -> Self {
        if is_metal {
            return Self::METAL;
        }
        match pluggable {
            Some(PluggableMode::Caching | PluggableMode::Uncached) => Self {
                reserver: "gpumemtrace's allocator",
                reserved_row: "reserved by allocator",
                ..Self::CUDA
            },
            Some(PluggableMode::Segments) | None => Self::CUDA,
        }
    }
}

/// The environment variable of PyTorch's allocator settings: 2.9 and all before ignore
/// `PYTORCH_ALLOC_CONF`.
pub(crate) fn alloc_conf_of(torch: &str) -> &'static str {
    match TorchVersion::parse(torch) {
        Ok(version) if version.minor() < ALLOC_CONF_SINCE => "PYTORCH_CUDA_ALLOC_CONF",
        _ => Vocabulary::CUDA.alloc_conf,
    }
}
