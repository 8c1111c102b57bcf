//! `--leaks`: one paragraph per leak.

mod holders;

use crate::render::wording::Vocabulary;
use crate::render::wording::assessment::{
    describe_assessment, explain_growth, find_assessment, headline_growth,
};
use crate::render::wording::leaks::benign::describe_benign_growth;
use crate::render::wording::leaks::explanation::{describe_leaf, describe_share, explain_leak};
use crate::render::wording::leaks::growth::{
    describe_forecast, describe_growth, describe_possible_forecast, format_rate,
};
use crate::render::wording::leaks::holders::format_holder;
use crate::render::wording::leaks::{name_graph, name_leaking_memory};
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, LeakKind, LeakShape, Omitted};

use crate::render::text::sites::SiteFormatter;
use crate::render::text::sum_hidden_rows;
use crate::render::wording::sites::short_site;
use crate::render::wording::steps::describe_basis;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::style::Style;
pub(in crate::render::text) use holders::describe_main_holder;

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
    if find_assessment(report, trace).is_some_and(|assessment| !assessment.growth.is_empty()) {
        out.push('\n');
        render_growth(out, report, trace, (usize::MAX, sites));
    }
    holders::render_last_scan(out, report, trace);
    if let Some(benign) = describe_benign_growth(report, trace) {
        out.push('\n');
        put_line(out, format_args!("Not counted as leaks: {benign}."));
    }
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
        let memory = name_leaking_memory(leak.kind);
        let device = match leak.kind {
            LeakKind::Tensors | LeakKind::Device | LeakKind::Reserved if has_devices => {
                format!(" on GPU {}", leak.device)
            }
            LeakKind::Tensors | LeakKind::Device | LeakKind::Reserved | LeakKind::PinnedHost => String::new(),
        };
        let headline = format!("{}{memory}{device} at {}", format_rate(leak), short_site(&leak.site));
        put_line(out, format_args!("{}. {}", number + 1, style.bold(&headline)));
        if let Some(source) = sites.source_line(&leak.site) {
            put_line(out, format_args!("       {source}"));
        }
        let is_alone = leaks.iter().filter(|other| other.device == leak.device).count() == 1;
        let forecast = describe_forecast(leak, is_alone);
        put_line(out, format_args!("   {}.{forecast}", describe_growth(leak)));
        let share = describe_share(leak).map(|share| format!(" {share}.")).unwrap_or_default();
        let why = explain_leak(leak, words);
        let confidence = leak.confidence.map(|value| format!(" Confidence {value:.2}.")).unwrap_or_default();
        put_line(out, format_args!("   {why}{share}{confidence}"));
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
        put_line(out, format_args!("   Innermost call site: {}{}", short_site(leaf), describe_leaf(leak)));
    }
    for call in &leak.backward_calls {
        put_line(
            out,
            format_args!("   Allocated by autograd threads during backward() at {}.", short_site(call)),
        );
    }
    if !leak.members.is_empty() {
        let count = format_count(leak.members.len() as u64, "call site");
        let verb = match leak.kind {
            LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost => "Allocated",
            LeakKind::Reserved => "Requested",
        };
        put_line(out, format_args!("   {verb} at {count}:"));
        let most = style.row_limit(MAX_MEMBERS);
        for member in leak.members.iter().take(most) {
            put_line(out, format_args!("     - {}", short_site(member)));
        }
        if leak.members.len() > most {
            put_line(out, format_args!("     - {} more", leak.members.len() - most));
        }
    }
    if !leak.site.stack.is_empty() {
        let mostly = match leak.kind {
            LeakKind::Reserved => "Mostly requested",
            LeakKind::Tensors if leak.shape == LeakShape::RetainedGraph => "Mostly allocated",
            LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost => "Allocated",
        };
        put_line(out, format_args!("   {mostly} at (your code marked >):"));
        sites.write_stack(out, &leak.site, "     ", style);
    }
}

fn render_no_leaks(out: &mut String, report: &Report, trace: usize, style: Style) {
    let elsewhere = filtered_leaks(report, trace).map_or(0, |omitted| omitted.count);
    let place = if elsewhere > 0 { " at these call sites" } else { "" };
    let place = format!("{place}{}", describe_basis(" in ", report, trace));
    if let Some(assessment) = find_assessment(report, trace) {
        put_line(out, format_args!("{}.", style.bold(&describe_assessment(assessment, &place))));
        if let Some(remedy) = &assessment.remedy {
            put_line(out, format_args!("  {remedy}"));
        }
    }
    if elsewhere > 0 {
        put_line(out, format_args!("  {} at other call sites.", format_count(elsewhere, "leak")));
    }
}

/// Growth that is not known to be a leak: a headline, what is known of it, and its holder.
pub(in crate::render::text) fn render_growth(
    out: &mut String,
    report: &Report,
    trace: usize,
    (most, sites): (usize, &mut SiteFormatter),
) {
    let Some(assessment) = find_assessment(report, trace) else { return };
    let has_failed = report.oom.iter().flatten().any(|oom| oom.trace == trace);
    for growth in assessment.growth.iter().take(most) {
        let (label, text) = headline_growth(growth);
        put_line(out, format_args!("{label}: {text}"));
        if let Some(source) = sites.source_line(&growth.site) {
            put_line(out, format_args!("      {source}"));
        }
        if let Some(finding) = growth.finding.as_deref() {
            let graph = name_graph(finding).map(|graph| format!("{graph}: ")).unwrap_or_default();
            put_line(out, format_args!("  {graph}{}.", describe_growth(finding)));
        }
        put_line(out, format_args!("  {}", explain_growth(growth)));
        let forecast = growth.finding.as_deref().and_then(describe_possible_forecast);
        if let Some(forecast) = forecast.filter(|_| !has_failed) {
            put_line(out, format_args!("  {forecast}"));
        }
        if let Some(holder) = growth.holders.as_ref().and_then(|holders| holders.first()) {
            put_line(out, format_args!("  Held by {}.", format_holder(holder)));
        }
    }
    if assessment.growth.len() > most {
        let more = (assessment.growth.len() - most) as u64;
        put_line(out, format_args!("{} that grow (see --leaks)", format_count(more, "more call site")));
    }
}

/// Leaks that a filter removed. The report counts them without their trace, so they are known only
/// if there is one trace.
pub(in crate::render::text) fn filtered_leaks(report: &Report, trace: usize) -> Option<Omitted> {
    report.omitted.and_then(|lists| lists.leaks).filter(|_| trace == 0 && report.traces.len() == 1)
}
