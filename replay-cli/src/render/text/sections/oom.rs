//! `--oom`: why an allocation failed, and what would help.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Filters;
use gpumemtrace_replay::report::VerdictEvidence;

use super::{fragmentation, peak};
use crate::render::text::sites::{SiteFormatter, short_site};
use crate::terminal::format::{format_duration, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

/// Most out-of-memory events told in full.
const MAX_TOLD: usize = 5;
/// Sites listed with each.
const MAX_SITES: usize = 10;
/// Most growing lines told with it.
const MAX_GROWN: usize = 5;

pub(super) fn render_oom(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let most = style.row_limit(MAX_TOLD);
    let words = crate::render::wording::Vocabulary::of_trace(&report.traces[trace]);
    let reserver = words.reserver;
    let ooms: Vec<_> = report.oom.iter().flatten().filter(|oom| oom.trace == trace).collect();
    put_line(out, format_args!("{}", style.bold("Out of memory")));
    if report.oom.is_none() {
        put_line(
            out,
            format_args!(
                "  Not told of a stream: it is the whole device that is out of memory. Ask without --stream."
            ),
        );
        return;
    }
    if ooms.is_empty() {
        let others = report.omitted.and_then(|lists| lists.oom).map_or(0, |out| out.count);
        let says = match (others, &report.traces[trace].since) {
            (1.., _) => "Not at these lines; without --site there is more to tell.",
            _ if words.is_metal => {
                "Not known: over its own limit (PYTORCH_MPS_HIGH_WATERMARK_RATIO) PyTorch gives up without a call of Metal, and tells nobody."
            }
            (0, Some(_)) => "It did not happen in this part of the run.",
            (0, None) => "It never happened.",
        };
        put_line(out, format_args!("  {says}"));
        let refused = report.verdicts.iter().flatten();
        for verdict in refused.filter(|one| {
            words.is_metal
                && one.trace == trace
                && matches!(one.evidence, VerdictEvidence::FailedCalls { .. })
        }) {
            put_line(out, format_args!("  {}.", verdict.summary));
        }
        return;
    }
    for oom in ooms.iter().take(most) {
        let step = oom.step.map(|step| format!(", step {}", format_number(step))).unwrap_or_default();
        put_line(out, format_args!(""));
        put_line(
            out,
            format_args!(
                "  Device {}, {} in{step}, at {}",
                oom.device,
                format_duration(oom.time_ns),
                style.bold(&short_site(&oom.site))
            ),
        );
        if let Some(source) = sites.source_line(&oom.site) {
            put_line(out, format_args!("      {source}"));
        }
        put_line(out, format_args!("  {}.", oom.why));
        put_line(
            out,
            format_args!(
                "  Tensors {}, reserved by {reserver} {}.",
                format_bytes(oom.live_bytes),
                format_bytes(oom.reserved_bytes)
            ),
        );
        if oom.sites.is_empty() {
            put_line(out, format_args!("  No tensor held any of it."));
        } else {
            put_line(out, format_args!("  What filled the device:"));
        }
        peak::render_site_table(out, &oom.sites, (oom.live_bytes, oom.omitted), style.row_limit(MAX_SITES));
        if !oom.unused_causes.is_empty() {
            put_line(out, format_args!("  What {reserver} held and no tensor used:"));
        }
        for cause in &oom.unused_causes {
            put_line(
                out,
                format_args!(
                    "  {}  {HANG}{}",
                    size_column(cause.bytes),
                    fragmentation::describe_cause(cause, &words)
                ),
            );
        }
        if !oom.growth.is_empty() {
            put_line(out, format_args!("  What had grown until then (--leaks tells how):"));
        }
        for grown in oom.growth.iter().take(style.row_limit(MAX_GROWN)) {
            put_line(out, format_args!("  {}  {HANG}{}", size_column(grown.bytes), short_site(&grown.site)));
        }
        for remedy in &oom.remedies {
            let works = match remedy.works {
                Some(true) => "would have worked",
                Some(false) => "would not have helped",
                None => "may help; the trace does not tell",
            };
            put_line(out, format_args!("  - {}: {works}", shorten_paths_in(&remedy.action)));
        }
        if !oom.site.stack.is_empty() {
            put_line(out, format_args!("  Asked for at (own lines marked):"));
            sites.write_stack(out, &oom.site, "    ", style);
        }
    }
    // Of a part of the run, or of some lines, only what is listed is known.
    let is_part = report.filters.as_ref().is_some_and(Filters::leave_events_out);
    let counted = report.traces[trace].events.get("oom").copied().unwrap_or(0);
    let all = if is_part { ooms.len() as u64 } else { counted };
    if all > most.min(ooms.len()) as u64 {
        put_line(out, format_args!(""));
        put_line(out, format_args!("  It happened {} times in all.", format_number(all)));
    }
}
