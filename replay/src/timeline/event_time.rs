//! The time of an event, in nanoseconds and in steps.

/// When an event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTime {
    /// Nanoseconds on the clock of the trace.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
}
