//! The totals of each device.

use schemars::JsonSchema;
use serde::Serialize;

use super::EndMoment;
use super::json_enum::json_enum;
use super::site::Site;

/// The totals of one device.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Device {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The name of the GPU.
    pub name: Option<String>,
    /// The memory of the GPU; on Metal, what the system recommends.
    pub total_bytes: Option<u64>,
    /// Peaks, each the maximum of its own series.
    pub peak: DevicePeak,
    /// When the program finished: before interpreter teardown.
    pub end: DeviceEnd,
    /// The end of the last step that ended; `null` without steps. A program that keeps its objects
    /// in a function has freed them at its end.
    pub last_step: Option<DeviceStepEnd>,
    /// After the last event, mostly after teardown.
    pub exit: DeviceLevels,
    /// Memory that PyTorch counts and that the program returned to the driver, as in the sleep mode
    /// of vLLM; `null` if there was none.
    pub sleep: Option<SleepMode>,
    /// The owners of the driver's memory when `peak.device_bytes` was reached; sums to it.
    pub ledger: Vec<OwnerBytes>,
    /// Bytes in use beyond the recorded calls, sampled nearest to that peak: contexts, code,
    /// rounding.
    pub residual_bytes: Option<u64>,
    /// The measurement behind `residual_bytes`.
    pub residual: Option<Residual>,
    /// Measurements of fewer bytes in use than recorded calls had allocated. They give no residual.
    pub contradictory_samples: u64,
    /// Memory that other frameworks divide into blocks of their own, largest first.
    pub opaque_pools: Vec<OpaquePool>,
}

/// Blocks of PyTorch without memory: the program unmapped the memory of their segments and kept the
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SleepMode {
    /// The most bytes of blocks without memory at a time.
    pub most_asleep_bytes: u64,
    /// The most bytes of segments without memory at a time.
    pub most_asleep_reserved_bytes: u64,
    /// The most bytes of live blocks with memory at a time.
    pub peak_backed_bytes: u64,
    /// The most bytes of segments with memory at a time.
    pub peak_backed_reserved_bytes: u64,
    /// Bytes of live blocks with memory when the program finished.
    pub end_backed_bytes: u64,
}

/// Memory in use that no recorded call allocated.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Residual {
    /// Bytes in use minus the bytes of recorded calls, minus `pool_free_bytes`.
    pub bytes: u64,
    /// What measured the bytes in use.
    pub source: ResidualSource,
    /// The time of the measurement, from the start of the recording.
    pub time_ns: u64,
    /// The measured bytes in use.
    pub in_use_bytes: u64,
    /// Free bytes that the driver's pools kept then, by their release thresholds and the most that
    /// they held: an estimate.
    pub pool_free_bytes: u64,
    /// The number of measurements, of all sources.
    pub samples: u64,
    /// The smallest residual of this source.
    pub least_bytes: u64,
    /// The largest residual of this source.
    pub most_bytes: u64,
}

json_enum! {
    /// What measured the bytes in use, best first.
    enum ResidualSource {
        /// NVML, for this process alone.
        Nvml = "nvml",
        /// The CUDA driver, queried by the recorder, for all processes on the GPU.
        Recorder = "driver",
        /// The CUDA driver, queried by the program, for all processes on the GPU.
        Program = "program",
    }
}

/// The peaks of the three series.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DevicePeak {
    /// The maximum of PyTorch's `memory_allocated()`.
    pub live_bytes: Option<u64>,
    /// The maximum of PyTorch's `memory_reserved()`.
    pub reserved_bytes: Option<u64>,
    /// The maximum of the bytes that the driver handed to the process.
    pub device_bytes: Option<u64>,
    /// The time of the peak of `live_bytes` (of `device_bytes` without PyTorch), from the start of
    /// the recording.
    pub time_ns: Option<u64>,
    /// The number of steps begun at that time; `null` without steps.
    pub step: Option<u64>,
}

/// The three series when the program finished.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DeviceEnd {
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: Option<u64>,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: Option<u64>,
    /// Bytes that the driver handed to the process.
    pub device_bytes: Option<u64>,
    /// The time of the last event before the end, from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// What marks the end.
    pub moment: EndMoment,
}

/// The three series at the end of a step.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DeviceStepEnd {
    /// The number of the step.
    pub step: u64,
    /// The time of the last event before its end, from the start of the recording.
    pub time_ns: u64,
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: Option<u64>,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: Option<u64>,
    /// Bytes that the driver handed to the process.
    pub device_bytes: Option<u64>,
}

/// The three series at one moment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DeviceLevels {
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: Option<u64>,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: Option<u64>,
    /// Bytes that the driver handed to the process.
    pub device_bytes: Option<u64>,
}

/// The driver memory of one owner.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OwnerBytes {
    /// `torch blocks`, `torch cache`, or a shared library such as `libnccl.so.2`.
    pub owner: String,
    /// The bytes that it holds.
    pub bytes: u64,
}

/// Driver memory of one library that serves its own blocks. Leaks inside are not visible.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OpaquePool {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The library that requested the memory, by file name; `unknown` without native stacks.
    pub owner: String,
    /// The framework that the memory serves; `null` if it is not a known one.
    pub framework: Option<PoolFramework>,
    /// The most bytes that it held.
    pub bytes: u64,
    /// Where most of it was requested.
    pub site: Site,
}

json_enum! {
    /// A framework with a memory pool of its own.
    enum PoolFramework {
        /// XLA, the compiler of JAX.
        Xla = "xla",
        /// TensorFlow, with its BFC allocator.
        TensorFlow = "tensorflow",
        /// ONNX Runtime, with its CUDA arena.
        OnnxRuntime = "onnxruntime",
        /// RMM, the memory manager of RAPIDS.
        Rmm = "rmm",
        /// CuPy, with its default memory pool.
        CuPy = "cupy",
        /// llama.cpp, with the buffers of ggml.
        LlamaCpp = "llama_cpp",
        /// TensorRT, with the arena of an engine.
        TensorRt = "tensorrt",
        /// The Triton Inference Server of NVIDIA.
        TritonServer = "triton_server",
    }
}
