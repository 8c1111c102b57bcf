//! The out-of-memory errors in a summary: which line grew towards them, why they happened, and what
//! helps.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Filters, Oom, OomGrowthPattern};

use crate::render::text::sections::oom::describe_remedy;
use crate::render::text::sections::oom::growth::{render_growth, render_unchanged};
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::leaks::holders::suggest_holders;
use crate::render::wording::oom::compare_with_earlier_steps;
use crate::render::wording::oom::groups::{OomGroup, group_ooms};
use crate::render::wording::oom::growth::listed_growth;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::style::Style;

/// Most lines that grew.
const MAX_LINES: usize = 3;

/// The errors of one trace. The first group is described, the others are counted.
pub(super) fn render_ooms(
    out: &mut String,
    report: &Report,
    ooms: &[&Oom],
    style: Style,
    sites: &mut SiteFormatter,
) {
    let groups = group_ooms(ooms);
    let Some(group) = groups.first() else { return };
    let oom = group.last;
    let all = count_ooms(report, oom.trace, ooms.len());
    let headline =
        format!("Out of memory{} on GPU {} at {}", group.describe_steps(), oom.device, short_site(&oom.site));
    put_line(out, format_args!("{}{}", style.warn(&headline), describe_others(&groups, all)));
    if let Some(source) = sites.source_line(&oom.site) {
        put_line(out, format_args!("      {source}"));
    }
    render_growth(out, oom, style.row_limit(MAX_LINES), style, sites);
    let is_retained = |pattern| matches!(pattern, OomGrowthPattern::Repeated | OomGrowthPattern::Replaced);
    let is_unheld = |oom: &Oom| {
        let lines = listed_growth(oom, MAX_LINES);
        lines.iter().any(|line| is_retained(line.pattern) && line.holders.is_none())
    };
    if let Some(suggestion) = suggest_holders(report, oom.trace).filter(|_| is_unheld(oom)) {
        put_line(out, format_args!("    {suggestion}"));
    }
    render_unchanged(out, oom, MAX_LINES);
    put_line(out, format_args!("  {}.", oom.why));
    if let Some(text) = compare_with_earlier_steps(oom) {
        put_line(out, format_args!("  {text}"));
    }
    for remedy in oom.remedies.iter().filter(|remedy| remedy.works == Some(true)) {
        put_line(out, format_args!("  What helps: {}.", describe_remedy(remedy)));
    }
    if sites.full_stacks {
        sites.write_stack(out, &oom.site, "      ", style);
    }
}

/// The number of errors, including those beyond the described ones.
fn count_ooms(report: &Report, trace: usize, described: usize) -> u64 {
    let has_filters = report.filters.as_ref().is_some_and(Filters::leave_events_out);
    let counted = report.traces[trace].events.get("oom").copied().unwrap_or(0);
    if has_filters { described as u64 } else { counted.max(described as u64) }
}

/// How many errors there are besides the described one, and whether the program went on after it.
fn describe_others(groups: &[OomGroup<'_>], all: u64) -> String {
    let described = &groups[0];
    let went_on = described.last.recovered == Some(true);
    let outcome = if went_on { "; the program went on" } else { "" };
    let number = match (described.count, all) {
        (_, 1) => String::new(),
        (1, _) => format!("1 of {}", format_count(all, "error")),
        (same, _) if same == all => format_count(all, "error"),
        (same, _) => format!("{same} of {}", format_count(all, "error")),
    };
    match (number.is_empty(), went_on) {
        (true, false) => String::new(),
        (true, true) => " (the program went on)".to_owned(),
        (false, _) => format!(" ({number}{outcome})"),
    }
}
