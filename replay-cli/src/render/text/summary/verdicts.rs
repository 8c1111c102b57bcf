//! Verdicts in a summary: warnings before the numbers, remarks behind them.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Severity, Verdict, VerdictEvidence};

use crate::terminal::format::put_line;
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

/// True for verdicts that the summary does not repeat. Leaks, growth and errors have their own
/// lines, and the header names what is missing from the trace.
fn is_printed_elsewhere(evidence: &VerdictEvidence) -> bool {
    matches!(
        evidence,
        VerdictEvidence::Leak { .. }
            | VerdictEvidence::Growth { .. }
            | VerdictEvidence::CreepConfirmed { .. }
            | VerdictEvidence::Oom { .. }
            | VerdictEvidence::Incomplete(_)
            | VerdictEvidence::UncoveredCalls { .. }
    )
}

fn other_verdicts(report: &Report, trace: usize) -> impl Iterator<Item = &Verdict> {
    let all = report.verdicts.iter().flatten().filter(move |verdict| verdict.trace == trace);
    all.filter(|verdict| !is_printed_elsewhere(&verdict.evidence))
}

/// Prints warnings, worst first. False if there are none.
pub(super) fn render_warnings(out: &mut String, report: &Report, trace: usize, style: Style) -> bool {
    let mut has_warnings = false;
    for verdict in other_verdicts(report, trace) {
        let label = match verdict.severity {
            Severity::Critical => "Critical: ",
            Severity::Warning => "Warning: ",
            Severity::Info => continue,
        };
        if !has_warnings {
            out.push('\n');
        }
        has_warnings = true;
        put_line(out, format_args!("{}{}.", style.warn(label), shorten_paths_in(&verdict.summary)));
    }
    has_warnings
}

pub(super) fn render_infos(out: &mut String, report: &Report, trace: usize, style: Style) {
    let infos: Vec<_> =
        other_verdicts(report, trace).filter(|verdict| verdict.severity == Severity::Info).collect();
    if infos.is_empty() {
        return;
    }
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Also")));
    for verdict in infos {
        put_line(out, format_args!("  - {HANG}{}", shorten_paths_in(&verdict.summary)));
    }
}
