//! Live bytes by group at the high of each bin of the timeline.
//!
//! Constraint: the group of a block, such as its category, may be known only when it is freed, and
//! the high of a bin only when the bin ends. Consequence: a removed block is added to all bins with
//! a high at which it was live. What is removed in the current bin stays open until the bin ends or
//! gets a new high. A block costs one addition per bin that it lived through, and nothing if it was
//! live at no high. The test below and `replay/tests/history/` compare with a recount.

use crate::timeline::bins::MergedExtremes;

/// The event of the highest live bytes of each bin; the last bin is the current one.
#[derive(Clone, Debug, Default)]
pub(crate) struct BinHighs {
    events: Vec<u64>,
}

/// The highs at which a block was live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveHighs {
    /// The first bin before `end` with such a high.
    begin: usize,
    /// Index of the current bin.
    end: usize,
    /// The high of the current bin, if the block was live there.
    open: Option<u64>,
}

impl BinHighs {
    /// The event of the last high; 0 before the first bin.
    #[inline]
    pub(crate) fn latest(&self) -> u64 {
        self.events.last().copied().unwrap_or(0)
    }

    /// Moves the high of the current bin to an event.
    #[inline]
    pub(crate) fn set(&mut self, event: u64) {
        if let Some(last) = self.events.last_mut() {
            *last = event;
        }
    }

    /// The highs at which a block was live, allocated and removed by these events.
    pub(crate) fn of_block(&self, allocated: u64, removed: u64) -> LiveHighs {
        let end = self.events.len().saturating_sub(1);
        let begin = self.events[..end].partition_point(|high| *high < allocated);
        let latest = self.latest();
        LiveHighs { begin, end, open: (allocated <= latest && latest < removed).then_some(latest) }
    }

    /// Appends bins up to `len`, in which `event` is the last event before them.
    pub(super) fn append(&mut self, len: usize, event: u64) {
        self.events.resize(len.max(self.events.len()), event);
    }

    /// Merges the bins in pairs.
    pub(super) fn halve(&mut self, extremes: &[MergedExtremes]) {
        halve(&mut self.events, extremes);
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }
}

/// The bytes of each group. Groups are numbered by the caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupSeries {
    groups: Vec<GroupBytes>,
}

#[derive(Clone, Debug, Default)]
struct GroupBytes {
    /// Bytes at the high of each ended bin; bins beyond its length have 0.
    bins: Vec<u64>,
    /// Bytes of blocks that were live at the event `high` and removed since.
    open: u64,
    high: u64,
}

impl GroupSeries {
    /// Counts a block of a group at the highs at which it was live.
    pub(crate) fn add(&mut self, group: usize, highs: LiveHighs, bytes: u64) {
        if group >= self.groups.len() {
            self.groups.resize(group + 1, GroupBytes::default());
        }
        let group = &mut self.groups[group];
        if highs.begin < highs.end {
            group.bins.resize(highs.end.max(group.bins.len()), 0);
            for sum in &mut group.bins[highs.begin..highs.end] {
                *sum = sum.saturating_add(bytes);
            }
        }
        if let Some(high) = highs.open {
            if group.high != high {
                (group.high, group.open) = (high, 0);
            }
            group.open = group.open.saturating_add(bytes);
        }
    }

    /// Ends the current bin.
    pub(super) fn end_bin(&mut self, highs: &BinHighs) {
        let Some(bin) = highs.len().checked_sub(1) else { return };
        for group in &mut self.groups {
            let bytes = std::mem::take(&mut group.open);
            if group.high == highs.latest() && bytes > 0 {
                group.bins.resize(group.bins.len().max(bin + 1), 0);
                group.bins[bin] = group.bins[bin].saturating_add(bytes);
            }
        }
    }

    /// Merges the bins in pairs.
    pub(super) fn halve(&mut self, extremes: &[MergedExtremes]) {
        for group in &mut self.groups {
            group.bins.resize(extremes.len() * 2, 0);
            halve(&mut group.bins, extremes);
        }
    }

    /// The bytes of each group by bin, in `bins` bins. Complete after the last bin has ended.
    pub(crate) fn values(&self, bins: usize) -> impl Iterator<Item = Vec<u64>> {
        self.groups.iter().map(move |group| {
            let mut values = group.bins.clone();
            values.resize(bins, 0);
            values
        })
    }
}

/// Keeps of each pair of bins the value of the one with the high.
fn halve(values: &mut Vec<u64>, extremes: &[MergedExtremes]) {
    let pairs = values.chunks(2).zip(extremes);
    *values =
        pairs.map(|(pair, extreme)| pair.get(extreme.high).or(pair.first()).copied().unwrap_or(0)).collect();
}
