//! `--oom`: why an allocation failed, what filled the GPU, and what helps.

use crate::render::wording::{Vocabulary, sentence};
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Filters, Remedy};

pub(in crate::render::text) mod growth;

use super::peak;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::fragmentation::describe_cause;
use crate::render::wording::oom::groups::{OomGroup, group_ooms};
use crate::render::wording::oom::{
    NONE_OF_PYTORCH, compare_with_earlier_steps, describe_recovery, find_refused_calls, remedy_state,
    sort_remedies,
};
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

/// Most kinds of errors described in full.
const MAX_DESCRIBED: usize = 5;
/// Most call sites listed for each.
const MAX_SITES: usize = 10;
/// Most lines that grew, and lines that did not, listed for each.
const MAX_LINES: usize = 5;

pub(super) fn render_oom(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let most = style.row_limit(MAX_DESCRIBED);
    let ooms: Vec<_> = report.oom.iter().flatten().filter(|oom| oom.trace == trace).collect();
    if ooms.is_empty() {
        render_no_oom(out, report, trace, style);
        return;
    }
    put_line(out, format_args!("{}", style.bold("Out of memory")));
    let words = Vocabulary::of_trace(&report.traces[trace]);
    let groups = group_ooms(&ooms);
    for group in groups.iter().take(most) {
        out.push('\n');
        render_error(out, group, &words, style, sites);
    }
    // With filters, the number of events counts errors that are not listed.
    let has_filters = report.filters.as_ref().is_some_and(Filters::leave_events_out);
    let counted = report.traces[trace].events.get("oom").copied().unwrap_or(0);
    let all = if has_filters { ooms.len() as u64 } else { counted };
    let described = groups.iter().take(most).map(|group| group.count).sum();
    if all > described || groups.len() > 1 {
        out.push('\n');
        put_line(out, format_args!("  {} in total.", format_count(all, "out-of-memory error")));
    }
}

/// There is no error, or it is unknown whether there is one.
fn render_no_oom(out: &mut String, report: &Report, trace: usize, style: Style) {
    let info = &report.traces[trace];
    let elsewhere = report.omitted.and_then(|lists| lists.oom).map_or(0, |omitted| omitted.count);
    let is_metal = Vocabulary::of_trace(info).is_metal;
    let refused = find_refused_calls(report, trace);
    let text = if report.oom.is_none() {
        "Out-of-memory errors are not known for a single stream: repeat without --stream.".to_owned()
    } else if elsewhere > 0 {
        let number = format_count(elsewhere, "error");
        format!("No out-of-memory errors at these call sites; {number} at others.")
    } else if is_metal {
        "Out-of-memory errors are not known on Metal: over its own limit \
         (PYTORCH_MPS_HIGH_WATERMARK_RATIO) PyTorch gives up without a call of Metal."
            .to_owned()
    } else if refused.is_some() {
        NONE_OF_PYTORCH.to_owned()
    } else if info.since.is_some() {
        "No out-of-memory errors in this part of the run.".to_owned()
    } else {
        "No out-of-memory errors.".to_owned()
    };
    put_line(out, format_args!("{}", style.bold(&text)));
    if let Some(verdict) = refused {
        put_line(out, format_args!("  {}.", shorten_paths_in(&verdict.summary)));
    }
}

/// Several equal errors are one block, with the state at the last of them.
fn render_error(
    out: &mut String,
    group: &OomGroup<'_>,
    words: &Vocabulary,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let oom = group.last;
    let site = style.bold(&short_site(&oom.site));
    put_line(out, format_args!("  GPU {} ({}) at {site}", oom.device, group.describe_moments(words)));
    if let Some(source) = sites.source_line(&oom.site) {
        put_line(out, format_args!("      {source}"));
    }
    growth::render_growth(out, oom, style.row_limit(MAX_LINES), style, sites);
    growth::render_unchanged(out, oom, style.row_limit(MAX_LINES));
    if let Some(outcome) = describe_recovery(oom.recovered) {
        put_line(out, format_args!("  {}", sentence(outcome)));
    }
    put_line(out, format_args!("  {}.", oom.why));
    if let Some(text) = compare_with_earlier_steps(oom) {
        put_line(out, format_args!("  {text}"));
    }
    put_line(
        out,
        format_args!(
            "  Allocated {}, {} {}.",
            format_bytes(oom.live_bytes),
            words.reserved_row,
            format_bytes(oom.reserved_bytes)
        ),
    );
    if !oom.remedies.is_empty() {
        put_line(out, format_args!("  Remedies:"));
    }
    for remedy in sort_remedies(&oom.remedies) {
        put_line(out, format_args!("  {:>15}  {HANG}{}", remedy_state(remedy), describe_remedy(remedy)));
    }
    if oom.sites.is_empty() {
        put_line(out, format_args!("  PyTorch had nothing allocated."));
    } else {
        put_line(out, format_args!("  Largest call sites:"));
    }
    let most = style.row_limit(MAX_SITES);
    peak::render_site_table(out, &oom.sites, (oom.live_bytes, oom.omitted), most);
    if !oom.unused_causes.is_empty() {
        put_line(out, format_args!("  Reserved but unused:"));
    }
    for cause in &oom.unused_causes {
        let meaning = describe_cause(cause, words);
        put_line(out, format_args!("  {}  {HANG}{meaning}", size_column(cause.bytes)));
    }
    if !oom.site.stack.is_empty() {
        put_line(out, format_args!("  Requested at (your code marked >):"));
        sites.write_stack(out, &oom.site, "    ", style);
    }
}

pub(in crate::render::text) fn describe_remedy(remedy: &Remedy) -> String {
    shorten_paths_in(&remedy.action)
}
