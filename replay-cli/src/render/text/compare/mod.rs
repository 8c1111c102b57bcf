//! Two runs as a table of what differs.

mod backends;
mod call_sites;
pub(super) mod ranks;
mod totals;

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::compare::{ChangeStatus, ComparedRun, Comparison, LeakChange, LeakSide};
use gpumemtrace_replay::report::Quantity;

use crate::render::text::header::{format_program, render_losses, trace_state};
use crate::render::wording::sites::short_site;
use crate::render::wording::steps::name_step_source;
use crate::source::SourceArgs;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::layout;
use crate::terminal::style::Style;

/// Headers, then what differs, with at most `most` call sites.
pub(super) fn render_comparison(
    comparison: &Comparison,
    most: usize,
    source: &SourceArgs,
    style: Style,
) -> String {
    let mut out = String::new();
    render_runs(&mut out, comparison, style);
    out.push('\n');
    if let Some(across) = &comparison.across_backends {
        backends::render_backends(&mut out, across, style);
    }
    if !comparison.differs {
        put_line(&mut out, format_args!("{}", style.bold("No difference")));
        put_line(
            &mut out,
            format_args!("  All quantities are equal to the byte. Times and addresses are not compared."),
        );
        return layout::finish_text(&out, style);
    }
    render_leak_changes(&mut out, &comparison.leaks, style);
    render_oom_changes(&mut out, comparison, style);
    totals::render_totals(&mut out, comparison, style);
    call_sites::render_call_sites(&mut out, comparison, most, source, style);
    layout::finish_text(&out, style)
}

/// A line per trace, then which steps are compared, and notes.
fn render_runs(out: &mut String, comparison: &Comparison, style: Style) {
    for (name, run) in ["before:", "after:"].iter().zip(&comparison.runs) {
        let program = style.bold(&format_program(&run.path, run.command.as_deref(), style));
        let torch = run.torch.as_ref().map(|version| format!(" (PyTorch {})", escape_text(version)));
        let steps = run.steps.map(|steps| format!(", {}", format_count(steps, "step")));
        put_line(
            out,
            format_args!(
                "{name:<7} {program}{}{}; {}",
                torch.unwrap_or_default(),
                steps.unwrap_or_default(),
                trace_state(run.complete, style)
            ),
        );
        render_losses(out, &run.incomplete, style);
    }
    if let Some(steps) = &comparison.steps {
        let [before, after] = &comparison.runs;
        put_line(
            out,
            format_args!(
                "  Compared: steps {} to {}{}.",
                format_number(steps.first),
                format_number(steps.last),
                describe_source(before)
            ),
        );
        if before.steps != after.steps {
            put_line(
                out,
                format_args!(
                    "  Note: the runs have different numbers of steps, which affects all rows that are not \
                     per step."
                ),
            );
        }
    }
    for note in &comparison.notes {
        put_line(out, format_args!("  Note: {}.", note.message));
    }
}

fn describe_source(run: &ComparedRun) -> String {
    let source = run.step_source.map(name_step_source);
    source.map(|source| format!(" (step boundary: {source})")).unwrap_or_default()
}

fn render_leak_changes(out: &mut String, leaks: &[LeakChange], style: Style) {
    if leaks.is_empty() {
        return;
    }
    put_line(out, format_args!("{}", style.bold("Leaks")));
    let most = style.row_limit(usize::MAX);
    for leak in leaks.iter().take(most) {
        let Some(shown) = leak.after.as_ref().or(leak.before.as_ref()) else { continue };
        let rate = match (&leak.before, &leak.after) {
            (Some(before), Some(after)) => format!("{} -> {}", format_rate(before), format_rate(after)),
            _ => format_rate(shown),
        };
        let word = match (leak.status, &leak.before) {
            (ChangeStatus::Unjudged, None) => "not judged in the first run".to_owned(),
            (ChangeStatus::Unjudged, Some(_)) => "not judged in the second run".to_owned(),
            _ => leak_word(leak.status, style),
        };
        put_line(out, format_args!("  {word}: {rate} at {}", short_site(&shown.site)));
    }
    let more = leaks.len().saturating_sub(most) as u64;
    if more > 0 {
        put_line(out, format_args!("  and {}", format_count(more, "more leak")));
    }
    out.push('\n');
}

fn leak_word(status: ChangeStatus, style: Style) -> String {
    match status {
        ChangeStatus::Appeared => style.warn("new"),
        ChangeStatus::Grew => style.warn("faster"),
        ChangeStatus::Shrank => "slower".to_owned(),
        ChangeStatus::Disappeared => "gone".to_owned(),
        ChangeStatus::Unjudged => "not judged in one run".to_owned(),
        ChangeStatus::Changed => "changed".to_owned(),
    }
}

fn format_rate(side: &LeakSide) -> String {
    match side.bytes_per_step {
        Some(Quantity(rate)) if rate >= 0.0 => format!("+{}/step", format_bytes(rate as u64)),
        _ => format_bytes(side.bytes),
    }
}

fn render_oom_changes(out: &mut String, comparison: &Comparison, style: Style) {
    if comparison.ooms.is_empty() {
        return;
    }
    put_line(out, format_args!("{}", style.warn("Out of memory")));
    for oom in &comparison.ooms {
        if let Some(site) = oom.after.as_ref().or(oom.before.as_ref()) {
            let times = |number| format_count(number, "time");
            let (before, after) = (times(oom.count.before), times(oom.count.after));
            put_line(out, format_args!("  {before} -> {after} at {}", short_site(site)));
        }
    }
    out.push('\n');
}
