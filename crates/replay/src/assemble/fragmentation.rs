//! From gaps, driver pools and snapshots to their sections of the report.

use gpumemtrace_format::event::NO_POOL;

use crate::device::{DeviceState, TimedGap};
use crate::fragmentation::{CAUSES, FitForSize, Gap, GapCause, MAX_CULPRITS, PoolTotals};
use crate::pass::{Analysis, FailedCallRecord};
use crate::report::{
    AsyncPool, AsyncPoolSample, Cause, CauseKind, FailedCall, FitRow, Fragmentation, FragmentationOverTime,
    GapMoment, GapReason, GapSample, MemoryLayer, PinningSite, PoolBlocks, PoolBytes, PoolInfo, PoolMemory,
    PoolRow, SiteBytes, SiteShare, Snapshot,
};
use crate::state::async_pools::{AsyncPoolKey, AsyncPoolReading, AsyncPoolState, AsyncPools};
use crate::state::driver::MemoryPlace;
use crate::state::pool_key::PoolKey;
use crate::util::ids::SiteId;

/// The gaps of all described moments, by device.
pub(crate) fn fragmentation(trace: usize, analysis: &Analysis) -> Vec<Fragmentation> {
    let mut all = Vec::new();
    if !analysis.knows_reserved() {
        return all;
    }
    for (ordinal, state) in analysis.visible_devices() {
        let mut add = |why, call, (time_ns, step): (u64, u32), reserved, gap: &Gap| {
            let time_ns = time_ns.saturating_sub(analysis.start_ns);
            let at = GapMoment { time_ns, step: analysis.reported_step(step), why, call };
            all.push(moment(trace, analysis, (ordinal, state), at, reserved, gap));
        };
        let at_last_step = state.gap_at_last_step.as_ref().filter(|_| analysis.step_source().is_some());
        let key_moments = [
            (GapReason::PeakReserved, state.gap_at_peak.as_ref()),
            (GapReason::LargestGap, state.largest_gap.as_ref()),
            (GapReason::LastStep, at_last_step),
        ];
        for (why, gap) in key_moments {
            if let Some(TimedGap { time_ns, step, reserved, gap }) = gap {
                add(why, None, (*time_ns, *step), *reserved, gap);
            }
        }
        for record in analysis.ooms.iter().filter(|record| record.event.device == ordinal) {
            let event = &record.event;
            add(GapReason::Oom, None, (event.time_ns, record.step), event.aux[1], &record.gap);
        }
        for record in analysis.failed_call_gaps.iter().filter(|record| record.device == ordinal) {
            let TimedGap { time_ns, step, reserved, gap } = &record.gap;
            let call = failed_call(analysis, record);
            add(GapReason::FailedCall, Some(call), (*time_ns, *step), *reserved, gap);
        }
        for snapshot in &analysis.snapshots {
            let here = snapshot.devices.iter().find(|(device, _)| *device == ordinal);
            if let Some((reserved, gap)) = here.and_then(|(_, at)| Some((at.reserved, at.gap.as_ref()?))) {
                add(GapReason::At, None, (snapshot.time.time_ns, snapshot.time.step), reserved, gap);
            }
        }
        if let Some(TimedGap { reserved, gap, .. }) = &state.gap_at_end {
            let end = analysis.end.time;
            add(GapReason::End, None, (end.time_ns, end.step), *reserved, gap);
        }
    }
    all
}

fn failed_call(analysis: &Analysis, record: &FailedCallRecord) -> FailedCall {
    let symbols = &analysis.symbols;
    FailedCall {
        owner: record.owner.clone(),
        requested_bytes: record.requested_bytes,
        site: symbols.site(symbols.stack_info(record.stack).site, Some(record.stack)),
    }
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
        request: gap.request.map(pool_info),
        pools: gap.groups.iter().map(pool_row).collect(),
        common_sizes: state.fit_for_sizes(gap).iter().map(fit_row).collect(),
    }
}

pub(super) fn pool_info(pool: PoolKey) -> PoolInfo {
    PoolInfo {
        stream: pool.stream,
        pool: (pool.pool != NO_POOL).then_some([pool.pool >> 32, pool.pool & 0xffff_ffff]),
        blocks: if pool.is_small { PoolBlocks::Small } else { PoolBlocks::Large },
    }
}

fn pool_row(group: &PoolTotals) -> PoolRow {
    PoolRow {
        key: pool_info(group.pool),
        is_expandable: group.is_expandable,
        segments: group.segments,
        reserved_bytes: group.reserved,
        allocated_bytes: group.allocated,
        pending_bytes: group.pending,
        free_bytes: group.free,
        releasable_bytes: group.releasable,
        largest_free_bytes: group.largest_free,
    }
}

fn fit_row(size: &FitForSize) -> FitRow {
    FitRow {
        block_bytes: size.request.bytes,
        key: pool_info(size.request.pool_key()),
        requests: size.times,
        free_bytes: size.free,
        fitting_blocks: size.fit,
    }
}

/// The causes of a gap with their call sites, without causes of 0 bytes.
pub(crate) fn causes(analysis: &Analysis, gap: &Gap) -> Vec<Cause> {
    let culprits = |sites: &[(SiteId, u64)]| {
        let named = sites.iter().take(MAX_CULPRITS);
        named
            .map(|(site, bytes)| SiteBytes { site: analysis.symbols.site(*site, None), bytes: *bytes })
            .collect()
    };
    let in_pools = |pools: &[(PoolKey, u64)]| {
        pools.iter().map(|(pool, bytes)| PoolBytes { key: pool_info(*pool), bytes: *bytes }).collect()
    };
    let part = |cause, part: &GapCause| Cause {
        cause,
        bytes: part.bytes,
        culprits: culprits(&part.culprits),
        pools: Vec::new(),
        omitted: None,
    };
    let stranded =
        |cause, stranded: &GapCause| Cause { pools: in_pools(&stranded.pools), ..part(cause, stranded) };
    // The segments of a private pool are pinned by the pool itself, too.
    let private = gap.pinned.pools.iter().filter(|(pool, _)| pool.is_private()).copied();
    let pools = in_pools(&private.collect::<Vec<_>>());
    let pinned = Cause { pools, ..part(CauseKind::Pinned, &gap.pinned) };
    let without_sites = |cause, bytes| part(cause, &GapCause { bytes, ..GapCause::default() });
    let causes = [
        part(CauseKind::Rounding, &gap.rounding),
        part(CauseKind::PendingFree, &gap.pending),
        stranded(CauseKind::StrandedStream, &gap.stranded_stream),
        stranded(CauseKind::StrandedPool, &gap.stranded_pool),
        pinned,
        without_sites(CauseKind::Cache, gap.cache),
        without_sites(CauseKind::Unexplained, gap.unexplained),
    ];
    causes.into_iter().filter(|cause| cause.bytes > 0).collect()
}

/// The gap of each device over the run.
pub(crate) fn over_time(trace: usize, analysis: &Analysis) -> Vec<FragmentationOverTime> {
    let all = analysis.visible_devices().filter(|(_, state)| state.has_torch() && analysis.knows_reserved());
    all.map(|(ordinal, state)| {
        let history = &state.gap_history;
        let sample = |one: &crate::fragmentation::history::GapObservation| GapSample {
            time_ns: one.time_ns.saturating_sub(analysis.start_ns),
            step: analysis.reported_step(one.step),
            reserved_bytes: one.reserved,
            live_bytes: one.live,
            gap_bytes: one.gap,
            causes: CAUSES.into_iter().zip(one.causes).filter(|(_, bytes)| *bytes > 0).collect(),
        };
        let span_ns = history.span_ns();
        let pinning_site = |(site, cost): (SiteId, crate::fragmentation::history::PinnedCost)| PinningSite {
            site: analysis.symbols.site(site, None),
            mean_bytes: cost.byte_ns.checked_div(u128::from(span_ns)).unwrap_or(0) as u64,
            most_bytes: cost.peak_bytes,
            most_time_ns: cost.peak_time_ns.saturating_sub(analysis.start_ns),
            share_of_time: if span_ns == 0 { 0.0 } else { cost.time_ns as f64 / span_ns as f64 },
        };
        FragmentationOverTime {
            trace,
            device: u32::from(ordinal),
            observations: history.count(),
            events_between_points: history.stride(),
            is_limited_by_blocks: history.is_limited(),
            span_ns,
            points: history.observations().iter().map(sample).collect(),
            pinned_by: history.costs().into_iter().take(MAX_CULPRITS).map(pinning_site).collect(),
            omitted: None,
        }
    })
    .collect()
}

/// The memory pools of the driver.
pub(crate) fn async_pools(trace: usize, analysis: &Analysis) -> Vec<AsyncPool> {
    let sample = |reading: AsyncPoolReading| AsyncPoolSample {
        time_ns: reading.time_ns.saturating_sub(analysis.start_ns),
        reserved_bytes: reading.reserved,
        allocated_bytes: reading.allocated,
        unused_bytes: reading.unused(),
    };
    let row = |((place, handle), pool): (AsyncPoolKey, &AsyncPoolState)| AsyncPool {
        trace,
        device: match place {
            MemoryPlace::Device(device) => Some(u32::from(device)),
            _ => None,
        },
        memory: match place {
            MemoryPlace::Host => PoolMemory::Host,
            MemoryPlace::Managed => PoolMemory::Managed,
            _ => PoolMemory::Device,
        },
        pool: (handle != 0).then_some(handle),
        allocated_bytes: pool.allocated,
        peak_allocated_bytes: pool.peak_allocated,
        release_threshold_bytes: pool.release_threshold,
        samples: pool.readings,
        last: pool.last.map(sample),
        most_unused: pool.worst.map(sample),
    };
    analysis.analyses.find::<AsyncPools>().into_iter().flat_map(AsyncPools::used_pools).map(row).collect()
}

/// Every device at every requested moment; a device that was unused by then has 0 bytes.
pub(crate) fn snapshots(trace: usize, analysis: &Analysis) -> Vec<Snapshot> {
    let on_device = |record: &crate::pass::snapshot_schedule::SnapshotRecord,
                     ordinal: u8,
                     state: &DeviceState| {
        let at = record.devices.iter().find(|(device, _)| *device == ordinal).map(|(_, at)| at);
        let share = |(id, held): &(SiteId, crate::util::block_totals::BlockTotals)| SiteShare {
            site: analysis.symbols.site(*id, None),
            bytes: held.bytes,
            blocks: held.blocks,
            categories: None,
            phases: None,
        };
        let time = at.map_or(record.time, |at| at.time);
        let has_torch = at.map_or(state.has_torch(), |at| at.has_torch);
        Snapshot {
            trace,
            device: u32::from(ordinal),
            when: record.spec.to_string(),
            time_ns: time.time_ns.saturating_sub(analysis.start_ns),
            step: analysis.reported_step(time.step),
            layer: if has_torch { MemoryLayer::Torch } else { MemoryLayer::Device },
            live_bytes: has_torch.then(|| at.map_or(0, |at| at.live)),
            reserved_bytes: (has_torch && analysis.knows_reserved()).then(|| at.map_or(0, |at| at.reserved)),
            // Driver memory belongs to no stream.
            device_bytes: analysis.stream.is_none().then(|| at.map_or(0, |at| at.device_bytes)),
            sites: at.map_or_else(Vec::new, |at| at.sites.iter().map(share).collect()),
            omitted: None,
        }
    };
    let of =
        |record| analysis.visible_devices().map(move |(ordinal, state)| on_device(record, ordinal, state));
    analysis.snapshots.iter().flat_map(of).collect()
}
