//! One trace of the page, from its history and its report.

use std::collections::HashMap;

use gpumemtrace_replay::report::{Category, GapPoint, Site};
use gpumemtrace_replay::{AllocatorState, BlockHistory, DeviceHistory, KeyframeReason, Report, RunHistory};

use crate::source::SourceReader;

use super::call_tree::CallTree;
use super::columns::Columns;
use super::data::{
    BinColumns, BlockColumns, CauseColumn, DeviceData, GapColumns, KeyframeData, MarkData, NodeColumns,
    PhaseData, PlacedBlockColumns, SegmentColumns, SeriesColumns, SiteColumn, SiteData, StackColumns,
    StepData, TraceData, json_word,
};
use super::groups::groups_of_bins;
use super::labels::Labels;

/// Encodes one trace. `trace` is its index in the report.
pub(super) fn trace_data(
    (trace, report): (usize, &Report),
    history: &RunHistory,
    columns: &mut Columns,
    sources: &mut SourceReader,
) -> TraceData {
    let mut tree = CallTree::default();
    let nodes: Vec<u64> = history.stacks.iter().map(|(site, _)| tree.add_stack(site)).collect();
    let categories = categories_at_peak(trace, report);
    let sites = named_sites(history);
    let labels = Labels::new(&sites);
    let sites = sites.iter().map(|site| SiteData {
        id: site.id.clone(),
        file: site.file.clone(),
        line: site.line,
        function: site.function.clone(),
        module: site.module.clone(),
        is_backward: site.is_backward,
        label: labels.label_of(site),
        source: sources.line_of(site),
        category: categories.get(site.id.as_str()).map(|category| json_word(*category)),
    });
    let info = &report.traces[trace];
    let starts = &history.step_starts_ns;
    let source = history.step_source.filter(|_| !starts.is_empty());
    TraceData {
        path: info.path.clone(),
        rank: info.rank,
        end_ns: history.duration_ns,
        steps: source.map(|source| StepData {
            source: json_word(source),
            count: history.steps,
            // A number that is only nearly right would be worse than none.
            start_ns: columns.add(starts.iter().copied().filter(|_| history.step_distance == 1)),
        }),
        marks: history
            .marks
            .iter()
            .map(|(name, time_ns, step)| MarkData { name: name.clone(), time_ns: *time_ns, step: *step })
            .collect(),
        phases: phases(history, columns),
        sites: sites.collect(),
        devices: history.devices.iter().map(|device| device_data((trace, report), device, columns)).collect(),
        nodes: NodeColumns { parent: columns.add(tree.parents), frame: columns.add(tree.node_frames) },
        stacks: StackColumns {
            node: columns.add(nodes),
            site: columns.add(history.stacks.iter().map(|(_, site)| *site as u64)),
        },
        frames: tree.all_frames,
    }
}

/// The sites with the names that their stacks got when they were symbolized.
pub(super) fn named_sites(history: &RunHistory) -> Vec<&Site> {
    let mut sites: Vec<&Site> = history.sites.iter().collect();
    for (stack, site) in &history.stacks {
        sites[*site] = stack;
    }
    sites
}

/// The category of most bytes of each site at the peak.
fn categories_at_peak(trace: usize, report: &Report) -> HashMap<&str, Category> {
    let peaks = report.peak.iter().flatten().filter(|peak| peak.trace == trace);
    let sites = peaks.flat_map(|peak| &peak.sites);
    let largest = sites.filter_map(|share| {
        let categories = share.categories.as_ref()?;
        let largest = categories.iter().max_by_key(|part| part.bytes)?;
        Some((share.site.id.as_str(), largest.category))
    });
    largest.collect()
}

fn phases(history: &RunHistory, columns: &mut Columns) -> Vec<PhaseData> {
    let mut turns_by_name: Vec<(&str, Vec<(u64, u64)>)> = Vec::new();
    for (name, begin_ns, end_ns) in &history.phase_turns {
        let turn = (*begin_ns, *end_ns);
        match turns_by_name.iter_mut().find(|(other, _)| *other == name.as_str()) {
            Some((_, turns)) => turns.push(turn),
            None => turns_by_name.push((name, vec![turn])),
        }
    }
    let phases = turns_by_name.into_iter().map(|(name, turns)| PhaseData {
        name: name.to_owned(),
        begin_ns: columns.add(turns.iter().map(|(begin_ns, _)| *begin_ns)),
        end_ns: columns.add(turns.iter().map(|(_, end_ns)| *end_ns)),
    });
    phases.collect()
}

fn device_data(
    (trace, report): (usize, &Report),
    device: &DeviceHistory,
    columns: &mut Columns,
) -> DeviceData {
    let ordinal = u32::from(device.ordinal);
    let info = report.devices.iter().find(|one| (one.trace, one.device) == (trace, ordinal));
    let [live_min, live_max, reserved_min, reserved_max, device_min, device_max] =
        std::array::from_fn(|index| columns.add(device.series[index].iter().copied()));
    DeviceData {
        ordinal: device.ordinal,
        name: info.and_then(|info| info.name.clone()),
        total_bytes: info.and_then(|info| info.total_bytes),
        layer: if device.has_torch { "torch" } else { "driver" },
        series: SeriesColumns {
            edges_ns: columns.add(device.series_edges_ns.iter().copied()),
            live_min,
            live_max,
            reserved_min,
            reserved_max,
            device_min,
            device_max,
        },
        bins: bin_columns(device, columns),
        blocks: block_columns(&device.blocks, columns),
        gap: gap_columns(&device.gap, columns),
        keyframes: device.states.iter().map(|state| keyframe(state, columns)).collect(),
    }
}

fn bin_columns(device: &DeviceHistory, columns: &mut Columns) -> BinColumns {
    let mut others = device.bin_live.clone();
    for (_, bytes) in &device.site_series {
        for (other, bytes) in others.iter_mut().zip(bytes) {
            *other = other.saturating_sub(*bytes);
        }
    }
    let sites = device.site_series.iter();
    BinColumns {
        edges_ns: columns.add(device.bins_edges_ns.iter().copied()),
        time_ns: columns.add(device.bin_times_ns.iter().copied()),
        live: columns.add(device.bin_live.iter().copied()),
        sites: sites
            .map(|(site, bytes)| SiteColumn { site: *site, bytes: columns.add(bytes.iter().copied()) })
            .collect(),
        others: columns.add(others),
        other_sites: device.other_sites,
        groups: groups_of_bins(device, columns),
    }
}

fn block_columns(blocks: &BlockHistory, columns: &mut Columns) -> BlockColumns {
    let rows = &blocks.rows;
    BlockColumns {
        edges_ns: columns.add(blocks.edges_ns.iter().copied()),
        bins: blocks.bins,
        birth: columns.add(rows.iter().map(|row| u64::from(row.birth))),
        death: columns.add(rows.iter().map(|row| u64::from(row.death))),
        stack: columns.add(rows.iter().map(|row| u64::from(row.stack))),
        bytes: columns.add(rows.iter().map(|row| row.bytes)),
        count: columns.add(rows.iter().map(|row| row.count)),
    }
}

fn gap_columns(points: &[GapPoint], columns: &mut Columns) -> Option<GapColumns> {
    let first = points.first()?;
    let causes = first.causes.iter().enumerate().map(|(index, (cause, _))| CauseColumn {
        cause: json_word(*cause),
        bytes: columns.add(points.iter().map(|point| point.causes[index].1)),
    });
    let causes = causes.collect();
    Some(GapColumns {
        causes,
        time_ns: columns.add(points.iter().map(|point| point.time_ns)),
        reserved: columns.add(points.iter().map(|point| point.reserved)),
        live: columns.add(points.iter().map(|point| point.live)),
        gap: columns.add(points.iter().map(|point| point.gap)),
    })
}

fn keyframe(state: &AllocatorState, columns: &mut Columns) -> KeyframeData {
    let (segments, blocks) = (&state.segments, || state.blocks());
    KeyframeData {
        time_ns: state.time_ns,
        step: state.step,
        why: match state.why {
            KeyframeReason::Peak => "peak",
            KeyframeReason::PeakReserved => "peak_reserved",
            KeyframeReason::LargestGap => "largest_gap",
            KeyframeReason::End => "end",
            KeyframeReason::OutOfMemory => "oom",
            KeyframeReason::Mark => "mark",
            KeyframeReason::Interval => "interval",
        },
        live_bytes: blocks().fold(0, |sum, (_, bytes, _)| sum.saturating_add(bytes)),
        reserved_bytes: state.reserved,
        segments: (!segments.is_empty()).then(|| SegmentColumns {
            addr: columns.add(segments.iter().map(|one| one.addr)),
            bytes: columns.add(segments.iter().map(|one| one.bytes)),
            stream: columns.add(segments.iter().map(|one| one.stream)),
            pool: columns.add(segments.iter().map(|one| one.pool)),
            is_expandable: columns.add(segments.iter().map(|one| u64::from(one.is_expandable))),
        }),
        blocks: PlacedBlockColumns {
            addr: columns.add(blocks().map(|(addr, ..)| addr)),
            bytes: columns.add(blocks().map(|(_, bytes, _)| bytes)),
            stack: columns.add(blocks().map(|(.., stack)| u64::from(stack))),
        },
    }
}
