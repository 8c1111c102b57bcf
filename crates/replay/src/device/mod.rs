//! The memory state of one device: PyTorch's blocks, driver memory, segments and gaps.
//!
//! [`DeviceState`] has a [`LiveSet`] for each of two layers: PyTorch's blocks, and memory allocated
//! from the driver. They are never summed, because blocks lie inside driver memory. [`DeviceState`]
//! also records the state at the peak of reserved bytes, from which the fragmentation analysis
//! starts. [`DeviceState::block_alloc`] and [`DeviceState::block_free`] run once per block event.

pub(crate) mod device_states;
pub(crate) mod driver_peak;
mod end;
pub(crate) mod gaps;
pub(crate) mod keyframes;
pub(crate) mod placed_blocks;
mod restart;
pub(crate) mod sleep;

use std::collections::BTreeMap;

use gpumemtrace_format::event::FLAG_FREED_AT_ONCE;
use gpumemtrace_format::{Event, EventKind};

use self::end::{EndLevels, StepEndLevels};
use crate::callsite::symbols::StackSite;
use crate::device::driver_peak::DriverPeak;
use crate::device::keyframes::Keyframes;
use crate::device::sleep::{BackedLevels, DeviceSleep, live_peak_of};
use crate::event_analysis::EventTime;
use crate::fragmentation::history::GapHistory;
use crate::fragmentation::{KeyMoments, PastMoment, PendingFree, TorchRanges};
use crate::state::attribution::{DeviceAttribution, TorchLevels};
use crate::state::driver::{DriverState, MemoryRange, space};
use crate::state::live_set::{BlockSize, LiveSet, StateSample};
use crate::state::pool_key::PoolKey;
use crate::state::request_histogram::{BlockRequest, RequestHistogram};
use crate::state::segments::Segments;
use crate::state::unused_reserved::UnusedReserved;
use crate::timeline::bin_axis::BinAxis;
use crate::util::ids::StackId;
use crate::util::seeded_map::{SeededMap, SeededSet};
pub(crate) use gaps::{GapRequest, TimedGap};

/// Slots of the cache of driver ranges with recent blocks.
const RECENT_SLOTS: usize = 64;
/// An empty slot: first address and end of a range that contains no address.
const NO_RANGE: (u64, u64) = (1, 0);

/// Bytes of a device at the peak of its reserved bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedPeakLevels {
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device: u64,
}

/// An event with a running total that differs from the sum of live blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TotalMismatch {
    /// Sequence number of the event.
    pub seq: u64,
    /// Sum of the live blocks.
    pub sum_bytes: u64,
    /// Total that PyTorch reported.
    pub torch_bytes: u64,
}

/// The memory state of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    /// Blocks of PyTorch's allocator.
    pub torch: LiveSet,
    /// Memory allocated from the driver.
    pub driver: LiveSet,
    /// Driver memory by library, and memory that no call shows.
    pub attribution: DeviceAttribution,
    /// PyTorch's reserved bytes after its last block event, or after its last segment event if the
    /// tracker reports all segments.
    pub reserved: u64,
    /// Levels at the peak of reserved bytes.
    pub reserved_peak: ReservedPeakLevels,
    /// The highest driver bytes.
    pub driver_peak: DriverPeak,
    /// Number of events with a running total that differs from the sum of live blocks.
    pub total_mismatches: u64,
    /// The first of these events.
    pub first_mismatch: Option<TotalMismatch>,
    /// Number of block events at which the segments do not sum to PyTorch's reserved bytes.
    pub segment_mismatches: u64,
    /// Unused reserved memory at step ends.
    pub unused: UnusedReserved,
    segments: Segments,
    /// Memory of PyTorch that the program returned.
    pub sleep: DeviceSleep,
    /// Stacks that allocated driver memory which became a segment or contained blocks.
    segment_stacks: SeededSet<StackId>,
    /// Freed blocks by address that another stream still uses.
    pending: SeededMap<u64, PendingFree>,
    moments: KeyMoments,
    end_levels: EndLevels,
    /// The levels at the last step end; `None` before the first one.
    pub last_step: Option<StepEndLevels>,
    torch_ranges: TorchRanges,
    /// Direct-mapped cache of `torch_ranges`: first address and end.
    recent_ranges: Vec<(u64, u64)>,
    requests: RequestHistogram,
    /// The gap at the peak of reserved bytes.
    pub gap_at_peak: Option<TimedGap>,
    /// The largest gap before the end of the program.
    pub largest_gap: Option<TimedGap>,
    /// The gap at the last step end.
    pub gap_at_last_step: Option<TimedGap>,
    /// The gap at the end of the program.
    pub gap_at_end: Option<TimedGap>,
    /// The gap over the whole run.
    pub gap_history: GapHistory,
    /// States of the allocator for viewers, if the options ask for them.
    pub keyframes: Option<Box<Keyframes>>,
}

impl DeviceState {
    /// A device that appears after `step` steps of a run with this axis.
    pub(crate) fn at_step(step: u32, axis: BinAxis) -> Self {
        Self {
            torch: LiveSet::at_step(step, axis),
            driver: LiveSet::at_step(step, axis),
            recent_ranges: vec![NO_RANGE; RECENT_SLOTS],
            ..Self::default()
        }
    }

    /// Keeps what viewers show, of a run with this axis.
    pub(crate) fn keep_history(&mut self, axis: BinAxis) {
        self.torch.keep_history(axis);
        self.driver.keep_history(axis);
        self.keyframes = Some(Box::default());
    }

    /// Reports only steps from `first` on.
    fn starting_at_step(mut self, first: u32) -> Self {
        self.torch.first_step = first;
        self.driver.first_step = first;
        self
    }

    /// The live set to report: PyTorch's blocks, or driver memory if PyTorch was not used.
    pub(crate) fn main(&self) -> &LiveSet {
        if self.torch.is_empty() { &self.driver } else { &self.torch }
    }

    /// True if PyTorch's allocator had blocks on this device.
    pub(crate) fn has_torch(&self) -> bool {
        !self.torch.is_empty()
    }

    /// Takes PyTorch's reserved bytes from a block event; returns the state after it.
    fn sample_block_event(&mut self, event: &Event, time: EventTime) -> StateSample {
        if self.sleep.is_outdated() {
            self.refresh_sleep();
        }
        self.reserved = event.aux[1];
        let (reserved, device) = (self.reserved, self.driver.total().bytes);
        StateSample { time_ns: time.time_ns, step: time.step, reserved, device }
    }

    /// Applies the allocation of a block by PyTorch.
    #[inline]
    pub(crate) fn block_alloc(
        &mut self,
        event: &Event,
        origin: StackSite,
        time: EventTime,
        driver: &DriverState,
    ) {
        let now = self.sample_block_event(event, time);
        let requested_bytes = event.detail.map(|detail| detail.requested_bytes);
        if let Some(detail) = event.detail {
            self.unused.on_block_alloc((detail.stream, detail.pool), event.size);
            self.requests.count(BlockRequest { bytes: event.size, stream: detail.stream, pool: detail.pool });
        }
        let size = BlockSize { bytes: event.size, requested_bytes };
        if let Some(lost) = self.torch.alloc(event.addr, size, origin, now) {
            self.moments.on_removed_block(event.addr, lost);
        }
        self.moments.on_alloc(size);
        self.note_torch_range(event.addr, event.size, driver.ranges());
        self.after_block_event(event, now, driver);
        if self.keyframes.is_some() && self.torch.peak_event() == self.torch.events {
            self.moments.set_peak_live(self.present_moment(now, driver));
        }
        // An allocation makes the gap smaller, unless PyTorch reserved a segment for it.
        if self.moments.replace_reserved(self.reserved) != self.reserved {
            self.note_gap(now, driver);
        }
    }

    /// Applies the free of a block by PyTorch. Returns how many block events ago it was allocated;
    /// 0 if its address was not live.
    #[inline]
    pub(crate) fn block_free(
        &mut self,
        event: &Event,
        origin: StackSite,
        time: EventTime,
        driver: &DriverState,
    ) -> u64 {
        let now = self.sample_block_event(event, time);
        if let Some(history) = self.torch.history_mut() {
            history.next_free = event.detail;
        }
        let mut age_events = 0;
        if let Some(block) = self.torch.free(event.addr, origin, now) {
            age_events = self.torch.events - block.serial;
            // Blocks allocated before the tracker was attached were not counted.
            if let (Some(_), Some(detail)) = (block.requested_bytes, event.detail) {
                self.unused.on_block_free((detail.stream, detail.pool), block.bytes);
            }
            self.moments.on_removed_block(event.addr, block);
            if event.detail.is_some() && event.flags & FLAG_FREED_AT_ONCE == 0 {
                self.pending.insert(event.addr, PendingFree { block, since: self.torch.events });
            }
        }
        self.after_block_event(event, now, driver);
        self.moments.replace_reserved(self.reserved);
        self.note_gap(now, driver);
        age_events
    }

    /// True if this stack requested driver memory for PyTorch's allocator (segments or blocks).
    pub(crate) fn requested_segments(&self, stack: StackId) -> bool {
        self.segment_stacks.contains(&stack)
    }

    /// Applies a driver call of any device that maps or unmaps memory.
    pub(crate) fn on_mapping(&mut self, event: &Event) {
        self.sleep.on_event(event);
    }

    /// Brings the memory that sleeps up to date, after ranges fell asleep or woke.
    #[cold]
    pub(crate) fn refresh_sleep(&mut self) {
        let ReservedPeakLevels { reserved, device } = self.reserved_peak;
        let reserved_peak = BackedLevels { live: 0, reserved, device };
        self.sleep.refresh(self.torch.live(), [live_peak_of(&self.torch), reserved_peak]);
        self.sleep.observe(self.torch_levels());
    }

    fn torch_levels(&self) -> BackedLevels {
        let (live, device) = (self.torch.total().bytes, self.driver.total().bytes);
        BackedLevels { live, reserved: self.reserved, device }
    }

    /// Ends the current step with the present state.
    pub(crate) fn end_step(&mut self, time_ns: u64, driver: &DriverState) {
        let step = self.torch.steps_ended();
        let device = self.driver.total().bytes;
        let now = StateSample { time_ns, step, reserved: self.reserved, device };
        self.moments.set_last_step(self.present_moment(now, driver));
        let torch = TorchLevels { reserved: self.reserved, live: self.torch.total().bytes };
        self.last_step =
            Some(StepEndLevels { time_ns, step, live: torch.live, reserved: torch.reserved, device });
        self.unused.end_step(step, torch, device);
        self.driver_peak.end_step(device);
        self.torch.end_step();
        self.driver.end_step();
    }

    /// Applies an event of PyTorch's tracker about a segment or a completed free.
    pub(crate) fn on_tracker_event(&mut self, event: &Event, stack: StackId, time: EventTime) {
        let EventTime { time_ns, step } = time;
        self.unused.on_segment_event(event, stack, step);
        self.on_mapping(event);
        if event.kind == EventKind::SEGMENT_ALLOC
            && let Some(memory) = self.driver.live().get(space::key(space::ADDRESS, event.addr))
        {
            self.segment_stacks.insert(memory.stack);
        }
        if event.kind == EventKind::BLOCK_FREE_COMPLETED
            && let Some(pending) = self.pending.remove(&event.addr)
        {
            self.moments.on_removed_pending(event.addr, pending);
        }
        // If the segments summed to the reserved bytes before this event, they still do; PyTorch
        // reports its new total only with the next block.
        let has_all_segments = self.segments.bytes() == self.reserved;
        for segment in self.segments.on_event(event, stack) {
            self.moments.on_removed_segment(segment);
        }
        if has_all_segments && self.reserved != self.segments.bytes() {
            self.reserved = self.segments.bytes();
            let device = self.driver.total().bytes;
            self.torch.observe(StateSample { time_ns, step, reserved: self.reserved, device });
        }
    }

    /// Handles a change of the driver's ranges, on any device. `removed` are the ranges removed.
    pub(crate) fn on_ranges_changed(&mut self, removed: &[MemoryRange]) {
        self.recent_ranges.fill(NO_RANGE);
        for range in removed {
            self.moments.on_removed_range(*range);
        }
    }

    /// Remembers the driver ranges that contain blocks of PyTorch's allocator.
    #[inline]
    fn note_torch_range(&mut self, addr: u64, bytes: u64, ranges: &BTreeMap<u64, MemoryRange>) {
        let end = addr.saturating_add(bytes);
        let slot = (addr >> 21) as usize % RECENT_SLOTS;
        let (cached_begin, cached_end) = self.recent_ranges[slot];
        if addr >= cached_begin && end <= cached_end {
            return;
        }
        let Some((_, first)) = ranges.range(..=addr).next_back() else { return };
        if addr >= first.addr.saturating_add(first.bytes) {
            return;
        }
        self.recent_ranges[slot] = (first.addr, first.addr.saturating_add(first.bytes));
        for (begin, _) in ranges.range(first.addr..end.max(first.addr + 1)) {
            self.torch_ranges.insert(*begin);
            if let Some(memory) = self.driver.live().get(space::key(space::ADDRESS, *begin)) {
                self.segment_stacks.insert(memory.stack);
            }
        }
    }

    /// Checks the running totals and updates the peak of reserved bytes.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would pass the state through memory.
    fn after_block_event(&mut self, event: &Event, now: StateSample, driver: &DriverState) {
        let sum = self.torch.total().bytes;
        if sum != event.aux[0] {
            self.note_total_mismatch(event, sum);
        }
        if event.detail.is_some() && self.segments.bytes() != self.reserved {
            self.segment_mismatches += 1;
        }
        self.attribution.set_torch_levels(TorchLevels { reserved: self.reserved, live: sum });
        if self.sleep.has_slept() {
            self.observe_sleep(event);
        }
        if self.moments.is_reserved_peak(self.reserved) {
            self.set_reserved_peak(event, now, driver);
        }
    }

    #[cold]
    fn note_total_mismatch(&mut self, event: &Event, sum_bytes: u64) {
        self.total_mismatches += 1;
        self.first_mismatch.get_or_insert(TotalMismatch {
            seq: event.seq,
            sum_bytes,
            torch_bytes: event.aux[0],
        });
    }

    #[cold]
    fn observe_sleep(&mut self, event: &Event) {
        self.sleep.on_block(event);
        self.sleep.observe(self.torch_levels());
    }

    #[inline(never)] // Few events set a new maximum.
    fn set_reserved_peak(&mut self, event: &Event, now: StateSample, driver: &DriverState) {
        let request = event.detail.map(|detail| PoolKey::of_request(detail, event.size));
        let peak = PastMoment { request, ..self.present_moment(now, driver) };
        self.moments.set_peak_reserved(peak);
        self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device: now.device };
    }

    /// The present gap in bytes.
    #[inline]
    fn present_gap(&self) -> u64 {
        self.moments.gap(self.reserved, self.torch.total().bytes, self.segments.bytes() > 0)
    }

    /// Moves the largest gap to the present state if it is there.
    #[inline]
    fn note_gap(&mut self, now: StateSample, driver: &DriverState) {
        let gap = self.present_gap();
        if self.moments.is_largest_gap(gap) {
            self.set_largest_gap(gap, now, driver);
        }
    }

    #[inline(never)] // Few events set a new maximum.
    fn set_largest_gap(&mut self, gap: u64, now: StateSample, driver: &DriverState) {
        self.moments.set_largest_gap(gap, self.present_moment(now, driver));
    }
}
