//! What PyTorch said of its own memory, as sampled ([`crate::state::mps_samples`]).

use serde::Serialize;

/// Of a trace of Metal.
#[derive(Clone, Debug, Serialize)]
pub struct TorchMemory {
    /// Index in `traces`.
    pub trace: usize,
    /// Who was asked: `torch.mps`.
    pub source: &'static str,
    /// Of which device the exact numbers are; `null` where several had memory, or nothing was sampled.
    pub device: Option<u32>,
    /// How often; 0: nothing of all this is known.
    pub samples: u64,
    /// What tensors held, by `current_allocated_memory()`.
    pub tensor_bytes: Option<SampledRange<u64>>,
    /// What the driver held for the process, by `driver_allocated_memory()`.
    pub driver_bytes: Option<SampledRange<u64>>,
    /// The driver's number minus what recorded calls of Metal held then. Above 0: held by what no recorded call shows. Below 0:
    /// handed out, and not counted by the driver.
    pub beyond_metal_bytes: Option<SampledRange<i64>>,
    /// Bytes of buffers and textures in heaps minus those of tensors: in buffers that no tensor used then.
    pub kept_bytes: Option<SampledRange<i64>>,
    /// Samples in their order: all, or evenly picked, and the last one.
    pub points: Vec<SampledPoint>,
}

/// A number over all samples that have it.
#[derive(Clone, Debug, Serialize)]
pub struct SampledRange<T> {
    /// How many.
    pub samples: u64,
    /// Of all.
    pub least: T,
    /// Of all.
    pub most: T,
    /// Of the last.
    pub last: T,
}

/// One sample.
#[derive(Clone, Debug, Serialize)]
pub struct SampledPoint {
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// As PyTorch said.
    pub tensor_bytes: Option<u64>,
    /// As PyTorch said.
    pub driver_bytes: Option<u64>,
    /// What recorded calls of Metal held then, exactly.
    pub metal_bytes: Option<u64>,
    /// Of it heaps.
    pub heap_bytes: Option<u64>,
    /// Buffers and textures in heaps.
    pub buffer_bytes: Option<u64>,
}
