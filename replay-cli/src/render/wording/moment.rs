//! Points in time of a run: `1.5 s in, step 40`.

use crate::terminal::format::{format_duration, format_number};

/// `1.5 s in, step 40`; without the step if steps are unknown.
pub(crate) fn format_moment(time_ns: u64, step: Option<u64>) -> String {
    format!("{} in{}", format_duration(time_ns), format_step(", step ", step))
}

/// `lead` and the number of the step; empty if steps are unknown.
pub(crate) fn format_step(lead: &str, step: Option<u64>) -> String {
    step.map(|step| format!("{lead}{}", format_number(step))).unwrap_or_default()
}
