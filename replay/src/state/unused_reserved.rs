//! What PyTorch has reserved and no tensor uses, by the stream and the pool that its segments serve, at every step end.
//!
//! A run whose tensors do not grow may still fill the device: memory freed on one stream does not serve another, a pool that
//! is never used again keeps what it has, sizes that never fit leave pieces. So reserved minus live is a series like any other,
//! of the device and of each group (a stream and a pool), and judged like any other.
//!
//! Constraint: live bytes change with every event. Consequence: the group of most blocks is not counted: its live bytes are
//! what the others leave of the total.

use gpumemtrace_format::{Event, EventKind};

use crate::callsite::symbols::StackId;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::seeded_map::SeededMap;

/// Most groups that have a series of their own.
const MAX_GROUPS: usize = 256;

/// A stream and a pool.
pub(crate) type ReservedGroupKey = (u64, u64);

#[derive(Clone, Debug, Default)]
struct ReservedGroup {
    reserved: u64,
    /// Of every group but the main one.
    live: u64,
    unused: StepSeries,
}

/// Who asked for a segment, and when.
#[derive(Clone, Copy, Debug)]
struct SegmentOwner {
    group: ReservedGroupKey,
    stack: StackId,
    step: u32,
    bytes: u64,
}

/// Of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnusedReserved {
    main: Option<ReservedGroupKey>,
    groups: SeededMap<ReservedGroupKey, ReservedGroup>,
    segments: SeededMap<u64, SegmentOwner>,
    /// Segments that were there at the last step end and went since.
    freed_since_step: Vec<SegmentOwner>,
    steps_ended: u32,
    unused: StepSeries,
    /// Driver memory that PyTorch's allocator did not ask for.
    non_torch: StepSeries,
}

impl UnusedReserved {
    /// A block came.
    #[inline]
    pub(crate) fn on_block_alloc(&mut self, group: ReservedGroupKey, bytes: u64) {
        if *self.main.get_or_insert(group) != group {
            self.another(group, |live| live.saturating_add(bytes));
        }
    }

    /// A block went.
    #[inline]
    pub(crate) fn on_block_free(&mut self, group: ReservedGroupKey, bytes: u64) {
        if self.main != Some(group) {
            self.another(group, |live| live.saturating_sub(bytes));
        }
    }

    #[inline(never)]
    fn another(&mut self, group: ReservedGroupKey, change: impl Fn(u64) -> u64) {
        if let Some(group) = self.group(group) {
            group.live = change(group.live);
        }
    }

    fn group(&mut self, key: ReservedGroupKey) -> Option<&mut ReservedGroup> {
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            return None;
        }
        Some(self.groups.entry(key).or_default())
    }

    /// PyTorch's tracker told of a segment, or of a piece of one.
    pub(crate) fn segment(&mut self, event: &Event, stack: StackId, step: u32) {
        match event.kind {
            EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => {
                self.segment_gone(event.addr, event.size);
                let owner =
                    SegmentOwner { group: (event.aux[0], event.aux[1]), stack, step, bytes: event.size };
                self.segments.insert(event.addr, owner);
                if let Some(group) = self.group(owner.group) {
                    group.reserved = group.reserved.saturating_add(event.size);
                }
            }
            EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP => self.segment_gone(event.addr, event.size),
            _ => {}
        }
    }

    /// What begins at this address goes; of expandable segments several pieces may go at once, or a part of one.
    fn segment_gone(&mut self, addr: u64, bytes: u64) {
        let mut left = bytes;
        let mut at = addr;
        while left > 0 {
            let Some(owner) = self.segments.remove(&at) else { return };
            let gone = owner.bytes.min(left);
            self.freed_since_step.push(SegmentOwner { bytes: gone, ..owner });
            if let Some(group) = self.groups.get_mut(&owner.group) {
                group.reserved = group.reserved.saturating_sub(gone);
            }
            let rest = SegmentOwner { bytes: owner.bytes - gone, ..owner };
            (at, left) = (at.saturating_add(gone), left - gone);
            if rest.bytes > 0 {
                self.segments.insert(at, rest);
            }
        }
    }

    /// A step ends: what is reserved, what is live, and what the driver has handed out.
    pub(crate) fn step_boundary(&mut self, step: u32, reserved: u64, live: u64, device: u64) {
        let held = |bytes: u64| BlockTotals { bytes, blocks: 0 };
        self.freed_since_step.clear();
        self.steps_ended = step + 1;
        self.unused.record(step, held(reserved.saturating_sub(live)));
        self.non_torch.record(step, held(device.saturating_sub(reserved)));
        let others = saturating_sum(self.groups.values().map(|group| group.live));
        for (key, group) in &mut self.groups {
            let own = if self.main == Some(*key) { live.saturating_sub(others) } else { group.live };
            group.unused.record(step, held(group.reserved.saturating_sub(own)));
        }
    }

    /// Reserved minus live.
    pub(crate) fn unused(&self) -> &StepSeries {
        &self.unused
    }

    /// Driver memory beside what PyTorch has reserved.
    pub(crate) fn non_torch(&self) -> &StepSeries {
        &self.non_torch
    }

    /// Reserved minus live of each stream and pool, in order.
    pub(crate) fn groups(&self) -> Vec<(ReservedGroupKey, &StepSeries)> {
        let mut groups: Vec<_> = self.groups.iter().map(|(key, group)| (*key, &group.unused)).collect();
        groups.sort_unstable_by_key(|(key, _)| *key);
        groups
    }

    /// The largest of the segments, or pieces of them, that came after this step and were there at the last step end.
    pub(crate) fn largest_since(&self, step: u32) -> Option<u64> {
        let all = self.segments.values().chain(&self.freed_since_step);
        all.filter(|owner| owner.step > step && owner.step < self.steps_ended).map(|owner| owner.bytes).max()
    }

    /// Who asked for the segments that came after this step and were there at the last step end, most bytes first; of one group or of all.
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
        owners.sort_unstable_by_key(|(stack, held)| (std::cmp::Reverse(held.bytes), *stack));
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
    fn what_a_stream_keeps_is_counted_apart() {
        let mut reserved = UnusedReserved::default();
        reserved.segment(&segment(EventKind::SEGMENT_ALLOC, 0x1000, 100, 1), StackId(5), 0);
        reserved.on_block_alloc((1, 0), 60);
        reserved.segment(&segment(EventKind::SEGMENT_ALLOC, 0x2000, 40, 2), StackId(6), 0);
        reserved.on_block_alloc((2, 0), 30);
        reserved.step_boundary(0, 140, 90, 150);
        reserved.on_block_free((2, 0), 30);
        reserved.step_boundary(1, 140, 60, 150);
        let at = |series: &StepSeries| [series.at(0).bytes, series.at(1).bytes];
        assert_eq!((at(reserved.unused()), at(reserved.non_torch())), ([50, 80], [10, 10]));
        let groups: Vec<_> = reserved.groups().into_iter().map(|(key, series)| (key, at(series))).collect();
        assert_eq!(groups, [((1, 0), [40, 40]), ((2, 0), [10, 40])]);
    }

    #[test]
    fn segments_that_are_new_name_who_asked_for_them() {
        let mut reserved = UnusedReserved::default();
        for (step, addr) in [(0, 0x1000), (3, 0x2000), (4, 0x3000)] {
            reserved.segment(&segment(EventKind::SEGMENT_ALLOC, addr, 64, 1), StackId(step), step);
        }
        reserved.segment(&segment(EventKind::SEGMENT_FREE, 0x3000, 64, 1), StackId(9), 5);
        reserved.step_boundary(5, 128, 0, 128);
        let third = [(StackId(3), BlockTotals { bytes: 64, blocks: 1 })];
        assert_eq!(reserved.owners(Some((1, 0)), Some(2)), third);
        // What comes and goes after the last step end says nothing.
        reserved.segment(&segment(EventKind::SEGMENT_ALLOC, 0x4000, 64, 1), StackId(6), 6);
        reserved.segment(&segment(EventKind::SEGMENT_FREE, 0x2000, 64, 1), StackId(9), 6);
        assert_eq!(reserved.owners(Some((1, 0)), Some(2)), third);
        assert_eq!(reserved.owners(None, None).len(), 2);
        assert_eq!(reserved.owners(Some((7, 0)), None), []);
    }
}
