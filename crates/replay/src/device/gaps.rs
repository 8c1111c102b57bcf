//! Explains the gap of a device: at any moment while events are read, and at the key moments when
//! they end.

use std::collections::BTreeMap;

use super::DeviceState;
use crate::device::keyframes::KeyframeReason;
use crate::event_analysis::EventTime;
use crate::fragmentation::gap_schedule::DueObservation;
use crate::fragmentation::{
    AllocatorSnapshot, FitForSize, Gap, PastMoment, PastState, PresentState, explain_gap, fit_for_sizes,
    ranges_of_device, units_by_stacks,
};
use crate::state::driver::{DriverState, MemoryRange};
use crate::state::live_set::{LiveBlock, StateSample};
use crate::state::pool_key::PoolKey;
use crate::util::ids::{SiteId, StackId};

/// The moment for which a gap is explained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapRequest {
    pub time_ns: u64,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// The pool that lacks memory, if known.
    pub pool: Option<PoolKey>,
    /// A request of the pool failed.
    pub has_failed: bool,
}

/// The gap at one moment.
#[derive(Debug)]
pub(crate) struct TimedGap {
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    pub gap: Gap,
}

impl DeviceState {
    /// Explains the gap in the present state. Visits every live block.
    pub(crate) fn explain_gap(
        &mut self,
        request: GapRequest,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
        site: impl Fn(StackId) -> SiteId,
    ) -> Gap {
        self.torch.sort_live();
        explain_gap(&self.snapshot(request, ranges, ordinal), &self.torch_ranges, site)
    }

    /// Bytes of segments, and of pages of expandable ones, by the stacks of the blocks in them.
    /// `None` if segments are unknown. Visits every live block.
    pub(crate) fn units_by_stacks(
        &mut self,
        request: GapRequest,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
    ) -> Option<BTreeMap<Vec<StackId>, u64>> {
        self.torch.sort_live();
        units_by_stacks(&self.snapshot(request, ranges, ordinal), &self.torch_ranges)
    }

    /// The present state of the allocator. The live blocks of `torch` must be sorted.
    fn snapshot(
        &self,
        request: GapRequest,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
    ) -> AllocatorSnapshot<'_> {
        AllocatorSnapshot {
            time_ns: request.time_ns,
            block_events: self.torch.events,
            reserved: request.reserved,
            request: request.pool,
            has_failed: request.has_failed,
            blocks: self.torch.sorted_live().into(),
            pending: self.pending.iter().map(|(addr, pending)| (*addr, pending.block)).collect(),
            segments: self.segments.iter().copied().collect(),
            ranges: ranges_of_device(ranges, ordinal),
        }
    }

    /// Keeps the present state for viewers, if the options ask for it and there is room.
    pub(crate) fn keep_state(
        &mut self,
        why: KeyframeReason,
        time: EventTime,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
    ) {
        let (is_torch, blocks) = (!self.torch.is_empty(), self.torch.total().blocks);
        let Some(mut keyframes) = self.keyframes.take() else { return };
        if is_torch && keyframes.take_room(why, blocks) {
            let request =
                GapRequest { time_ns: time.time_ns, reserved: self.reserved, pool: None, has_failed: false };
            self.torch.sort_live();
            keyframes.add_moment(why, self.snapshot(request, ranges, ordinal), time.step);
        }
        self.keyframes = Some(keyframes);
    }

    /// How many requests of each common size the free pieces of a gap could serve.
    pub(crate) fn fit_for_sizes(&self, gap: &Gap) -> Vec<FitForSize> {
        fit_for_sizes(gap, &self.requests)
    }

    /// The pool with the most requested bytes so far.
    pub(crate) fn most_requested_pool(&self) -> Option<PoolKey> {
        self.requests.most_requested_pool()
    }

    /// Number of blocks and ranges that an observation of the gap visits; 0 without PyTorch.
    pub(crate) fn count_gap_visits(&self, ranges: &BTreeMap<u64, MemoryRange>) -> u64 {
        let pieces = (self.pending.len() + ranges.len()) as u64;
        if self.torch.is_empty() { 0 } else { self.torch.total().blocks.saturating_add(pieces) }
    }

    /// Adds the present gap to the history if it is to be kept, and drops what is not any more.
    pub(crate) fn observe_gap(
        &mut self,
        due: DueObservation,
        time: EventTime,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
        site: impl Fn(StackId) -> SiteId,
    ) {
        let EventTime { time_ns, step } = time;
        self.gap_history.set_stride(due.stride, due.is_limited);
        self.keyframes.iter_mut().for_each(|keyframes| keyframes.set_stride(due.stride));
        if self.torch.is_empty() || !due.is_kept {
            return;
        }
        let request = GapRequest {
            time_ns,
            reserved: self.reserved,
            pool: self.most_requested_pool(),
            has_failed: false,
        };
        self.torch.sort_live();
        let mut keyframes = self.keyframes.take();
        let snapshot = self.snapshot(request, ranges, ordinal);
        let gap = explain_gap(&snapshot, &self.torch_ranges, site);
        if let Some(keyframes) = &mut keyframes {
            keyframes.add_interval(due.event, snapshot, step);
        }
        self.keyframes = keyframes;
        self.gap_history.observe(due.event, (time_ns, step), self.reserved, &gap);
    }

    /// The present moment, from which a past state can be reconstructed later.
    #[inline]
    pub(super) fn present_moment(&self, now: StateSample, driver: &DriverState) -> PastMoment {
        PastMoment {
            reserved: self.reserved,
            time_ns: now.time_ns,
            step: now.step,
            request: None,
            newest_block: self.torch.events,
            newest_range: driver.ranges_created(),
            newest_segment: self.segments.created(),
        }
    }

    /// Completes deferred updates and explains the gaps at the key moments. The end of the program
    /// is set.
    pub(crate) fn finish(
        &mut self,
        ordinal: u8,
        ranges: &BTreeMap<u64, MemoryRange>,
        time_ns: u64,
        site: impl Fn(StackId) -> SiteId,
    ) {
        let segments = &self.segments;
        let pool_of = |addr: u64, block: &LiveBlock| Some(PoolKey::of_block(segments.at(addr)?, block.bytes));
        self.torch.finish(pool_of);
        self.driver.finish(|_, _| None);
        if self.torch.is_empty() {
            return;
        }
        self.torch.sort_live();
        let mut keyframes = self.keyframes.take();
        let present = PresentState {
            live: self.torch.sorted_live(),
            pending: &self.pending,
            segments: &self.segments,
            ranges,
            device: ordinal,
        };
        let explain_snapshot =
            |snapshot: AllocatorSnapshot<'_>, state: &PastState, request: Option<PoolKey>| {
                let gap = explain_gap(&AllocatorSnapshot { request, ..snapshot }, &self.torch_ranges, &site);
                let moment = state.moment();
                TimedGap { time_ns: snapshot.time_ns, step: moment.step, reserved: moment.reserved, gap }
            };
        let explain = |state: &PastState, request: Option<PoolKey>| {
            explain_snapshot(state.snapshot(present), state, request)
        };
        let peak = self.moments.peak_reserved();
        let request = self.most_requested_pool();
        let gap_at_peak = explain(peak, peak.moment().request);
        let largest_gap = self.moments.largest_gap().map(|state| explain(state, request));
        let gap_at_last_step = self.moments.last_step().map(|state| explain(state, request));
        let gap_at_end = explain_snapshot(self.end_snapshot(present), self.moments.end(), request);
        if let Some(keyframes) = &mut keyframes {
            // One after the other: a snapshot is larger than what is kept of it.
            let mut add = |why, state: &PastState| {
                keyframes.add_key_moment(why, state.snapshot(present), state.moment().step);
            };
            add(KeyframeReason::PeakReserved, peak);
            self.moments.peak_live().into_iter().for_each(|state| add(KeyframeReason::Peak, state));
            self.moments.largest_gap().into_iter().for_each(|state| add(KeyframeReason::LargestGap, state));
            let step = self.moments.end().moment().step;
            keyframes.add_key_moment(KeyframeReason::End, self.end_snapshot(present), step);
            keyframes.sort();
        }
        self.keyframes = keyframes;
        self.gap_at_peak = Some(gap_at_peak);
        self.largest_gap = largest_gap;
        self.gap_at_last_step = gap_at_last_step;
        self.gap_at_end = Some(gap_at_end);
        self.gap_history.finish(time_ns);
    }
}
