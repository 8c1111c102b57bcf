//! Unused reserved memory (reserved minus live) at step ends, by stream and pool.
//!
//! Unused reserved memory can fill a device although tensors do not grow. Memory freed on one
//! stream does not serve another, an idle pool keeps its segments, and unsuitable sizes leave free
//! pieces. [`UnusedReserved`] records it as a series for the device and for each group (stream and
//! pool), and the leak analysis judges these like other series.
//!
//! Live bytes change with every event. The first group mostly has most of the blocks, so it is not
//! counted: its live bytes are the total minus those of the other groups. A block of that group
//! costs one comparison.

use gpumemtrace_format::{Event, EventKind};

use crate::state::attribution::TorchLevels;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// Limit of groups with a series; further ones count for the device only.
const MAX_GROUPS: usize = 256;

/// Stream and pool of PyTorch's allocator.
pub(crate) type ReservedGroupKey = (u64, u64);

#[derive(Clone, Debug, Default)]
struct ReservedGroup {
    reserved: u64,
    /// Live bytes; not maintained for the main group.
    live: u64,
    unused: StepSeries,
}

/// The request for a segment, or for a piece of an expandable one.
#[derive(Clone, Copy, Debug)]
struct SegmentOwner {
    group: ReservedGroupKey,
    stack: StackId,
    step: u32,
    bytes: u64,
}

/// Unused reserved memory of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnusedReserved {
    /// The group of the first block.
    main: Option<ReservedGroupKey>,
    groups: SeededMap<ReservedGroupKey, ReservedGroup>,
    /// Present segments by address.
    segments: SeededMap<u64, SegmentOwner>,
    /// Segments of the last step end that were freed since.
    freed_since_step: Vec<SegmentOwner>,
    steps_ended: u32,
    unused: StepSeries,
    /// Driver memory that PyTorch's allocator did not reserve.
    non_torch: StepSeries,
}

impl UnusedReserved {
    /// Counts an allocated block.
    #[inline]
    pub(crate) fn on_block_alloc(&mut self, group: ReservedGroupKey, bytes: u64) {
        if *self.main.get_or_insert(group) != group {
            self.update_live(group, |live| live.saturating_add(bytes));
        }
    }

    /// Counts a freed block.
    #[inline]
    pub(crate) fn on_block_free(&mut self, group: ReservedGroupKey, bytes: u64) {
        if self.main != Some(group) {
            self.update_live(group, |live| live.saturating_sub(bytes));
        }
    }

    #[inline(never)] // Most blocks belong to the main group.
    fn update_live(&mut self, group: ReservedGroupKey, update: impl Fn(u64) -> u64) {
        if let Some(group) = self.group_mut(group) {
            group.live = update(group.live);
        }
    }

    /// The group, created on first use; `None` beyond [`MAX_GROUPS`].
    fn group_mut(&mut self, key: ReservedGroupKey) -> Option<&mut ReservedGroup> {
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            return None;
        }
        Some(self.groups.entry(key).or_default())
    }

    /// Applies a segment event of PyTorch's tracker.
    pub(crate) fn on_segment_event(&mut self, event: &Event, stack: StackId, step: u32) {
        match event.kind {
            EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => {
                self.remove_segments(event.addr, event.size);
                let owner =
                    SegmentOwner { group: (event.aux[0], event.aux[1]), stack, step, bytes: event.size };
                self.segments.insert(event.addr, owner);
                if let Some(group) = self.group_mut(owner.group) {
                    group.reserved = group.reserved.saturating_add(event.size);
                }
            }
            EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP => {
                self.remove_segments(event.addr, event.size);
            }
            _ => {}
        }
    }

    /// Removes `bytes` from the segments that begin at `addr`: of expandable segments several
    /// pieces at once, or a part of one.
    fn remove_segments(&mut self, addr: u64, bytes: u64) {
        let mut left = bytes;
        let mut at = addr;
        while left > 0 {
            let Some(owner) = self.segments.remove(&at) else { return };
            let removed = owner.bytes.min(left);
            self.freed_since_step.push(SegmentOwner { bytes: removed, ..owner });
            if let Some(group) = self.groups.get_mut(&owner.group) {
                group.reserved = group.reserved.saturating_sub(removed);
            }
            let rest = SegmentOwner { bytes: owner.bytes - removed, ..owner };
            (at, left) = (at.saturating_add(removed), left - removed);
            if rest.bytes > 0 {
                self.segments.insert(at, rest);
            }
        }
    }

    /// Ends `step` with these levels of the device, in bytes.
    pub(crate) fn end_step(&mut self, step: u32, torch: TorchLevels, device: u64) {
        let TorchLevels { reserved, live } = torch;
        let totals = |bytes: u64| BlockTotals { bytes, blocks: 0 };
        self.freed_since_step.clear();
        self.steps_ended = step + 1;
        self.unused.record(step, totals(reserved.saturating_sub(live)));
        self.non_torch.record(step, totals(device.saturating_sub(reserved)));
        let other_live = saturating_sum(self.groups.values().map(|group| group.live));
        for (key, group) in &mut self.groups {
            let live = if self.main == Some(*key) { live.saturating_sub(other_live) } else { group.live };
            group.unused.record(step, totals(group.reserved.saturating_sub(live)));
        }
    }

    /// Reserved minus live bytes of the device.
    pub(crate) fn unused(&self) -> &StepSeries {
        &self.unused
    }

    /// Driver memory minus the bytes that PyTorch reserved.
    pub(crate) fn non_torch(&self) -> &StepSeries {
        &self.non_torch
    }

    /// Reserved minus live bytes of each group, by key.
    pub(crate) fn groups(&self) -> Vec<(ReservedGroupKey, &StepSeries)> {
        let mut groups: Vec<_> = self.groups.iter().map(|(key, group)| (*key, &group.unused)).collect();
        groups.sort_unstable_by_key(|(key, _)| *key);
        groups
    }

    /// Size of the largest segment (or piece) that was requested after `step` and present at the
    /// last step end.
    pub(crate) fn largest_since(&self, step: u32) -> Option<u64> {
        let all = self.segments.values().chain(&self.freed_since_step);
        all.filter(|owner| owner.step > step && owner.step < self.steps_ended).map(|owner| owner.bytes).max()
    }

    /// The stacks that requested the segments present at the last step end, most bytes first. With
    /// `after`, only segments requested after that step; with `group`, only those of that group.
    pub(crate) fn owners(
        &self,
        group: Option<ReservedGroupKey>,
        after: Option<u32>,
    ) -> Vec<(StackId, BlockTotals)> {
        let mut by_stack: SeededMap<StackId, BlockTotals> = SeededMap::default();
        let all = self.segments.values().chain(&self.freed_since_step);
        let new =
            all.filter(|owner| owner.step < self.steps_ended && after.is_none_or(|after| owner.step > after));
        for owner in new.filter(|owner| group.is_none_or(|group| owner.group == group)) {
            by_stack.entry(owner.stack).or_default().add(owner.bytes);
        }
        let mut owners: Vec<_> = by_stack.into_iter().collect();
        owners.sort_unstable_by_key(|(stack, totals)| (std::cmp::Reverse(totals.bytes), *stack));
        owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(kind: EventKind, addr: u64, size: u64, stream: u64) -> Event {
        Event { addr, size, aux: [stream, 0], ..Event::new(kind) }
    }

    #[test]
    fn unused_bytes_are_counted_per_stream() {
        let mut reserved = UnusedReserved::default();
        reserved.on_segment_event(&segment(EventKind::SEGMENT_ALLOC, 0x1000, 100, 1), StackId(5), 0);
        reserved.on_block_alloc((1, 0), 60);
        reserved.on_segment_event(&segment(EventKind::SEGMENT_ALLOC, 0x2000, 40, 2), StackId(6), 0);
        reserved.on_block_alloc((2, 0), 30);
        reserved.end_step(0, TorchLevels { reserved: 140, live: 90 }, 150);
        reserved.on_block_free((2, 0), 30);
        reserved.end_step(1, TorchLevels { reserved: 140, live: 60 }, 150);
        let at = |series: &StepSeries| [series.at(0).bytes, series.at(1).bytes];
        assert_eq!((at(reserved.unused()), at(reserved.non_torch())), ([50, 80], [10, 10]));
        let groups: Vec<_> = reserved.groups().into_iter().map(|(key, series)| (key, at(series))).collect();
        assert_eq!(groups, [((1, 0), [40, 40]), ((2, 0), [10, 40])]);
    }

    #[test]
    fn owners_are_the_stacks_of_segments_present_at_the_last_step_end() {
        let mut reserved = UnusedReserved::default();
        for (step, addr) in [(0, 0x1000), (3, 0x2000), (4, 0x3000)] {
            reserved.on_segment_event(&segment(EventKind::SEGMENT_ALLOC, addr, 64, 1), StackId(step), step);
        }
        reserved.on_segment_event(&segment(EventKind::SEGMENT_FREE, 0x3000, 64, 1), StackId(9), 5);
        reserved.end_step(5, TorchLevels { reserved: 128, live: 0 }, 128);
        let third = [(StackId(3), BlockTotals { bytes: 64, blocks: 1 })];
        assert_eq!(reserved.owners(Some((1, 0)), Some(2)), third);
        // Events after the last step end change nothing.
        reserved.on_segment_event(&segment(EventKind::SEGMENT_ALLOC, 0x4000, 64, 1), StackId(6), 6);
        reserved.on_segment_event(&segment(EventKind::SEGMENT_FREE, 0x2000, 64, 1), StackId(9), 6);
        assert_eq!(reserved.owners(Some((1, 0)), Some(2)), third);
        assert_eq!(reserved.owners(None, None).len(), 2);
        assert_eq!(reserved.owners(Some((7, 0)), None), []);
    }
}
