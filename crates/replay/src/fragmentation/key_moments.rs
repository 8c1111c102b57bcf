//! The moments of a run at which the gap of a device is always explained: peak reserved, the
//! largest gap, the last step end, and the end.
//!
//! The end is that of the program ([`crate::pass::program_end`]), before the interpreter freed its
//! objects. A teardown turns all reserved memory into a gap, so a gap after a possible end is only
//! a candidate for the largest one until the end is withdrawn. The blocks of the end are those of
//! [`crate::state::live_set::LiveSet::end_blocks`]; segments, ranges and pending frees are here.
//!
//! An event costs a few additions and comparisons. Each moment is a [`PastState`], so marking one
//! copies no blocks. The gap at an event is reserved bytes minus the requested bytes of live
//! blocks, exactly as [`super::explain_gap`] counts it.

use super::PendingFree;
use super::past_state::{PastMoment, PastState};
use crate::state::driver::MemoryRange;
use crate::state::live_set::{BlockSize, LiveBlock};
use crate::state::segments::Segment;

/// The key moments of one device.
#[derive(Debug, Default)]
pub(crate) struct KeyMoments {
    peak_reserved: PastState,
    largest_gap: PastState,
    largest_gap_bytes: u64,
    /// A larger gap after the possible end.
    gap_candidate: PastState,
    /// The candidate's gap, or else `largest_gap_bytes`.
    candidate_bytes: u64,
    last_step: PastState,
    has_step: bool,
    /// The peak of live bytes; followed only for viewers.
    peak_live: PastState,
    /// The possible end; keeps no blocks.
    end: PastState,
    /// The program may have ended.
    is_after_end: bool,
    /// Newest block of all moments but the end.
    newest_block: u64,
    /// Reserved bytes after the last block event.
    reserved: u64,
    /// Requested bytes of the live blocks with a known request. Sizes in a damaged trace may
    /// overflow it for a while.
    requested_bytes: u64,
    /// Live blocks with an unknown request.
    unknown_requests: u64,
}

impl KeyMoments {
    /// Counts an allocated block.
    #[inline]
    pub(crate) fn on_alloc(&mut self, size: BlockSize) {
        match size.requested_bytes {
            Some(requested) => {
                self.requested_bytes = self.requested_bytes.wrapping_add(requested.min(size.bytes));
            }
            None => self.unknown_requests += 1,
        }
    }

    /// Handles the removal of a block: its free, or a lost free.
    #[inline]
    pub(crate) fn on_removed_block(&mut self, addr: u64, block: LiveBlock) {
        match block.requested_bytes {
            Some(requested) => {
                self.requested_bytes = self.requested_bytes.wrapping_sub(requested.min(block.bytes));
            }
            None => self.unknown_requests -= 1,
        }
        if block.serial <= self.newest_block {
            self.keep_removed_block(addr, block);
        }
    }

    #[inline(never)] // Few frees are of blocks of these moments.
    fn keep_removed_block(&mut self, addr: u64, block: LiveBlock) {
        let [_, with_blocks @ ..] = self.all_states();
        for state in with_blocks {
            state.keep_removed_block(addr, block);
        }
    }

    /// All states, the end first.
    fn all_states(&mut self) -> [&mut PastState; 6] {
        let Self { peak_reserved, largest_gap, gap_candidate, last_step, peak_live, end, .. } = self;
        [end, peak_reserved, largest_gap, gap_candidate, last_step, peak_live]
    }

    /// Handles the completion of a pending free.
    pub(crate) fn on_removed_pending(&mut self, addr: u64, pending: PendingFree) {
        for state in self.all_states() {
            state.keep_removed_pending(addr, pending);
        }
    }

    /// Handles the release of a segment, or of a part of one.
    pub(crate) fn on_removed_segment(&mut self, segment: Segment) {
        for state in self.all_states() {
            state.keep_removed_segment(segment);
        }
    }

    /// Handles the removal of a driver range.
    pub(crate) fn on_removed_range(&mut self, range: MemoryRange) {
        for state in self.all_states() {
            state.keep_removed_range(range);
        }
    }

    /// True if `reserved` is above its peak so far.
    #[inline]
    pub(crate) fn is_reserved_peak(&self, reserved: u64) -> bool {
        reserved > self.peak_reserved.moment().reserved
    }

    /// Moves the peak of reserved bytes to the present moment.
    #[cold]
    pub(crate) fn set_peak_reserved(&mut self, now: PastMoment) {
        self.peak_reserved.set_moment(now);
        self.newest_block = now.newest_block;
    }

    /// Moves the peak of live bytes to the present moment.
    #[cold]
    pub(crate) fn set_peak_live(&mut self, now: PastMoment) {
        self.peak_live.set_moment(now);
        self.newest_block = now.newest_block;
    }

    /// The state at the peak of live bytes; `None` if it was not followed.
    pub(crate) fn peak_live(&self) -> Option<&PastState> {
        Some(&self.peak_live).filter(|state| state.moment().newest_block > 0)
    }

    /// Sets the reserved bytes after a block event; returns those after the one before.
    #[inline]
    pub(crate) fn replace_reserved(&mut self, reserved: u64) -> u64 {
        std::mem::replace(&mut self.reserved, reserved)
    }

    /// Reserved bytes minus requested bytes, or minus `live` bytes where requests are unknown.
    #[inline]
    pub(crate) fn gap(&self, reserved: u64, live: u64, is_tracked: bool) -> u64 {
        let used = if is_tracked && self.unknown_requests == 0 { self.requested_bytes } else { live };
        reserved.saturating_sub(used)
    }

    /// True if `gap` is above the largest one so far.
    #[inline]
    pub(crate) fn is_largest_gap(&self, gap: u64) -> bool {
        gap > self.candidate_bytes
    }

    /// Moves the largest gap to the present moment, after a possible end only for now.
    pub(crate) fn set_largest_gap(&mut self, gap: u64, now: PastMoment) {
        self.candidate_bytes = gap;
        self.gap_candidate.set_moment(now);
        self.newest_block = now.newest_block;
        if !self.is_after_end {
            self.confirm_largest_gap();
        }
    }

    /// Makes the candidate, if there is one, the largest gap.
    #[inline]
    fn confirm_largest_gap(&mut self) {
        if self.candidate_bytes > self.largest_gap_bytes {
            self.largest_gap_bytes = self.candidate_bytes;
            std::mem::swap(&mut self.largest_gap, &mut self.gap_candidate);
        }
    }

    /// Moves the last step end to the present moment.
    pub(crate) fn set_last_step(&mut self, now: PastMoment) {
        self.has_step = true;
        self.last_step.set_moment(now);
        self.newest_block = now.newest_block;
    }

    /// Moves the end to the present moment.
    pub(crate) fn set_end(&mut self, now: PastMoment) {
        self.confirm_largest_gap();
        self.is_after_end = true;
        self.end.set_moment(now);
    }

    /// Withdraws the end, because the program goes on.
    pub(crate) fn withdraw_end(&mut self) {
        self.is_after_end = false;
        self.end.set_moment(PastMoment::default());
        self.confirm_largest_gap();
    }

    /// Restarts at the present moment, with the end withdrawn.
    #[cold]
    pub(crate) fn restart(&mut self, now: PastMoment, gap: u64) {
        self.set_peak_reserved(now);
        self.has_step = false;
        self.largest_gap_bytes = 0;
        self.set_largest_gap(gap, now);
    }

    /// The state at the peak of reserved bytes.
    pub(crate) fn peak_reserved(&self) -> &PastState {
        &self.peak_reserved
    }

    /// The state at the largest gap; `None` if there never was one.
    pub(crate) fn largest_gap(&self) -> Option<&PastState> {
        Some(&self.largest_gap).filter(|_| self.largest_gap_bytes > 0)
    }

    /// The state at the last step end; `None` if no step ended.
    pub(crate) fn last_step(&self) -> Option<&PastState> {
        Some(&self.last_step).filter(|_| self.has_step)
    }

    /// The state at the end of the program, without its blocks.
    pub(crate) fn end(&self) -> &PastState {
        &self.end
    }
}
