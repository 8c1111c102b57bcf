//! The head of a report: one line about the run, then losses and caveats.
//!
//! [`render_header`] prints the line for each trace. If it is too wide for the terminal, it breaks
//! between the program, its versions and the run. What limits the numbers below it always
//! follows: losses behind `!`, caveats behind `Note:`. Facts about the recording itself, such as
//! the process id and the number of events, follow with `-v` ([`recording`]).

mod caveats;
mod recording;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{TraceLoss, Worded};

use crate::render::wording::recording::{describe_end, format_extent, format_versions};
use crate::terminal::escape::escape_text;
use crate::terminal::format::put_line;
use crate::terminal::layout::display_width;
use crate::terminal::paths::shorten_command;
use crate::terminal::style::Style;

pub(super) fn render_header(out: &mut String, report: &Report, trace: usize, style: Style) {
    let info = &report.traces[trace];
    let program = if info.is_torch_snapshot() {
        format!("{}: PyTorch snapshot", escape_text(&info.path))
    } else {
        format_program(&info.path, info.command.as_deref(), style)
    };
    let versions = format_versions(info);
    let ending = describe_end(info);
    let extent = format_extent(report, trace).map(|extent| format!("{extent}, ")).unwrap_or_default();
    let run = format!("{extent}{ending}; {}", trace_state(info.complete, style));
    let fits = |parts: &[&str]| {
        !style.wraps || parts.iter().map(|part| display_width(part)).sum::<usize>() <= style.width
    };
    let bold = style.bold(&program);
    if fits(&[&program, &versions, ", ", &run]) {
        put_line(out, format_args!("{bold}{versions}, {run}"));
    } else if fits(&[&program, &versions]) {
        put_line(out, format_args!("{bold}{versions}"));
        put_line(out, format_args!("  {run}"));
    } else {
        put_line(out, format_args!("{bold}"));
        put_line(out, format_args!(" {versions}"));
        put_line(out, format_args!("  {run}"));
    }
    render_losses(out, &info.incomplete, style);
    for caveat in caveats::list_caveats(report, info) {
        put_line(out, format_args!("  Note: {}.", escape_text(&caveat)));
    }
    if style.is_verbose {
        recording::render_recording(out, report, trace);
    }
}

/// `trace complete`, or `trace INCOMPLETE` as a warning.
pub(in crate::render::text) fn trace_state(is_complete: bool, style: Style) -> String {
    if is_complete { "trace complete".to_owned() } else { style.warn("trace INCOMPLETE") }
}

/// A line for each part that is missing from the trace, and what that means for the numbers.
pub(in crate::render::text) fn render_losses(out: &mut String, losses: &[Worded<TraceLoss>], style: Style) {
    for loss in losses {
        put_line(out, format_args!("  {}", style.warn(&format!("! {}", escape_text(&loss.message)))));
    }
    if matches!(losses, [Worded { fact: TraceLoss::HistoryOverwritten, .. }]) {
        let effect = "Note: because of this, peaks and counts are lower bounds; the end is exact.";
        put_line(out, format_args!("  {effect}"));
    } else if !losses.is_empty() {
        put_line(out, format_args!("  Note: because of this, all numbers are lower bounds."));
    }
}

/// `run.trace: python train.py`. On terminals, commands longer than a line are cut between words,
/// unless `-v` is given.
pub(in crate::render::text) fn format_program(
    path: &str,
    command: Option<&[String]>,
    style: Style,
) -> String {
    let path = escape_text(path);
    let Some(command) = command else { return format!("{path}: unknown command") };
    let mut command = escape_text(&shorten_command(command));
    if style.wraps && !style.is_verbose && command.chars().count() > style.width {
        let kept: String = command.chars().take(style.width).collect();
        let kept = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
        command = format!("{kept} {}", style.ellipsis());
    }
    format!("{path}: {command}")
}
