//! Facts about the recording itself, printed with `-v`.

use gpumemtrace_replay::Report;

use super::caveats::SortedNotes;
use crate::render::text::steps::describe_step_source;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::marks::sanitize;

/// The command in full, the process, the number of events, the step boundaries, and notes that do
/// not limit the numbers.
pub(super) fn render_recording(out: &mut String, report: &Report, trace: usize, notes: &SortedNotes) {
    let info = &report.traces[trace];
    if let Some(command) = &info.command {
        put_line(out, format_args!("  Command: {}", sanitize(&command.join(" "))));
    }
    let mut facts = Vec::new();
    let host = info.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    facts.extend(info.pid.map(|pid| format!("process {pid}{host}")));
    if info.torch_tracker == Some("attached") {
        facts.push("allocator tracker attached".to_owned());
    }
    facts.push(format!("{} recorded", format_count(info.events.values().sum(), "event")));
    put_line(out, format_args!("  Recording: {}", sanitize(&facts.join(", "))));
    if let Some(steps) = report.steps.as_ref().filter(|_| trace == 0) {
        put_line(out, format_args!("  Step boundary: {}", describe_step_source(steps)));
    }
    for note in &notes.details {
        put_line(out, format_args!("  - {}", sanitize(note)));
    }
}
