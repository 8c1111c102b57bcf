//! What live memory consists of at the highest moment of each of many bins: by call site, by class
//! of lifetime, and by pool. Memory is bounded by the number of groups times [`MAX_BINS`].
//!
//! Constraint: the high of a bin is final only when the bin ends, and the class of a block is known
//! only when it is freed. Consequence: a removed block is added to all bins with a high at which it
//! was live. Blocks removed in the current bin stay open until the bin ends or gets a new high. A
//! block costs two additions and a binary search, and nothing if it was live at no high.
//!
//! When the bins are full, or their values are too many, they are merged in pairs.
//! `crates/replay/tests/history/` compares all values with a recount.

use super::group_series::{GroupSeries, LiveHighs};
use crate::timeline::bin_axis::BinAxis;

/// Limit on the number of bins.
const MAX_BINS: usize = 2048;
/// Limit of values of all groups, unless there are as few bins as [`MIN_BINS`].
const MAX_VALUES: usize = 1 << 21;
/// Below this number of bins, `MAX_VALUES` does not cause a merge.
const MIN_BINS: usize = 256;

/// The highest live bytes of a bin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BinHigh {
    pub live: u64,
    pub time_ns: u64,
    /// Begin of the bin: its first event comes not before this time, and all earlier events do.
    pub begin_ns: u64,
    /// The last event before that moment.
    event: u64,
}

/// How the bytes of a block are grouped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grouping {
    Site,
    Class,
    Pool,
}

/// The bytes of the groups of a live set at the high of each bin.
#[derive(Clone, Debug)]
pub(crate) struct Composition {
    max_bins: usize,
    max_values: usize,
    /// Position of the first event.
    start: u64,
    width: u64,
    /// End of the current bin, which is the last; 0 before the first event.
    end: u64,
    /// The last bin is the current one.
    highs: Vec<BinHigh>,
    groups: [GroupSeries; 3],
}

impl Composition {
    /// Bins of equal widths on an axis. They are merged as needed: rarely, if the length of the run
    /// is known.
    pub(crate) fn on_axis(axis: &BinAxis) -> Self {
        Self::with_limits(axis.width_for(MAX_BINS), MAX_BINS, MAX_VALUES)
    }

    fn with_limits(width: u64, max_bins: usize, max_values: usize) -> Self {
        let (highs, groups) = (Vec::new(), Default::default());
        Self { max_bins, max_values, start: 0, width, end: 0, highs, groups }
    }

    /// True if `position` lies past the current bin.
    #[inline]
    pub(crate) fn needs_new_bin(&self, position: u64) -> bool {
        // A damaged trace may have the last moment of all, which ends no bin.
        position >= self.end && self.end != u64::MAX
    }

    /// Records the state after an event. True if it is a new high.
    #[inline]
    pub(crate) fn observe(&mut self, time_ns: u64, live: u64, event: u64) -> bool {
        let Some(high) = self.highs.last_mut().filter(|high| live > high.live) else { return false };
        *high = BinHigh { live, time_ns, event, ..*high };
        true
    }

    /// Begins the bin of the last event of the axis, which is about to change `live` bytes, after
    /// [`Self::end_bin`]. `event` is the one before.
    #[inline(never)] // Once per bin.
    pub(crate) fn begin_bin(&mut self, axis: &BinAxis, live: u64, event: u64) {
        if self.highs.is_empty() {
            self.start = axis.position();
        }
        loop {
            let index = (axis.position().saturating_sub(self.start) / self.width) as usize;
            let is_beyond = index >= self.max_bins;
            let len = if is_beyond { self.max_bins } else { index + 1 };
            while self.highs.len() < len {
                let begin = self.start.saturating_add((self.highs.len() as u64).saturating_mul(self.width));
                let begin_ns = axis.time_of(begin);
                self.highs.push(BinHigh { live, time_ns: begin_ns, begin_ns, event });
            }
            if !is_beyond {
                break;
            }
            self.merge_pairs();
        }
        // The current bin is in no pair if there are odd bins.
        if self.has_too_many_values() && self.highs.len() % 2 == 1 {
            let current = self.highs.pop();
            self.merge_pairs();
            self.highs.extend(current);
        }
        let span = (self.highs.len() as u64).saturating_mul(self.width);
        self.end = self.start.saturating_add(span);
    }

    fn has_too_many_values(&self) -> bool {
        let values: usize = self.groups.iter().map(GroupSeries::count_values).sum();
        values > self.max_values && self.highs.len() > MIN_BINS.min(self.max_bins / 8)
    }

    /// Merges ended bins in pairs: the higher one of each remains.
    fn merge_pairs(&mut self) {
        let len = self.highs.len();
        let picks: Vec<usize> = self
            .highs
            .chunks(2)
            .map(|pair| usize::from(pair.get(1).is_some_and(|second| second.live > pair[0].live)))
            .collect();
        let merge =
            |(pair, pick): (&[BinHigh], &usize)| BinHigh { begin_ns: pair[0].begin_ns, ..pair[*pick] };
        self.highs = self.highs.chunks(2).zip(&picks).map(merge).collect();
        for groups in &mut self.groups {
            groups.merge_pairs(len, &picks);
        }
        self.width = self.width.saturating_mul(2);
    }

    /// Adds the open bytes of the current bin to it.
    pub(crate) fn end_bin(&mut self) {
        let Some(bin) = self.highs.len().checked_sub(1) else { return };
        let high = self.latest_event();
        for groups in &mut self.groups {
            groups.end_bin(bin, high);
        }
    }

    /// Completes the groups after the last block.
    pub(crate) fn end_run(&mut self) {
        self.end_bin();
        for groups in &mut self.groups {
            groups.end_run(self.highs.len());
        }
    }

    /// The event of the last high; 0 before the first bin.
    #[inline]
    fn latest_event(&self) -> u64 {
        self.highs.last().map_or(0, |high| high.event)
    }

    /// True if a block was live at the high of a bin.
    #[inline]
    pub(crate) fn was_at_high(&self, allocated: u64) -> bool {
        allocated <= self.latest_event()
    }

    /// True if a block was live at the high of a bin before the current one.
    #[inline]
    pub(crate) fn was_at_ended_high(&self, allocated: u64) -> bool {
        self.highs.iter().rev().nth(1).is_some_and(|high| allocated <= high.event)
    }

    /// The high of the current bin.
    pub(crate) fn current_high(&self) -> LiveHighs {
        let end = self.highs.len().saturating_sub(1);
        LiveHighs { begin: end, end, open: Some(self.latest_event()), is_live: false }
    }

    /// The highs at which a block was live, allocated and removed by these events; `removed` is
    /// `u64::MAX` for a block that is live at the end.
    pub(crate) fn highs_of_block(&self, allocated: u64, removed: u64) -> LiveHighs {
        let end = self.highs.len().saturating_sub(1);
        let begin = self.highs[..end].partition_point(|high| high.event < allocated);
        let latest = self.latest_event();
        let open = (allocated <= latest && latest < removed).then_some(latest);
        LiveHighs { begin, end, open, is_live: removed == u64::MAX }
    }

    /// Adds a removed block to its group, which the caller numbers.
    pub(crate) fn add(&mut self, grouping: Grouping, group: usize, highs: LiveHighs, bytes: u64) {
        self.groups[grouping as usize].add(group, highs, bytes);
    }

    /// The high of each bin.
    pub(crate) fn highs(&self) -> &[BinHigh] {
        &self.highs
    }

    /// The bytes of each group by bin. Complete after [`Self::end_run`].
    pub(crate) fn values(&self, grouping: Grouping) -> impl Iterator<Item = Vec<u64>> {
        self.filled_values(grouping).map(|filled| {
            let mut values = filled.to_vec();
            values.resize(self.highs.len(), 0);
            values
        })
    }

    /// As [`Self::values`], without copies and without the last bins that have 0.
    pub(crate) fn filled_values(&self, grouping: Grouping) -> impl Iterator<Item = &[u64]> {
        self.groups[grouping as usize].filled_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A block: group, bytes, allocating event, freeing event.
    type Block = (usize, u64, u64, Option<u64>);

    proptest! {
        #[test]
        fn groups_sum_to_the_high_of_each_bin(
            choices in proptest::collection::vec((0u8..10, 0usize..6, 1u64..100, 1u64..400), 1..500),
            max_values in 4usize..400,
        ) {
            let mut all = Composition::with_limits(16, 64, max_values);
            let (mut blocks, mut live): (Vec<Block>, Vec<usize>) = (Vec::new(), Vec::new());
            let mut axis = BinAxis::for_run(1600, 400);
            let (mut time_ns, mut bytes, mut event) = (5, 0, 0);
            for (what, group, size, delay_ns) in choices {
                time_ns += delay_ns;
                if all.needs_new_bin(axis.advance(time_ns)) {
                    all.end_bin();
                    all.begin_bin(&axis, bytes, event);
                }
                event += 1;
                if what < 5 && !live.is_empty() {
                    let index = live.swap_remove(group % live.len());
                    let (group, size, allocated, _) = blocks[index];
                    blocks[index].3 = Some(event);
                    bytes -= size;
                    if all.was_at_high(allocated) {
                        all.add(Grouping::Site, group, all.highs_of_block(allocated, event), size);
                    }
                } else {
                    live.push(blocks.len());
                    blocks.push((group, size, event, None));
                    bytes += size;
                }
                all.observe(time_ns, bytes, event);
            }
            for (group, size, allocated, _) in blocks.iter().filter(|block| block.3.is_none()) {
                all.add(Grouping::Site, *group, all.highs_of_block(*allocated, u64::MAX), *size);
            }
            all.end_run();
            let values: Vec<Vec<u64>> = all.values(Grouping::Site).collect();
            for (bin, high) in all.highs().iter().enumerate() {
                let mut expected = vec![0; values.len()];
                for (group, size, allocated, freed) in &blocks {
                    if *allocated <= high.event && freed.is_none_or(|freed| freed > high.event) {
                        expected[*group] += size;
                    }
                }
                let found: Vec<u64> = values.iter().map(|bytes| bytes[bin]).collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(found.iter().sum::<u64>(), high.live);
            }
            prop_assert!(all.highs().len() <= 64);
        }
    }

    #[test]
    fn many_groups_have_fewer_bins() {
        let mut axis = BinAxis::for_run(1000, 2000);
        let mut all = Composition::with_limits(16, 64, 200);
        for bin in 0..63u64 {
            let event = 2 * bin;
            if all.needs_new_bin(axis.advance(15 * bin)) {
                all.end_bin();
                all.begin_bin(&axis, 0, event);
            }
            all.observe(15 * bin, 5 + bin, event + 1);
            for group in 0..20 {
                all.add(Grouping::Site, group, all.highs_of_block(event + 1, event + 2), 1);
            }
        }
        all.end_run();
        assert!(all.highs().len() <= 64 / 4, "{}", all.highs().len());
        assert!(all.highs()[1].begin_ns >= 3 * 16);
        assert!(all.values(Grouping::Site).all(|values| values.iter().all(|bytes| *bytes == 1)));
    }

    #[test]
    fn last_moment_of_all_ends_no_bin() {
        let mut axis = BinAxis::default();
        let mut all = Composition::with_limits(16, 64, 200);
        for event in 0..9 {
            if all.needs_new_bin(axis.advance(u64::MAX)) {
                all.end_bin();
                all.begin_bin(&axis, event, event);
            }
            all.observe(u64::MAX, event + 1, event + 1);
        }
        assert_eq!(all.highs().len(), 1);
        assert_eq!(all.highs()[0].live, 9);
    }
}
