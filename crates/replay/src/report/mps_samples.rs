//! PyTorch's own memory counters on Metal, as sampled ([`crate::state::mps_samples`]).

use schemars::JsonSchema;
use serde::Serialize;

/// The sampled counters of one trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TorchMemory {
    /// Index in the list `traces`.
    pub trace: usize,
    /// The module that reported the counters: `torch.mps`.
    #[schemars(extend("const" = "torch.mps"))]
    pub source: &'static str,
    /// The GPU of the exact numbers; `null` if several had memory, or nothing was sampled.
    pub device: Option<u32>,
    /// The number of samples; with 0, all ranges are unknown.
    pub samples: u64,
    /// Allocated bytes, by `current_allocated_memory()`.
    pub tensor_bytes: Option<SampledRange<u64>>,
    /// Bytes that the driver holds for the process, by `driver_allocated_memory()`.
    pub driver_bytes: Option<SampledRange<u64>>,
    /// `driver_bytes` minus the bytes of recorded Metal calls. Above 0: not in any recorded call.
    /// Below 0: not counted by the driver.
    pub unrecorded_bytes: Option<SampledRange<i64>>,
    /// Bytes of buffers and textures in heaps, minus `tensor_bytes`: buffers that PyTorch keeps for
    /// reuse.
    pub unused_buffer_bytes: Option<SampledRange<i64>>,
    /// Samples in time order: all, or evenly picked ones and the last.
    pub points: Vec<SampledPoint>,
}

/// The range of a sampled number.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "SampledRange_{T}")]
pub struct SampledRange<T> {
    /// The number of samples that have it.
    pub samples: u64,
    /// The minimum of all samples.
    pub least: T,
    /// The maximum of all samples.
    pub most: T,
    /// The value of the last sample.
    pub last: T,
}

/// One sample of PyTorch's counters.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SampledPoint {
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// PyTorch's `current_allocated_memory()` at that moment.
    pub tensor_bytes: Option<u64>,
    /// PyTorch's `driver_allocated_memory()` at that moment.
    pub driver_bytes: Option<u64>,
    /// Bytes of recorded Metal calls at that moment, exact.
    pub metal_bytes: Option<u64>,
    /// The part of `metal_bytes` in heaps.
    pub heap_bytes: Option<u64>,
    /// Buffers and textures in heaps.
    pub buffer_bytes: Option<u64>,
}
