//! The table of segments, from the exact states of the history.

use gpumemtrace_cli::export::ExportRun;
use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_replay::report::SegmentPlace;
use gpumemtrace_replay::{AllocatorState, KeyframeReason};

use crate::file::cell::Text;
use crate::folder::PartitionFolder;
use crate::tables::segments::SegmentRow;
use crate::tables::{number, saturated};
use crate::walk::MomentEvents;

/// Writes the table `segments`: the moments in the window, by device and time.
pub(crate) fn write_segments(
    run: &ExportRun,
    moments: &MomentEvents,
    folder: &mut PartitionFolder<'_>,
) -> anyhow::Result<()> {
    let mut table = folder.begin::<SegmentRow>()?;
    let (since_ns, until_ns) = run.window.span_ns;
    for device in &run.history.devices {
        for state in device.states.iter().filter(|state| (since_ns..=until_ns).contains(&state.time_ns)) {
            let seq = moments.seq_of(device.ordinal, state.block_events);
            for (segment, allocated_bytes, blocks) in filled_segments(state) {
                table.push(SegmentRow {
                    moment: Text::from_static(moment_name(state.why)),
                    time_ns: saturated(state.time_ns),
                    seq: seq.and_then(number),
                    step: state.step.and_then(number),
                    device: i64::from(device.ordinal),
                    address: number(segment.addr),
                    size_bytes: number(segment.bytes),
                    allocated_bytes: saturated(allocated_bytes),
                    blocks: saturated(blocks),
                    stream: number(segment.stream),
                    pool: number(segment.pool).filter(|_| segment.pool != NO_POOL),
                    is_expandable: segment.is_expandable,
                });
            }
        }
    }
    table.finish()?;
    Ok(())
}

/// Each segment with bytes and number of its live blocks. Segments and blocks are ordered by
/// address. A block may cover several pieces of an expandable segment.
fn filled_segments(state: &AllocatorState) -> impl Iterator<Item = (&SegmentPlace, u64, u64)> {
    let blocks: Vec<(u64, u64)> = state.blocks().map(|(addr, bytes, _)| (addr, bytes)).collect();
    let mut first = 0;
    state.segments.iter().map(move |segment| {
        let end = segment.addr.saturating_add(segment.bytes);
        let (mut bytes, mut count) = (0u64, 0);
        while let Some((addr, size)) = blocks.get(first).filter(|(addr, _)| *addr < end) {
            let block_end = addr.saturating_add(*size);
            let inside = block_end.min(end).saturating_sub((*addr).max(segment.addr));
            bytes = bytes.saturating_add(inside);
            count += u64::from(inside > 0);
            if block_end > end {
                break;
            }
            first += 1;
        }
        (segment, bytes, count)
    })
}

fn moment_name(why: KeyframeReason) -> &'static str {
    match why {
        KeyframeReason::Peak => "peak",
        KeyframeReason::PeakReserved => "peak_reserved",
        KeyframeReason::LargestGap => "largest_gap",
        KeyframeReason::End => "end",
        KeyframeReason::OutOfMemory => "oom",
        KeyframeReason::Mark => "mark",
        KeyframeReason::Interval => "interval",
    }
}
