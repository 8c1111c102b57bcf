//! Memory over time, with the steps, phases and marks of the run.

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::json_enum::json_enum;
use crate::report::{Omitted, Site};

/// How the steps of the first trace were found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Steps {
    /// What begins a step; `null` if no steps were found.
    pub source: Option<StepSource>,
    /// The number of steps begun.
    pub count: Option<u64>,
    /// The call site of the optimizer call that begins a step. With the source `period`, the call
    /// that the outermost loop repeats; `null` if an allocation begins a step.
    pub site: Option<Site>,
    /// The optimizer's method that it calls.
    pub optimizer_call: Option<OptimizerMethod>,
    /// The name of the NVTX ranges that are steps. Numbers in it are `#`.
    pub range: Option<String>,
}

json_enum! {
    /// A method of an optimizer that delimits steps.
    enum OptimizerMethod {
        /// `step`, also through a `GradScaler`.
        Step = "step",
        /// `zero_grad`, of an optimizer or a module. It counts if `step` allocates nothing.
        ZeroGrad = "zero_grad",
    }
}

json_enum! {
    /// What begins a step.
    enum StepSource {
        /// A call of `gpumemtrace.step()`.
        Marks = "marks",
        /// The begin of an NVTX range.
        Nvtx = "nvtx",
        /// A call of an optimizer.
        Optimizer = "optimizer",
        /// An allocation or a call that the outermost loop repeats.
        Period = "period",
    }
}

/// A named phase of the run, over all its occurrences (`crate::timeline::phases`).
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Phase {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Its name; each number in it is `#`. `null` if the trace does not contain it.
    pub name: Option<String>,
    /// How often it began.
    pub count: u64,
    /// The total duration of the phase.
    pub time_ns: u64,
    /// Memory on each device with allocated blocks.
    pub devices: Vec<PhaseOnDevice>,
}

/// The memory of a phase on one device.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PhaseOnDevice {
    /// Ordinal of the GPU.
    pub device: u8,
    /// The peak of `memory_allocated()` during the phase; `null` without PyTorch.
    pub peak_live_bytes: Option<u64>,
    /// `memory_allocated()` at its end minus that at its begin, summed over all occurrences.
    pub net_bytes: Option<i64>,
}

/// A named moment of the run (`crate::timeline::marks`).
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Mark {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Its name; `null` if the trace does not contain it.
    pub name: Option<String>,
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
}

/// One device over time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Timeline {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// At most two per bin: its highest and its lowest live bytes. The other series have their own
    /// maximum and minimum of the bin, so that no extreme is lost. Bins follow events as well as
    /// time: a short loop has bins in each step, and a pause has some of its own.
    pub points: Vec<TimelinePoint>,
    /// The largest call sites.
    pub bands: Vec<TimelineBand>,
    /// The bands that a filter removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

/// One moment of a timeline.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TimelinePoint {
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: Option<u64>,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: Option<u64>,
    /// Bytes that the driver handed to the process.
    pub device_bytes: Option<u64>,
}

/// One call site over time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TimelineBand {
    /// The call site of the blocks.
    pub site: Site,
    /// Its live bytes, one number per point.
    pub bytes: Vec<u64>,
}

/// The steps that were compared, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ComparedSteps {
    /// The number of the first step.
    pub first: u64,
    /// The number of the last step.
    pub last: u64,
    /// The number of steps.
    pub count: u64,
}
