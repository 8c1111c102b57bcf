//! Call sites that differ between two runs, largest change first.

use gpumemtrace_replay::compare::{AmountChange, Comparison, LineChange};

use crate::render::wording::comparison::{
    describe_move, describe_unlisted_difference, format_change, status_word,
};
use crate::render::wording::sites::short_site;
use crate::source::{SourceArgs, SourceReader};
use crate::terminal::format::{format_count, put_line};
use crate::terminal::layout::display_width;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Columns of the first column: the status.
const STATUS_WIDTH: usize = 13;
/// Columns of each number.
const NUMBER_WIDTH: usize = 13;

pub(super) fn render_call_sites(
    out: &mut String,
    comparison: &Comparison,
    most: usize,
    source: &SourceArgs,
    style: Style,
) {
    let lines = &comparison.lines;
    if lines.is_empty() {
        return;
    }
    if !comparison.totals.is_empty() {
        out.push('\n');
    }
    let has_devices = lines.iter().any(|line| line.device != lines[0].device);
    let per_step =
        if comparison.steps.is_some() { format!("{:>NUMBER_WIDTH$}", "per step") } else { String::new() };
    let title = format!("{:<STATUS_WIDTH$}", format_count(lines.len() as u64, "call site"));
    put_line(
        out,
        format_args!(
            "{}{:>NUMBER_WIDTH$}{:>NUMBER_WIDTH$}{per_step}{:>NUMBER_WIDTH$}",
            style.bold(&title),
            "at peak",
            "retained",
            "allocations"
        ),
    );
    // The files have the lines of the second run only.
    let after = comparison.runs.last().map(|run| (run.path.as_str(), &run.origin));
    let mut sources = SourceReader::new(after, None, source);
    let lists: Vec<(String, &LineChange)> = lines
        .iter()
        .take(most)
        .map(|line| {
            let device = if has_devices { format!("GPU {}: ", line.device) } else { String::new() };
            let site = line.site().map(short_site).unwrap_or_default();
            let moved = describe_move(line).unwrap_or_default();
            (format!("{device}{site}{moved}"), line)
        })
        .collect();
    let columns = STATUS_WIDTH + NUMBER_WIDTH * (3 + usize::from(comparison.steps.is_some())) + 2;
    let fits = |site: &str| columns + display_width(site) <= style.width;
    let has_own_lines = style.wraps && !lists.iter().all(|(site, _)| fits(site));
    for (site, line) in lists {
        render_line(out, line, &site, has_own_lines, &mut sources, style);
    }
    if lines.len() > most {
        let more = format_count((lines.len() - most) as u64, "more call site");
        put_line(out, format_args!("  and {more} (--top N lists more)"));
    }
    if let Some(withheld) = sources.withheld() {
        put_line(out, format_args!("{}", style.dim(&withheld.describe())));
    }
}

fn render_line(
    out: &mut String,
    line: &LineChange,
    site: &str,
    has_own_line: bool,
    sources: &mut SourceReader,
    style: Style,
) {
    let bytes = |change: AmountChange| format_change(change.change, true);
    let per_step =
        line.bytes_per_step.map(|change| format!("{:>NUMBER_WIDTH$}", bytes(change))).unwrap_or_default();
    let allocations = line.allocations_per_step.or(line.allocations);
    let allocations = allocations.map(|change| format_change(change.change, false)).unwrap_or_default();
    let numbers = format!(
        "{:<STATUS_WIDTH$}{:>NUMBER_WIDTH$}{:>NUMBER_WIDTH$}{per_step}{allocations:>NUMBER_WIDTH$}",
        status_word(line.status),
        bytes(line.at_peak_bytes),
        bytes(line.retained_bytes),
    );
    let indent = STATUS_WIDTH + 2;
    if has_own_line {
        put_line(out, format_args!("{numbers}"));
        put_line(out, format_args!("{:>indent$}{HANG}{site}", ""));
    } else {
        put_line(out, format_args!("{numbers}  {HANG}{site}"));
    }
    if let Some(text) = describe_unlisted_difference(line) {
        put_line(out, format_args!("{:>indent$}{text}", ""));
    }
    if let Some(source) = line.after.as_ref().and_then(|site| sources.line_of(site)) {
        put_line(out, format_args!("{:>indent$}{}", "", style.dim(&source)));
    }
}
