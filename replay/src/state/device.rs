//! One device while a trace is read: its two layers, and what is remembered of its allocator's worst moments.
//!
//! Layers are never summed: PyTorch's blocks lie inside memory that the driver has given out.

use std::collections::BTreeMap;

use gpumemtrace_format::event::FLAG_FREED_AT_ONCE;
use gpumemtrace_format::{Event, EventKind};

use crate::callsite::symbols::{SiteId, StackId};
use crate::fragmentation::history::GapHistory;
use crate::fragmentation::{
    AllocatorSnapshot, FitForSize, Gap, PendingFree, PoolKey, ReservedPeak, ReservedPeakState, TorchRanges,
    explain_gap, fit_for_sizes, ranges_of_device,
};
use crate::state::attribution::{DeviceAttribution, TorchLevels};
use crate::state::driver::{DriverState, MemoryRange, space};
use crate::state::live_set::{LiveSet, StateSample};
use crate::state::request_histogram::{BlockRequest, RequestHistogram};
use crate::state::segments::Segments;
use crate::state::unused_reserved::UnusedReserved;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Slots of the cache of segments that were just used.
const RECENT: usize = 64;
/// A slot that holds nothing: no address lies in it.
const NO_RANGE: (u64, u64) = (1, 0);

/// Bytes of a device at the peak of its reserved bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedPeakLevels {
    /// Reserved by PyTorch.
    pub reserved: u64,
    /// Handed out by the driver.
    pub device: u64,
}

/// An event whose running total differs from the sum of live blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TotalMismatch {
    /// Sequence number of the event.
    pub seq: u64,
    /// Sum of the live blocks.
    pub sum_bytes: u64,
    /// Total that PyTorch reported.
    pub torch_bytes: u64,
}

/// A device.
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    /// Blocks of PyTorch's allocator.
    pub torch: LiveSet,
    /// Physical memory given out by the driver.
    pub driver: LiveSet,
    /// Who holds the driver's memory, and what no call shows.
    pub attribution: DeviceAttribution,
    /// PyTorch's reserved bytes, as of its last event, or of its last segment where the tracker tells them all.
    pub reserved: u64,
    /// Levels at the peak of reserved bytes.
    pub reserved_peak: ReservedPeakLevels,
    /// The highest device bytes.
    pub peak_device: u64,
    /// Events whose running total differs from the sum of live blocks.
    pub total_mismatches: u64,
    /// The first of them.
    pub first_mismatch: Option<TotalMismatch>,
    /// Events at which the segments that PyTorch's tracker told do not sum to what PyTorch had reserved.
    pub segment_mismatches: u64,
    /// What is reserved and not used, at step ends.
    pub unused: UnusedReserved,
    segments: Segments,
    /// Stacks of the driver's book that asked for what became a segment.
    requested_segments: SeededSet<StackId>,
    /// Blocks requested back that another stream still uses.
    pending: SeededMap<u64, PendingFree>,
    peak_state: ReservedPeakState,
    touched: TorchRanges,
    recent: Vec<(u64, u64)>,
    requests: RequestHistogram,
    /// The gap at the peak of reserved bytes, with its time.
    pub gap_at_peak: Option<(u64, u64, Gap)>,
    /// The gap at the end.
    pub gap_at_end: Option<(u64, u64, Gap)>,
    /// The gap over the whole run.
    pub gap_history: GapHistory,
}

impl DeviceState {
    /// What is counted as live here: PyTorch's blocks, or driver memory where there is no PyTorch.
    pub(crate) fn main(&self) -> &LiveSet {
        if self.torch.is_empty() { &self.driver } else { &self.torch }
    }

    /// True where PyTorch's allocator was seen.
    pub(crate) fn has_torch(&self) -> bool {
        !self.torch.is_empty()
    }
}

impl DeviceState {
    /// A device that appears when this many steps have ended, in a run that lasts so long (0: not known).
    pub(crate) fn at_step(step: u32, span_ns: u64) -> Self {
        Self {
            torch: LiveSet::at_step(step, span_ns),
            driver: LiveSet::at_step(step, span_ns),
            recent: vec![NO_RANGE; RECENT],
            ..Self::default()
        }
    }

    /// Of which steps before this one are not told.
    pub(super) fn starting_at_step(mut self, first: u32) -> Self {
        self.torch.first_step = first;
        self.driver.first_step = first;
        self
    }

    fn now(&mut self, event: &Event, time_ns: u64, step: u32) -> StateSample {
        self.reserved = event.aux[1];
        StateSample { time_ns, step, reserved: self.reserved, device: self.driver.total().bytes }
    }

    /// PyTorch hands out a block.
    #[inline]
    pub(crate) fn block_alloc(
        &mut self,
        event: &Event,
        (stack, site): (StackId, SiteId),
        (time_ns, step): (u64, u32),
        driver: &DriverState,
    ) {
        let now = self.now(event, time_ns, step);
        let requested_bytes = event.detail.map(|detail| detail.requested_bytes);
        if let Some(detail) = event.detail {
            self.unused.on_block_alloc((detail.stream, detail.pool), event.size);
            self.requests.count(BlockRequest { bytes: event.size, stream: detail.stream, pool: detail.pool });
        }
        if let Some(lost) = self.torch.alloc(event.addr, (event.size, requested_bytes), stack, site, now) {
            self.peak_state.keep_removed_block(event.addr, lost);
        }
        self.touch(event.addr, event.size, driver.ranges());
        self.after_block(event, now, driver);
    }

    /// PyTorch gets a block back.
    #[inline]
    pub(crate) fn block_free(
        &mut self,
        event: &Event,
        by: (StackId, SiteId),
        (time_ns, step): (u64, u32),
        driver: &DriverState,
    ) {
        let now = self.now(event, time_ns, step);
        if let Some(block) = self.torch.free(event.addr, by, now) {
            // One that came before PyTorch's tracker was attached was not counted.
            if let (Some(_), Some(detail)) = (block.requested_bytes, event.detail) {
                self.unused.on_block_free((detail.stream, detail.pool), block.bytes);
            }
            self.peak_state.keep_removed_block(event.addr, block);
            if event.detail.is_some() && event.flags & FLAG_FREED_AT_ONCE == 0 {
                self.pending.insert(event.addr, PendingFree { block, since: self.torch.events });
            }
        }
        self.after_block(event, now, driver);
    }

    /// True of a stack of the driver's book from which memory was taken that is a segment at the same address.
    pub(crate) fn requested_segments(&self, stack: StackId) -> bool {
        self.requested_segments.contains(&stack)
    }

    /// A step begins: the one before it ends with the state as it is.
    pub(crate) fn step_boundary(&mut self) {
        let step = self.torch.steps_ended();
        let (live, device) = (self.torch.total().bytes, self.driver.total().bytes);
        self.unused.step_boundary(step, self.reserved, live, device);
        self.torch.step_boundary();
        self.driver.step_boundary();
    }

    /// PyTorch's tracker told something that is not of a block that is handed out.
    pub(crate) fn tracked(&mut self, event: &Event, stack: StackId, (time_ns, step): (u64, u32)) {
        self.unused.segment(event, stack, step);
        if event.kind == EventKind::SEGMENT_ALLOC
            && let Some(memory) = self.driver.live().get(space::key(space::ADDRESS, event.addr))
        {
            self.requested_segments.insert(memory.stack);
        }
        if event.kind == EventKind::BLOCK_FREE_COMPLETED
            && let Some(pending) = self.pending.remove(&event.addr)
        {
            self.peak_state.keep_removed_pending(event.addr, pending);
        }
        // Where the segments were all there is, they still are, although PyTorch tells its sum only with the next block.
        let are_all = self.segments.bytes() == self.reserved;
        for segment in self.segments.event(event, stack) {
            self.peak_state.keep_removed_segment(segment);
        }
        if are_all && self.reserved != self.segments.bytes() {
            self.reserved = self.segments.bytes();
            let device = self.driver.total().bytes;
            self.torch.observe(StateSample { time_ns, step, reserved: self.reserved, device });
        }
    }

    /// Driver ranges, of whichever device, came or went; these are gone.
    pub(crate) fn ranges_changed(&mut self, removed: &[MemoryRange]) {
        self.recent.fill(NO_RANGE);
        for range in removed {
            self.peak_state.keep_removed_range(*range);
        }
    }

    /// The gap at this moment, for who wants memory for this.
    pub(crate) fn gap(
        &self,
        (time_ns, reserved, request): (u64, u64, Option<PoolKey>),
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
        site: impl Fn(StackId) -> SiteId,
    ) -> Gap {
        let snapshot = AllocatorSnapshot {
            time_ns,
            reserved,
            request,
            blocks: self.torch.live().iter().map(|(addr, block)| (addr, *block)).collect(),
            pending: self.pending.iter().map(|(addr, pending)| (*addr, pending.block)).collect(),
            segments: self.segments.iter().copied().collect(),
            ranges: ranges_of_device(ranges, ordinal),
        };
        explain_gap(&snapshot, &self.touched, site)
    }

    /// What the free pieces of a moment are good for, by the sizes that were asked for.
    pub(crate) fn fit_for_sizes(&self, gap: &Gap) -> Vec<FitForSize> {
        fit_for_sizes(gap, &self.requests)
    }

    /// Steps begun when most was reserved.
    pub(crate) fn step_at_peak_reserved(&self) -> Option<u32> {
        self.gap_at_peak.as_ref().map(|_| self.peak_state.step())
    }

    /// What most bytes were asked for so far.
    pub(crate) fn most_requested_pool(&self) -> Option<PoolKey> {
        self.requests.main()
    }

    /// Takes a look at the gap, if there are not too many blocks for that.
    pub(crate) fn observe_gap(
        &mut self,
        (time_ns, step): (u64, u32),
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
        site: impl Fn(StackId) -> SiteId,
    ) {
        let pieces = self.pending.len() + ranges.len();
        let blocks = self.torch.total().blocks.saturating_add(pieces as u64);
        if self.torch.is_empty() || !self.gap_history.may_observe(blocks, self.torch.events) {
            return;
        }
        let gap = self.gap((time_ns, self.reserved, self.most_requested_pool()), ranges, ordinal, site);
        self.gap_history.observe((time_ns, step), self.reserved, blocks, &gap);
    }

    /// Remembers which driver ranges PyTorch's allocator puts blocks in.
    #[inline]
    fn touch(&mut self, addr: u64, bytes: u64, ranges: &BTreeMap<u64, MemoryRange>) {
        let end = addr.saturating_add(bytes);
        let slot = (addr >> 21) as usize % RECENT;
        let (begin, known_end) = self.recent[slot];
        if addr >= begin && end <= known_end {
            return;
        }
        let Some((_, first)) = ranges.range(..=addr).next_back() else { return };
        if addr >= first.addr.saturating_add(first.bytes) {
            return;
        }
        self.recent[slot] = (first.addr, first.addr.saturating_add(first.bytes));
        for (begin, _) in ranges.range(first.addr..end.max(first.addr + 1)) {
            self.touched.insert(*begin);
        }
    }

    #[inline]
    fn after_block(&mut self, event: &Event, now: StateSample, driver: &DriverState) {
        let sum = self.torch.total().bytes;
        if sum != event.aux[0] {
            self.total_mismatches += 1;
            self.first_mismatch.get_or_insert(TotalMismatch {
                seq: event.seq,
                sum_bytes: sum,
                torch_bytes: event.aux[0],
            });
        }
        if event.detail.is_some() && self.segments.bytes() != self.reserved {
            self.segment_mismatches += 1;
        }
        self.attribution.torch(TorchLevels { reserved: self.reserved, live: sum });
        if self.reserved > self.peak_state.reserved() {
            self.peak_state.set_peak(ReservedPeak {
                reserved: self.reserved,
                time_ns: now.time_ns,
                step: now.step,
                request: event.detail.map(|detail| PoolKey::of_request(detail, event.size)),
                newest_block: self.torch.events,
                newest_range: driver.ranges_born(),
                newest_segment: self.segments.born(),
            });
            self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device: now.device };
        }
    }

    /// What comes from here on is all there is ([`LiveSet::restart`]); what is held counts.
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, rest_ns: u64, driver: &DriverState) {
        self.torch.restart(time_ns, rest_ns);
        self.driver.restart(time_ns, rest_ns);
        let device = self.driver.total().bytes;
        self.peak_device = device;
        self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device };
        self.peak_state.set_peak(ReservedPeak {
            reserved: self.reserved,
            time_ns,
            step: self.torch.steps_ended(),
            request: None,
            newest_block: self.torch.events,
            newest_range: driver.ranges_born(),
            newest_segment: self.segments.born(),
        });
        self.attribution.restart(time_ns);
        self.gap_history = GapHistory::default();
    }

    /// Ends the reading.
    pub(crate) fn finish(
        &mut self,
        ordinal: u8,
        ranges: &BTreeMap<u64, MemoryRange>,
        time_ns: u64,
        site: impl Fn(StackId) -> SiteId,
    ) {
        self.torch.finish();
        self.driver.finish();
        if self.torch.is_empty() {
            return;
        }
        let peak =
            self.peak_state.snapshot(self.torch.live(), &self.pending, &self.segments, ranges, ordinal);
        let gap = explain_gap(&peak, &self.touched, &site);
        self.gap_at_peak = Some((peak.time_ns, peak.reserved, gap));
        let gap = self.gap((time_ns, self.reserved, None), ranges, ordinal, &site);
        self.gap_at_end = Some((time_ns, self.reserved, gap));
        self.gap_history.finish(time_ns);
    }
}
