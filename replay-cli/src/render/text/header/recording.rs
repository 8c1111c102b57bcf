//! Facts about the recording itself, printed with `-v`.

use gpumemtrace_format::TrackerState;
use gpumemtrace_replay::Report;

use crate::render::wording::is_caveat;
use crate::render::wording::steps::describe_steps;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, put_line};

/// The command in full, the process, the number of events, the step boundaries, and notes that do
/// not limit the numbers.
pub(super) fn render_recording(out: &mut String, report: &Report, trace: usize) {
    let info = &report.traces[trace];
    if let Some(command) = &info.command {
        put_line(out, format_args!("  Command: {}", escape_text(&command.join(" "))));
    }
    let mut facts = Vec::new();
    let host = info.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    facts.extend(info.pid.map(|pid| format!("process {pid}{host}")));
    if info.torch_tracker == Some(TrackerState::Attached) {
        facts.push("allocator tracker attached".to_owned());
    }
    facts.push(format!("{} recorded", format_count(info.events.values().sum(), "event")));
    put_line(out, format_args!("  Recording: {}", escape_text(&facts.join(", "))));
    if let Some(steps) = report.steps.as_ref().filter(|_| trace == 0) {
        put_line(out, format_args!("  Step boundary: {}", describe_steps(steps)));
    }
    for note in info.notes.iter().filter(|note| !is_caveat(&note.fact)) {
        put_line(out, format_args!("  - {}", escape_text(&note.message)));
    }
}
