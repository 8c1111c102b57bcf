//! The verdict on free memory that other streams, CUDA graphs and `MemPool`s keep for themselves.

use std::collections::BTreeSet;

use super::{DeviceCapacity, VerdictDraft};
use crate::device::{DeviceState, TimedGap};
use crate::pass::Analysis;
use crate::report::{GapReason, Severity, VerdictEvidence};
use crate::util::block_totals::saturating_sum;

/// Least share of the reserved bytes, or of the device.
const MATTERS: f64 = 0.05;
/// Fewer bytes are not reported: PyTorch's `kLargeBuffer`, the usual size of one segment.
const MIN_BYTES: u64 = 20 << 20;

/// Stranded bytes at one moment.
struct Stranded {
    why: GapReason,
    reserved: u64,
    on_streams: u64,
    in_private_pools: u64,
    /// Pools that the capture of one CUDA graph created.
    graph_pools: u64,
}

impl Stranded {
    /// Blocks of other sizes in the default pool do not count: no stream, graph or `MemPool` keeps
    /// their segments.
    fn at_moment(why: GapReason, TimedGap { reserved, gap, .. }: &TimedGap) -> Self {
        let private = gap.stranded_pool.pools.iter().filter(|(pool, _)| pool.is_private());
        let of_graphs = gap.groups.iter().map(|group| group.pool).filter(|pool| pool.is_graph());
        let graph_pools: BTreeSet<u64> = of_graphs.map(|pool| pool.pool).collect();
        Self {
            why,
            reserved: *reserved,
            on_streams: gap.stranded_stream.bytes,
            in_private_pools: saturating_sum(private.map(|(_, bytes)| *bytes)),
            graph_pools: graph_pools.len() as u64,
        }
    }

    fn bytes(&self) -> u64 {
        self.on_streams.saturating_add(self.in_private_pools)
    }
}

/// The verdict on the key moment with most stranded bytes.
pub(super) fn stranded_verdict(
    analysis: &Analysis,
    capacity: DeviceCapacity,
    device: &DeviceState,
) -> Option<VerdictDraft> {
    let key_moments = [
        (GapReason::PeakReserved, device.gap_at_peak.as_ref()),
        (GapReason::LargestGap, device.largest_gap.as_ref()),
        (GapReason::LastStep, device.gap_at_last_step.as_ref().filter(|_| analysis.step_source().is_some())),
        (GapReason::End, device.gap_at_end.as_ref()),
    ];
    let moments = key_moments.into_iter().filter_map(|(why, gap)| Some(Stranded::at_moment(why, gap?)));
    // Of equal moments the first.
    let most = moments.reduce(|most, next| if next.bytes() > most.bytes() { next } else { most })?;
    let bytes = most.bytes() as f64;
    let is_relevant = bytes >= MATTERS * most.reserved as f64
        || capacity.bytes > 0 && bytes >= MATTERS * capacity.bytes as f64;
    let evidence = VerdictEvidence::StrandedMemory {
        device: u32::from(capacity.ordinal),
        at: most.why,
        reserved_bytes: most.reserved,
        stream_bytes: most.on_streams,
        private_pool_bytes: most.in_private_pools,
        graph_pools: most.graph_pools,
    };
    (most.bytes() >= MIN_BYTES && is_relevant).then_some((Severity::Info, evidence))
}
