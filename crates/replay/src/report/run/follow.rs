//! A running program at one moment, for `replay --follow`.

use std::collections::BTreeMap;

/// Bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes in live blocks of PyTorch's allocator; `None` before its first block.
    pub allocated: Option<u64>,
    /// Bytes in segments of PyTorch's allocator; `None` before its first block.
    pub reserved: Option<u64>,
    /// Bytes allocated from the driver.
    pub driver: u64,
    /// Memory of the device as the driver last reported it; `None` before that.
    pub total: Option<u64>,
}

/// The state of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunView {
    /// Number of events so far.
    pub events: u64,
    /// Time from the first event to the last.
    pub span_ns: u64,
    /// Number of steps begun; `None` while no step source is known.
    pub steps: Option<u32>,
    /// Bytes of each device, by ordinal.
    pub devices: BTreeMap<u8, DeviceBytes>,
}

/// A number of bytes at one moment, with its maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelGauge {
    /// The value in bytes, as of the last event.
    pub bytes: u64,
    /// Maximum since the previous reading, the value then included.
    pub recent_max: u64,
    /// Maximum of the run.
    pub peak: u64,
}

/// A device of a running program, for monitoring. `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceGauges {
    /// Bytes in live blocks of PyTorch's allocator; `None` before its first block.
    pub allocated: Option<LevelGauge>,
    /// Bytes in segments of PyTorch's allocator; `None` before its first block.
    pub reserved: Option<LevelGauge>,
    /// Bytes that the live blocks requested; `None` if the request of any of them is unknown.
    pub requested: Option<u64>,
    /// Bytes allocated from the driver; `None` before the first such call.
    pub driver: Option<LevelGauge>,
    /// Memory of the device as the driver last reported it.
    pub total_bytes: Option<u64>,
    /// Bytes per step by which allocated memory grows; `None` for fewer than 20 known steps.
    ///
    /// Compares the lowest allocated bytes of the last half of the last 100 steps with that of the
    /// half before. Temporary blocks do not count.
    pub growth_per_step: Option<f64>,
    /// Number of out-of-memory errors of PyTorch.
    pub ooms: u64,
    /// Time of the last of them (`CLOCK_MONOTONIC` of its machine); `None` without errors.
    pub last_oom_ns: Option<u64>,
    /// Bytes in use beyond the driver calls (contexts, code, rounding), at the last sample: of this
    /// process by NVML, or else of all processes by the driver. `None` before the first sample.
    pub unaccounted: Option<u64>,
}

/// A running program, for monitoring.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunGauges {
    /// Number of events read so far.
    pub events: u64,
    /// Sequence numbers that were skipped because their events are missing.
    pub missing_events: u64,
    /// Number of steps begun, which never decreases; `None` while no step source is known.
    pub steps: Option<u32>,
    /// Time of the last event (`CLOCK_MONOTONIC` of its machine); `None` before the first.
    pub last_event_ns: Option<u64>,
    /// The devices, by ordinal.
    pub devices: BTreeMap<u8, DeviceGauges>,
}
