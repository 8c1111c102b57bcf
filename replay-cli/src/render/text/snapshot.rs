//! `--at`: what was held at a moment that was asked for.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::Section;
use gpumemtrace_replay::report::GapReason;

use super::sections::{fragmentation, peak};
use crate::terminal::format::{format_duration, format_number, put_line};
use crate::terminal::style::Style;

/// Most sites listed.
const MAX_SITES: usize = 15;

/// All of a trace. What was reserved and unused comes with it unless the section on that is shown.
pub(super) fn render_snapshots(
    out: &mut String,
    report: &Report,
    trace: usize,
    sections: &[Section],
    style: Style,
) {
    let words = crate::render::wording::Vocabulary::of_trace(&report.traces[trace]);
    let gaps =
        report.fragmentation.iter().flatten().filter(|gap| gap.trace == trace && gap.at.why == GapReason::At);
    let gaps = gaps.filter(|_| !sections.contains(&Section::Fragmentation));
    let gaps: Vec<_> = gaps.collect();
    for instant in report.snapshots.iter().flatten().filter(|instant| instant.trace == trace) {
        out.push('\n');
        let step = instant.step.map(|step| format!(", step {}", format_number(step))).unwrap_or_default();
        let title = format!(
            "Device {} at {} ({} in{step})",
            instant.device,
            instant.when,
            format_duration(instant.time_ns)
        );
        put_line(out, format_args!("{}", style.bold(&title)));
        let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        put_line(
            out,
            format_args!(
                "  tensors {}, reserved by {} {}, from {} {}",
                known(instant.live_bytes),
                words.reserver,
                known(instant.reserved_bytes),
                words.source,
                known(instant.device_bytes)
            ),
        );
        let total = instant.live_bytes.or(instant.device_bytes).unwrap_or(0);
        peak::render_site_table(out, &instant.sites, (total, instant.omitted), style.row_limit(MAX_SITES));
        let gap = gaps.iter().find(|gap| gap.device == instant.device && gap.at.time_ns == instant.time_ns);
        if let Some(gap) = gap {
            fragmentation::render_snapshot_gap(out, gap, &words, style);
        }
    }
}
