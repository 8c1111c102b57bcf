//! Call sites that differ between two runs, largest change first.

use gpumemtrace_replay::compare::AmountChange;
use gpumemtrace_replay::compare::ChangeStatus;
use gpumemtrace_replay::compare::Comparison;
use gpumemtrace_replay::compare::LineChange;

use super::format_change;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Columns of the first column: the status.
const STATUS_WIDTH: usize = 13;
/// Below this width, call sites get a line of their own.
const WIDE_COLUMNS: usize = 100;

pub(super) fn render_call_sites(out: &mut String, comparison: &Comparison, most: usize, style: Style) {
    let lines = &comparison.lines;
    if lines.is_empty() {
        return;
    }
    if !comparison.totals.is_empty() {
        out.push('\n');
    }
    let has_devices = lines.iter().any(|line| line.device != lines[0].device);
    let per_step = if comparison.steps.is_some() { format!("{:>13}", "per step") } else { String::new() };
    let title = format!("{:<STATUS_WIDTH$}", format_count(lines.len() as u64, "call site"));
    put_line(
        out,
        format_args!(
            "{}{:>13}{:>13}{per_step}{:>13}",
            style.bold(&title),
            "at peak",
            "retained",
            "allocations"
        ),
    );
    let mut sites = SiteFormatter::new(false);
    for line in lines.iter().take(most) {
        render_line(out, line, has_devices, &mut sites, style);
    }
    if lines.len() > most {
        let more = format_count((lines.len() - most) as u64, "more call site");
        put_line(out, format_args!("  and {more} (--all lists them)"));
    }
}

fn render_line(
    out: &mut String,
    line: &LineChange,
    has_devices: bool,
    sites: &mut SiteFormatter,
    style: Style,
) {
    let bytes = |change: AmountChange| format_change(change.change, true);
    let per_step = line.bytes_per_step.map(|change| format!("{:>13}", bytes(change))).unwrap_or_default();
    let allocations = line.allocations_per_step.or(line.allocations);
    let allocations = allocations.map(|change| format_change(change.change, false)).unwrap_or_default();
    let device = if has_devices { format!("GPU {}: ", line.device) } else { String::new() };
    let numbers = format!(
        "{:<STATUS_WIDTH$}{:>13}{:>13}{per_step}{allocations:>13}",
        status_word(line.status),
        bytes(line.at_peak_bytes),
        bytes(line.retained_bytes),
    );
    let indent = STATUS_WIDTH + 2;
    let site = format_moved_site(line);
    if style.wraps && style.width < WIDE_COLUMNS {
        put_line(out, format_args!("{numbers}"));
        put_line(out, format_args!("{:>indent$}{HANG}{device}{site}", ""));
    } else {
        put_line(out, format_args!("{numbers}  {HANG}{device}{site}"));
    }
    if let Some(differ) = line.steps_that_differ.filter(|_| is_equal_in_all_columns(line)) {
        let steps = format_count(differ, "step");
        put_line(out, format_args!("{:>indent$}different allocations in {steps}", ""));
    }
    // The file has the lines of the second run only.
    if let Some(source) = line.after.as_ref().and_then(|site| sites.source_line(site)) {
        put_line(out, format_args!("{:>indent$}{}", "", style.dim(&source)));
    }
}

fn status_word(status: ChangeStatus) -> &'static str {
    match status {
        ChangeStatus::Appeared => "new",
        ChangeStatus::Grew => "grew",
        ChangeStatus::Changed => "changed",
        ChangeStatus::Shrank => "shrank",
        ChangeStatus::Disappeared => "gone",
    }
}

fn is_equal_in_all_columns(line: &LineChange) -> bool {
    let by_steps = [line.bytes_per_step, line.allocations_per_step];
    let shown = [line.at_peak_bytes, line.retained_bytes];
    shown.into_iter().chain(by_steps.into_iter().flatten()).all(|change| change.change == 0)
}

/// `train.py:41 in hook() (was line 38)`.
fn format_moved_site(line: &LineChange) -> String {
    let Some(site) = line.site() else { return String::new() };
    let moved =
        line.before.as_ref().and_then(|before| before.line).filter(|before| site.line != Some(*before));
    let moved = moved.map(|before| format!(" (was line {before})")).unwrap_or_default();
    format!("{}{moved}", short_site(site))
}
