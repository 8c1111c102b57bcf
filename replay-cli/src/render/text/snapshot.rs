//! `--at`: what was allocated at a requested moment.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::GapReason;
use gpumemtrace_replay::{Report, Section, TimeSpec};

use super::sections::{fragmentation, peak};
use crate::render::wording::Vocabulary;
use crate::render::wording::moment::format_moment;
use crate::render::wording::recording::describe_end_moment;
use crate::terminal::format::put_line;
use crate::terminal::style::Style;

/// Most call sites listed.
const MAX_SITES: usize = 15;

/// All snapshots of a trace. Each includes its fragmentation, unless that section is printed too.
pub(super) fn render_snapshots(
    out: &mut String,
    report: &Report,
    trace: usize,
    sections: &[Section],
    style: Style,
) {
    let words = Vocabulary::of_trace(&report.traces[trace]);
    let gaps = report.fragmentation.iter().flatten().filter(|gap| gap.trace == trace);
    let gaps: Vec<_> = gaps.filter(|_| !sections.contains(&Section::Fragmentation)).collect();
    let [peak, end] = [TimeSpec::Peak, TimeSpec::End].map(|when| when.to_string());
    for snapshot in report.snapshots.iter().flatten().filter(|snapshot| snapshot.trace == trace) {
        out.push('\n');
        let is_end = snapshot.when == end;
        let mut moment = format_moment(&words, snapshot.time_ns, snapshot.step);
        let device = report.devices.iter().find(|one| (one.trace, one.device) == (trace, snapshot.device));
        if let Some(device) = device.filter(|_| is_end) {
            moment = format!("{}; {moment}", describe_end_moment(device.end.moment));
        }
        let title = format!("GPU {} at {} ({moment})", snapshot.device, snapshot.when);
        put_line(out, format_args!("{}", style.bold(&title)));
        let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        put_line(
            out,
            format_args!(
                "  allocated {}, {} {}, {} {}",
                known(snapshot.live_bytes),
                words.reserved_row,
                known(snapshot.reserved_bytes),
                words.source_short,
                known(snapshot.device_bytes)
            ),
        );
        let total = snapshot.live_bytes.or(snapshot.device_bytes).unwrap_or(0);
        let most = style.row_limit(MAX_SITES);
        peak::render_site_table(out, &snapshot.sites, (total, snapshot.omitted), most);
        let why = if is_end { GapReason::End } else { GapReason::At };
        let gap = gaps
            .iter()
            .find(|gap| (gap.device, gap.at.time_ns, gap.at.why) == (snapshot.device, snapshot.time_ns, why));
        if let Some(gap) = gap.filter(|_| snapshot.when != peak) {
            fragmentation::render_gap(out, gap, &words, style);
        }
    }
}
