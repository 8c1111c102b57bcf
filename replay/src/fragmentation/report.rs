//! What was reserved and not used, as a report has it, and the moments that were asked for.

use gpumemtrace_format::event::NO_POOL;

use crate::callsite::symbols::SiteId;
use crate::fragmentation::{CAUSES, FitForSize, Gap, GapCause, MAX_CULPRITS, PoolKey, PoolTotals};
use crate::pass::Analysis;
use crate::report::{
    AsyncPool, AsyncPoolSample, Cause, FitRow, Fragmentation, FragmentationOverTime, GapMoment, GapSample,
    PinningSite, PoolRow, SiteBytes, SiteShare, Snapshot,
};
use crate::state::async_pools::{AsyncPoolKey, AsyncPoolReading, AsyncPoolState};
use crate::state::device::DeviceState;
use crate::state::device::TimedGap;

/// Every moment of every device.
pub(crate) fn fragmentation(trace: usize, analysis: &Analysis) -> Vec<Fragmentation> {
    let mut all = Vec::new();
    if !analysis.knows_reserved() {
        return all;
    }
    for (ordinal, state) in analysis.visible_devices() {
        let mut add = |why, (time_ns, at_step): (u64, Option<u32>), reserved, gap: &Gap| {
            let time_ns = time_ns.saturating_sub(analysis.start_ns);
            let at =
                GapMoment { time_ns, step: at_step.and_then(|at_step| analysis.reported_step(at_step)), why };
            all.push(moment(trace, analysis, (ordinal, state), at, reserved, gap));
        };
        if let Some(TimedGap { time_ns, reserved, gap }) = &state.gap_at_peak {
            add("peak_reserved", (*time_ns, state.step_at_peak_reserved()), *reserved, gap);
        }
        for record in analysis.ooms.iter().filter(|record| record.event.device == ordinal) {
            let event = &record.event;
            add("oom", (event.time_ns, Some(record.step)), event.aux[1], &record.gap);
        }
        for instant in &analysis.snapshots {
            let here = instant.devices.iter().find(|(device, _)| *device == ordinal);
            if let Some((reserved, gap)) = here.and_then(|(_, at)| Some((at.reserved, at.gap.as_ref()?))) {
                add("at", (instant.time_ns, Some(instant.step)), reserved, gap);
            }
        }
        if let Some(TimedGap { time_ns, reserved, gap }) = &state.gap_at_end {
            add("end", (*time_ns, Some(analysis.steps)), *reserved, gap);
        }
    }
    all
}

fn moment(
    trace: usize,
    analysis: &Analysis,
    (ordinal, state): (u8, &DeviceState),
    at: GapMoment,
    reserved: u64,
    gap: &Gap,
) -> Fragmentation {
    Fragmentation {
        trace,
        device: u32::from(ordinal),
        at,
        reserved_bytes: reserved,
        live_bytes: gap.live,
        requested_bytes: gap.requested,
        gap_bytes: gap.bytes,
        causes: causes(analysis, gap),
        wanted: gap.request.map(pool_info),
        pools: gap.groups.iter().map(pool_row).collect(),
        usable: state.fit_for_sizes(gap).iter().map(usable_size).collect(),
    }
}

fn pool_info(pool: PoolKey) -> crate::report::PoolInfo {
    crate::report::PoolInfo {
        stream: pool.stream,
        pool: (pool.pool != NO_POOL).then_some([pool.pool >> 32, pool.pool & 0xffff_ffff]),
        blocks: if pool.is_small { "small" } else { "large" },
    }
}

fn pool_row(group: &PoolTotals) -> PoolRow {
    PoolRow {
        serves: pool_info(group.pool),
        expandable: group.is_expandable,
        segments: group.segments,
        reserved_bytes: group.reserved,
        allocated_bytes: group.allocated,
        pending_bytes: group.pending,
        free_bytes: group.free,
        releasable_bytes: group.releasable,
        largest_free_bytes: group.largest_free,
    }
}

fn usable_size(usable: &FitForSize) -> FitRow {
    FitRow {
        block_bytes: usable.request.bytes,
        serves: pool_info(usable.request.pool_key()),
        times: usable.times,
        free_bytes: usable.free,
        fit: usable.fit,
    }
}

/// The parts of a gap that are not nothing.
pub(crate) fn causes(analysis: &Analysis, gap: &Gap) -> Vec<Cause> {
    let culprits = |sites: &[(SiteId, u64)]| {
        let named = sites.iter().take(MAX_CULPRITS);
        named
            .map(|(site, bytes)| SiteBytes { site: analysis.symbols.site(*site, None), bytes: *bytes })
            .collect()
    };
    let part = |cause, part: &GapCause| Cause {
        cause,
        bytes: part.bytes,
        culprits: culprits(&part.culprits),
        left_out: None,
    };
    let causes = [
        part("rounding", &gap.rounding),
        part("pending_free", &gap.pending),
        part("stranded_stream", &gap.stranded_stream),
        part("stranded_pool", &gap.stranded_pool),
        part("pinned", &gap.pinned),
        Cause { cause: "cache", bytes: gap.cache, culprits: Vec::new(), left_out: None },
        Cause { cause: "unexplained", bytes: gap.unexplained, culprits: Vec::new(), left_out: None },
    ];
    causes.into_iter().filter(|cause| cause.bytes > 0).collect()
}

/// The gap of each device over the run.
pub(crate) fn over_time(trace: usize, analysis: &Analysis) -> Vec<FragmentationOverTime> {
    let all = analysis.visible_devices().filter(|(_, state)| state.has_torch() && analysis.knows_reserved());
    all.map(|(ordinal, state)| {
        let course = &state.gap_history;
        let look = |look: &crate::fragmentation::history::GapObservation| GapSample {
            time_ns: look.time_ns.saturating_sub(analysis.start_ns),
            step: analysis.reported_step(look.step),
            reserved_bytes: look.reserved,
            live_bytes: look.live,
            gap_bytes: look.gap,
            causes: CAUSES.into_iter().zip(look.causes).filter(|(_, bytes)| *bytes > 0).collect(),
        };
        let span_ns = course.span_ns();
        let keeper = |(site, cost): (SiteId, crate::fragmentation::history::PinnedCost)| PinningSite {
            site: analysis.symbols.site(site, None),
            mean_bytes: cost.byte_ns.checked_div(u128::from(span_ns)).unwrap_or(0) as u64,
            most_bytes: cost.most,
            most_time_ns: cost.most_at_ns.saturating_sub(analysis.start_ns),
            share_of_time: if span_ns == 0 { 0.0 } else { cost.time_ns as f64 / span_ns as f64 },
        };
        FragmentationOverTime {
            trace,
            device: u32::from(ordinal),
            looks: course.taken(),
            span_ns,
            points: course.looks().iter().map(look).collect(),
            kept_by: course.costs().into_iter().take(MAX_CULPRITS).map(keeper).collect(),
            left_out: None,
        }
    })
    .collect()
}

/// The driver's pools.
pub(crate) fn async_pools(trace: usize, analysis: &Analysis) -> Vec<AsyncPool> {
    let answer = |answer: AsyncPoolReading| AsyncPoolSample {
        time_ns: answer.time_ns.saturating_sub(analysis.start_ns),
        reserved_bytes: answer.reserved,
        allocated_bytes: answer.allocated,
        unused_bytes: answer.unused(),
    };
    let row = |((device, handle), pool): (AsyncPoolKey, &AsyncPoolState)| AsyncPool {
        trace,
        device: u32::from(device),
        pool: (handle != 0).then_some(handle),
        allocated_bytes: pool.allocated,
        peak_allocated_bytes: pool.peak_allocated,
        keeps_bytes: pool.release_threshold,
        answers: pool.readings,
        last: pool.last.map(answer),
        worst: pool.worst.map(answer),
    };
    analysis.async_pools.used_pools().map(row).collect()
}

/// Every device at every moment that was asked for; of one that had not been used by then, that nothing was held.
pub(crate) fn instants(trace: usize, analysis: &Analysis) -> Vec<Snapshot> {
    let on_device = |instant: &crate::pass::snapshot_schedule::SnapshotRecord,
                     ordinal: u8,
                     state: &DeviceState| {
        let at = instant.devices.iter().find(|(device, _)| *device == ordinal).map(|(_, at)| at);
        let share = |(id, held): &(SiteId, crate::util::block_totals::BlockTotals)| SiteShare {
            site: analysis.symbols.site(*id, None),
            bytes: held.bytes,
            blocks: held.blocks,
            categories: None,
            phases: None,
        };
        let has_torch = at.map_or(state.has_torch(), |at| at.has_torch);
        Snapshot {
            trace,
            device: u32::from(ordinal),
            asked: instant.spec.to_string(),
            time_ns: instant.time_ns.saturating_sub(analysis.start_ns),
            step: analysis.reported_step(instant.step),
            layer: if has_torch { "torch" } else { "device" },
            live_bytes: has_torch.then(|| at.map_or(0, |at| at.live)),
            reserved_bytes: (has_torch && analysis.knows_reserved()).then(|| at.map_or(0, |at| at.reserved)),
            // Of one stream nobody knows it.
            device_bytes: analysis.stream.is_none().then(|| at.map_or(0, |at| at.device_bytes)),
            sites: at.map_or_else(Vec::new, |at| at.sites.iter().map(share).collect()),
            left_out: None,
        }
    };
    let of =
        |instant| analysis.visible_devices().map(move |(ordinal, state)| on_device(instant, ordinal, state));
    analysis.snapshots.iter().flat_map(of).collect()
}
