//! `--fragmentation`: reserved memory that is not allocated, its causes, and the call sites that
//! pin it.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Cause, CauseKind, Fragmentation};

use super::{fragmentation_history, pools};
use crate::render::text::sites::SiteFormatter;
use crate::render::text::sum_hidden_rows;
use crate::render::wording::Vocabulary;
use crate::render::wording::fragmentation::{
    describe_cause, describe_gap_moment, describe_setting_effects, name_cause,
};
use crate::render::wording::moment::format_moment;
use crate::render::wording::sites::short_site;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_percent, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most call sites listed for a cause.
const MAX_CULPRITS: usize = 8;

pub(super) fn render_fragmentation(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    _sites: &mut SiteFormatter,
) {
    let words = Vocabulary::of_trace(&report.traces[trace]);
    let moments: Vec<_> =
        report.fragmentation.iter().flatten().filter(|moment| moment.trace == trace).collect();
    let driver_pools: Vec<_> =
        report.async_pools.iter().flatten().filter(|pool| pool.trace == trace).collect();
    let of = if words.reserver == "PyTorch" { String::new() } else { format!(" of {}", words.reserver) };
    let heading = format!("Fragmentation{of}: reserved memory that is not allocated");
    put_line(out, format_args!("{}", style.bold(&heading)));
    if moments.is_empty() && driver_pools.is_empty() {
        let why = match report.traces[trace].stream {
            Some(stream) if !stream.is_reserved_known => {
                "Unknown for a single stream: PyTorch's tracker did not report all segments."
            }
            _ if words.is_metal => "The trace has no buffer in a Metal heap.",
            _ => "The trace has no events of PyTorch's allocator.",
        };
        put_line(out, format_args!("  {why}"));
    }
    for pool in driver_pools {
        pools::render_async_pool(out, pool);
    }
    for (moments, text) in group_moments(&moments, &words, style) {
        out.push('\n');
        render_title(out, &moments, &words);
        out.push_str(&text);
    }
    if moments.iter().any(|moment| has_unknown_pools(moment, &words)) {
        out.push('\n');
        put_line(
            out,
            format_args!(
                "  The trace does not show pools. Memory in those of CUDA graphs and MemPools counts as \
                 cached, but {} returns it only after they are deleted.",
                words.empty_cache
            ),
        );
    }
    render_setting_effects(out, report, trace, &words);
    for history in report.fragmentation_over_time.iter().flatten().filter(|history| history.trace == trace) {
        fragmentation_history::render_history(out, history, style);
    }
}

/// Whether another setting would have reserved less, for each GPU.
fn render_setting_effects(out: &mut String, report: &Report, trace: usize, words: &Vocabulary) {
    let effects = report.setting_effects.iter().flatten().filter(|effects| effects.trace == trace);
    let effects: Vec<_> = effects.collect();
    for one in &effects {
        let device = if effects.len() > 1 { format!("GPU {}: ", one.device) } else { String::new() };
        out.push('\n');
        put_line(out, format_args!("  {HANG}{device}{}", escape_text(&describe_setting_effects(one, words))));
    }
}

/// The texts of all moments, each with the moments of a GPU that share it.
fn group_moments<'a>(
    moments: &[&'a Fragmentation],
    words: &Vocabulary,
    style: Style,
) -> Vec<(Vec<&'a Fragmentation>, String)> {
    let mut groups: Vec<(Vec<&Fragmentation>, String)> = Vec::new();
    for moment in moments {
        let mut text = String::new();
        render_gap(&mut text, moment, words, style);
        match groups.iter_mut().find(|(shared, other)| shared[0].device == moment.device && *other == text) {
            Some((shared, _)) => shared.push(moment),
            None => groups.push((vec![moment], text)),
        }
    }
    groups
}

/// The moments that share a text, with their times.
fn render_title(out: &mut String, moments: &[&Fragmentation], words: &Vocabulary) {
    let described: Vec<String> = moments
        .iter()
        .map(|moment| {
            let time = format_moment(words, moment.at.time_ns, moment.at.step);
            format!("{} ({time})", describe_gap_moment(&moment.at))
        })
        .collect();
    put_line(out, format_args!("  GPU {} {HANG}{}", moments[0].device, described.join(", ")));
    for call in moments.iter().filter_map(|moment| moment.at.call.as_ref()) {
        put_line(out, format_args!("  Refused call: {HANG}{}", short_site(&call.site)));
    }
}

/// The unused memory, its causes with their call sites, the pools, and what would fit.
pub(in crate::render::text) fn render_gap(
    out: &mut String,
    moment: &Fragmentation,
    words: &Vocabulary,
    style: Style,
) {
    let share = moment.gap_bytes as f64 / moment.reserved_bytes.max(1) as f64;
    put_line(
        out,
        format_args!(
            "  Unused reserved: {} of {} ({})",
            style.bold(&format_bytes(moment.gap_bytes)),
            format_bytes(moment.reserved_bytes),
            format_percent(share)
        ),
    );
    for cause in &moment.causes {
        render_cause(out, cause, words, style);
    }
    pools::render_pools(out, &moment.pools, words, style);
    pools::render_fit(out, moment, words);
}

/// True if memory that counts as cached may belong to a CUDA graph or a `MemPool`.
fn has_unknown_pools(moment: &Fragmentation, words: &Vocabulary) -> bool {
    let has_cache = moment.causes.iter().any(|cause| cause.cause == CauseKind::Cache);
    let are_known = !moment.pools.is_empty() && moment.pools.iter().all(|row| row.key.pool.is_some());
    has_cache && !are_known && words.reserver == "PyTorch"
}

fn render_cause(out: &mut String, cause: &Cause, words: &Vocabulary, style: Style) {
    let meaning = describe_cause(cause, words);
    let by = if cause.culprits.is_empty() { "" } else { "; by call site:" };
    put_line(out, format_args!("  {}  {HANG}{meaning}{by}", size_column(cause.bytes)));
    let most = style.row_limit(MAX_CULPRITS);
    for culprit in cause.culprits.iter().take(most) {
        put_line(
            out,
            format_args!("      {}  {HANG}{}", size_column(culprit.bytes), short_site(&culprit.site)),
        );
    }
    let (others, rest) = sum_hidden_rows(&cause.culprits, most, cause.omitted, |culprit| culprit.bytes);
    if others > 0 && rest > 0 {
        put_line(out, format_args!("      {}  {HANG}other call sites", size_column(rest)));
    }
}

/// The cause with most bytes in a few words: `mostly pinned by live blocks`. `None` if there is no
/// unused memory.
pub(in crate::render::text) fn summarize_causes(
    moment: &Fragmentation,
    words: &Vocabulary,
) -> Option<String> {
    let largest = moment.causes.iter().max_by_key(|cause| cause.bytes).filter(|cause| cause.bytes > 0)?;
    let share = u128::from(largest.bytes) * 2;
    let amount = if share > u128::from(moment.gap_bytes) { "mostly" } else { "partly" };
    Some(format!("{amount} {}", name_cause(largest.cause, words)))
}
