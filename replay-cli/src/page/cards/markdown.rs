//! The overview as Markdown, for an issue or a chat.
//!
//! Names in a trace are untrusted. Each text that may hold one is in code quotes. Markdown, HTML,
//! links and mentions have no meaning there.

use gpumemtrace_replay::report::{Device, Peak};

use super::CardTrace;
use super::figures::{LARGEST_SITES, end_title, level_rows, share_of_peak};
use super::findings::{FindingText, collect_findings, label_severity};
use super::headline::program;
use super::known_bytes;
use crate::render::markdown::{quote_cell, quote_code};
use crate::render::wording::Vocabulary;
use crate::render::wording::end_levels::EndLevels;
use crate::render::wording::moment::format_moment;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::units::format_bytes;

/// An issue on GitHub may have 65,536 characters. The rest is for what you write yourself.
const MAX_CHARS: usize = 60_000;

/// Program, findings, levels and the largest call sites at the peak of a trace.
pub(super) fn overview(trace: &CardTrace<'_>) -> String {
    let mut lines =
        vec![format!("gpumemtrace {}: {}", env!("CARGO_PKG_VERSION"), quote_code(&program(trace)))];
    lines.push(String::new());
    let info = &trace.report.traces[trace.trace];
    let losses =
        info.incomplete.iter().map(|loss| format!("- **Incomplete**: {}", quote_code(&loss.message)));
    lines.extend(losses);
    for finding in collect_findings(trace) {
        push_finding(&mut lines, &finding, trace);
    }
    for device in trace.report.devices.iter().filter(|device| device.trace == trace.trace) {
        push_levels(&mut lines, device);
    }
    for peak in trace.report.peak.iter().flatten().filter(|peak| peak.trace == trace.trace) {
        push_largest_sites(&mut lines, peak, trace);
    }
    fit_lines(&lines, MAX_CHARS)
}

fn push_finding(lines: &mut Vec<String>, finding: &FindingText<'_>, trace: &CardTrace<'_>) {
    // Its label may hold the name of a trace.
    let label = label_severity(finding.severity, trace);
    let (severity, place) = label.split_once(", ").unwrap_or((&label, ""));
    let place = if place.is_empty() { String::new() } else { format!(", {}", quote_code(place)) };
    lines.push(format!("- **{severity}**{place}: {}", quote_code(&finding.summary)));
    let source = finding.site.and_then(|site| trace.site(site)?.source.as_deref());
    let parts = source.into_iter().map(str::trim).chain(finding.details.iter().map(String::as_str));
    let parts = parts.chain(finding.advice.iter().map(String::as_str));
    lines.extend(parts.map(|part| format!("  - {}", quote_code(part))));
}

fn push_levels(lines: &mut Vec<String>, device: &Device) {
    let end = EndLevels::of_device(device);
    let name = device.name.as_ref().map(|name| format!(" {}", quote_cell(name))).unwrap_or_default();
    let total = device.total_bytes.map(|total| format!(", {}", format_bytes(total))).unwrap_or_default();
    lines.push(String::new());
    lines.push(format!("| GPU {}{name}{total} | Highest | {} |", device.device, end_title(&end)));
    lines.push("|---|---:|---:|".to_owned());
    let rows = level_rows(device, &end);
    let rows = rows
        .map(|(name, highest, end)| format!("| {name} | {} | {} |", known_bytes(highest), known_bytes(end)));
    lines.extend(rows);
}

fn push_largest_sites(lines: &mut Vec<String>, peak: &Peak, trace: &CardTrace<'_>) {
    let words = Vocabulary::of_trace(&trace.report.traces[trace.trace]);
    let moment = quote_cell(&format_moment(&words, peak.time_ns, peak.step));
    lines.push(String::new());
    lines.push(format!("| GPU {} at its peak, {moment} | Bytes | Share | Blocks |", peak.device));
    lines.push("|---|---:|---:|---:|".to_owned());
    for row in peak.sites.iter().take(LARGEST_SITES) {
        let name = quote_cell(&short_site(&row.site));
        let share = share_of_peak(row.bytes, peak);
        let (bytes, blocks) = (format_bytes(row.bytes), format_number(row.blocks));
        lines.push(format!("| {name} | {bytes} | {share} | {blocks} |"));
    }
    if let Some(more) = peak.sites.len().checked_sub(LARGEST_SITES).filter(|more| *more > 0) {
        lines.push(format!("| {} | | | |", format_count(more as u64, "other call site")));
    }
}

/// Lines up to a number of characters. Lines that do not fit are left out, and counted.
fn fit_lines(lines: &[String], max_chars: usize) -> String {
    let (mut text, mut chars, mut omitted) = (String::new(), 0, 0);
    for line in lines {
        let length = line.chars().count() + 1;
        if chars + length > max_chars {
            omitted += 1;
            continue;
        }
        chars += length;
        text.push_str(line);
        text.push('\n');
    }
    if omitted > 0 {
        text.push('\n');
        put_line(
            &mut text,
            format_args!(
                "{} left out: the text would exceed {} characters.",
                format_count(omitted, "line"),
                format_number(max_chars as u64)
            ),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let lines: Vec<String> = ["ab", "a much longer line", "é"].map(str::to_owned).into();
        assert_eq!(fit_lines(&lines, 5), "ab\né\n\n1 line left out: the text would exceed 5 characters.\n");
        assert_eq!(fit_lines(&lines, 100), "ab\na much longer line\né\n");
    }
}
