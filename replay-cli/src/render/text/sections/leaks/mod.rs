//! `--leaks`: one paragraph per leak.

mod benign;
mod explanation;
mod growth;
mod holders;

use crate::render::wording::Vocabulary;
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, LeakShape, Omitted};

use crate::render::text::header::count_steps;
use crate::render::text::sites::SiteFormatter;
use crate::render::text::sum_hidden_rows;
use crate::render::wording::sites::short_site;
use crate::render::wording::steps::describe_steps;
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::style::Style;
pub(in crate::render::text) use growth::{describe_forecast, describe_growth, format_rate};
pub(in crate::render::text) use holders::{describe_main_holder, suggest_holders};

/// Growth cannot be detected in fewer steps.
const FEW_STEPS: u64 = 5;
/// Most call sites named of a leak that has several.
const MAX_MEMBERS: usize = 8;

pub(super) fn render_leaks(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let leaks: Vec<&Leak> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    if leaks.is_empty() {
        render_no_leaks(out, report, trace, style);
    } else {
        let words = Vocabulary::of_trace(&report.traces[trace]);
        let title = format!("Leaks{}", describe_basis(" over ", report, trace));
        put_line(out, format_args!("{}", style.bold(&title)));
        render_all(out, &leaks, (report, trace, &words), style, sites);
    }
    holders::render_last_scan(out, report, trace);
    benign::render_benign_growth(out, report, trace);
}

fn render_all(
    out: &mut String,
    leaks: &[&Leak],
    (report, trace, words): (&Report, usize, &Vocabulary),
    style: Style,
    sites: &mut SiteFormatter,
) {
    let has_devices = leaks.iter().any(|leak| leak.device != leaks[0].device);
    let most = style.row_limit(leaks.len());
    for (number, leak) in leaks.iter().take(most).enumerate() {
        out.push('\n');
        let device = if has_devices { format!(" on GPU {}", leak.device) } else { String::new() };
        let headline = format!("{}{device} at {}", format_rate(leak), short_site(&leak.site));
        put_line(out, format_args!("{}. {}", number + 1, style.bold(&headline)));
        if let Some(source) = sites.source_line(&leak.site) {
            put_line(out, format_args!("       {source}"));
        }
        let is_alone = leaks.iter().filter(|other| other.device == leak.device).count() == 1;
        let forecast = describe_forecast(leak, is_alone);
        put_line(out, format_args!("   {}.{forecast}", describe_growth(leak)));
        put_line(out, format_args!("   {}", explanation::explain_leak(leak, words)));
        holders::render_holders(out, report, leak, style);
        render_call_sites(out, leak, style, sites);
    }
    let (more, bytes) = sum_hidden_rows(leaks, most, filtered_leaks(report, trace), |leak| leak.bytes);
    if more > 0 {
        out.push('\n');
        let others = format_count(more, "other leak");
        put_line(out, format_args!("{others}, {} in total.", format_bytes(bytes)));
    }
}

/// Where a leak's blocks are allocated: other lines, `backward()` calls, call sites, the stack.
fn render_call_sites(out: &mut String, leak: &Leak, style: Style, sites: &SiteFormatter) {
    if let Some(leaf) = &leak.leaf {
        let leaf = short_site(leaf);
        put_line(
            out,
            format_args!("   Innermost call site: {leaf}, shared with code that frees its blocks."),
        );
    }
    for call in &leak.backward_calls {
        put_line(
            out,
            format_args!("   Allocated by autograd threads during backward() at {}.", short_site(call)),
        );
    }
    if !leak.members.is_empty() {
        let count = format_count(leak.members.len() as u64, "call site");
        put_line(out, format_args!("   Allocated at {count} below it:"));
        let most = style.row_limit(MAX_MEMBERS);
        for member in leak.members.iter().take(most) {
            put_line(out, format_args!("     - {}", short_site(member)));
        }
        if leak.members.len() > most {
            put_line(out, format_args!("     - {} more", leak.members.len() - most));
        }
    }
    if !leak.site.stack.is_empty() {
        let mostly = if leak.shape == LeakShape::RetainedGraph { "Mostly allocated" } else { "Allocated" };
        put_line(out, format_args!("   {mostly} at (your code marked >):"));
        sites.write_stack(out, &leak.site, "     ", style);
    }
}

fn render_no_leaks(out: &mut String, report: &Report, trace: usize, style: Style) {
    if let Some(note) = few_steps_note(report, trace) {
        put_line(out, format_args!("{}", style.bold(&note)));
        return;
    }
    let elsewhere = filtered_leaks(report, trace).map_or(0, |omitted| omitted.count);
    let place = if elsewhere > 0 { " at these call sites" } else { "" };
    let text = format!("No leaks found{place}{}.", describe_basis(" in ", report, trace));
    put_line(out, format_args!("{}", style.bold(&text)));
    if elsewhere > 0 {
        put_line(out, format_args!("  {} at other call sites.", format_count(elsewhere, "leak")));
    }
}

/// ` over 12 steps (step boundary: optimizer.step() at train.py:43 in train())`, or with another
/// preposition. The report has the step boundary of its first trace.
fn describe_basis(preposition: &str, report: &Report, trace: usize) -> String {
    let steps = count_steps(report, trace).map(|count| format_count(count, "step"));
    match (steps, report.steps.as_ref().filter(|_| trace == 0)) {
        (Some(count), Some(steps)) => {
            format!("{preposition}{count} (step boundary: {})", describe_steps(steps))
        }
        (Some(count), None) => format!("{preposition}{count}"),
        (None, Some(_)) => " (no step boundaries found, judged over equal time spans)".to_owned(),
        (None, None) => String::new(),
    }
}

/// Leaks that a filter removed. The report counts them without their trace, so they are known only
/// if there is one trace.
pub(in crate::render::text) fn filtered_leaks(report: &Report, trace: usize) -> Option<Omitted> {
    report.omitted.and_then(|lists| lists.leaks).filter(|_| trace == 0 && report.traces.len() == 1)
}

/// A sentence if leaks could not be judged, because there are steps, but too few.
pub(in crate::render::text) fn few_steps_note(report: &Report, trace: usize) -> Option<String> {
    let steps = report.steps.as_ref()?;
    steps.source?;
    let before = report.traces[trace].since.and_then(|since| since.step).unwrap_or(0);
    let number = steps.count.unwrap_or(0).saturating_sub(before);
    let verb = if number == 1 { "is" } else { "are" };
    (number < FEW_STEPS).then(|| {
        format!(
            "Leaks were not judged: {} {verb} too few, at least {} are needed.",
            format_count(number, "step"),
            format_number(FEW_STEPS)
        )
    })
}
