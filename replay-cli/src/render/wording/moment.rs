//! Points in time of a run: `1.5 s in, step 40`.

use super::Vocabulary;
use crate::terminal::format::{format_duration, format_number};

/// `1.5 s in, step 40`; without the step if steps are unknown, and without the time if the trace
/// has none.
pub(crate) fn format_moment(words: &Vocabulary, time_ns: u64, step: Option<u64>) -> String {
    match step {
        Some(_) if !words.has_times => format_step("step ", step),
        None if !words.has_times => "time unknown".to_owned(),
        _ => format!("{} in{}", format_duration(time_ns), format_step(", step ", step)),
    }
}

/// `lead` and the number of the step; empty if steps are unknown.
pub(crate) fn format_step(lead: &str, step: Option<u64>) -> String {
    step.map(|step| format!("{lead}{}", format_number(step))).unwrap_or_default()
}
