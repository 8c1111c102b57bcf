//! What the tables of a GPU show as its end.
//!
//! A program with a `main()` function frees its objects when that returns, so nothing is live at
//! its end. If it freed over half of what was allocated at its last step end, tables show that
//! moment.

use gpumemtrace_replay::report::{Device, GapReason};

use super::recording::describe_end_moment;
use crate::terminal::format::format_number;

/// The levels of a device at its end, and which moment that is.
pub(crate) struct EndLevels {
    /// The head of the column.
    pub(crate) title: &'static str,
    /// The moment, for a reader.
    pub(crate) moment: String,
    /// The gap of the same moment.
    pub(crate) gap: GapReason,
    pub(crate) live_bytes: Option<u64>,
    pub(crate) reserved_bytes: Option<u64>,
    pub(crate) device_bytes: Option<u64>,
}

impl EndLevels {
    pub(crate) fn of_device(device: &Device) -> Self {
        let end = &device.end;
        let freed_most = |live: Option<u64>| Some(end.live_bytes? < live? / 2);
        let last = device.last_step.as_ref().filter(|last| freed_most(last.live_bytes) == Some(true));
        match last {
            Some(last) => Self {
                title: "last step",
                moment: format!("end of step {}", format_number(last.step)),
                gap: GapReason::LastStep,
                live_bytes: last.live_bytes,
                reserved_bytes: last.reserved_bytes,
                device_bytes: last.device_bytes,
            },
            None => Self {
                title: "at end",
                moment: describe_end_moment(end.moment).to_owned(),
                gap: GapReason::End,
                live_bytes: end.live_bytes,
                reserved_bytes: end.reserved_bytes,
                device_bytes: end.device_bytes,
            },
        }
    }
}
