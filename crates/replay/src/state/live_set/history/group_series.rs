//! The bytes of groups of blocks at the high of each bin, for [`super::composition`].

/// The highs at which a block was live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveHighs {
    /// The first ended bin with such a high.
    pub(super) begin: usize,
    /// Number of ended bins.
    pub(super) end: usize,
    /// The high of the current bin, if the block was live there.
    pub(super) open: Option<u64>,
    /// The block is live at the end, so it was live at all highs from `begin` on.
    pub(super) is_live: bool,
}

/// The bytes of each group of one grouping.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupSeries {
    groups: Vec<GroupBytes>,
}

#[derive(Clone, Debug, Default)]
struct GroupBytes {
    /// Bytes at the high of each ended bin, but for `changes`; bins beyond its length have 0.
    bins: Vec<u64>,
    /// Bytes that begin and that end to be live at the high of a bin.
    changes: Vec<[u64; 2]>,
    /// Bytes of blocks that were live at the event `high_event` and removed since.
    open: u64,
    high_event: u64,
}

impl GroupBytes {
    /// Adds bytes that were live at the highs from `begin` to before `end`; at all later ones, too,
    /// if `end` is `None`.
    fn add_span(&mut self, begin: usize, end: Option<usize>, bytes: u64) {
        let len = end.unwrap_or(begin) + 1;
        self.changes.resize(len.max(self.changes.len()), [0; 2]);
        let begins = &mut self.changes[begin][0];
        *begins = begins.saturating_add(bytes);
        if let Some(end) = end {
            let ends = &mut self.changes[end][1];
            *ends = ends.saturating_add(bytes);
        }
    }

    /// Adds the changes to the first `len` bins, and forgets them.
    fn settle(&mut self, len: usize) {
        if self.changes.is_empty() {
            return;
        }
        self.bins.resize(len.max(self.bins.len()), 0);
        let mut changes = std::mem::take(&mut self.changes).into_iter();
        let mut live = 0u64;
        for sum in self.bins.iter_mut().take(len) {
            let [begins, ends] = changes.next().unwrap_or_default();
            live = live.saturating_add(begins).saturating_sub(ends);
            *sum = sum.saturating_add(live);
        }
    }
}

impl GroupSeries {
    pub(super) fn add(&mut self, group: usize, highs: LiveHighs, bytes: u64) {
        if group >= self.groups.len() {
            self.groups.resize(group + 1, GroupBytes::default());
        }
        let group = &mut self.groups[group];
        if highs.begin < highs.end {
            group.add_span(highs.begin, (!highs.is_live).then_some(highs.end), bytes);
        }
        if let Some(event) = highs.open {
            if group.high_event != event {
                (group.high_event, group.open) = (event, 0);
            }
            group.open = group.open.saturating_add(bytes);
        }
    }

    pub(super) fn end_bin(&mut self, bin: usize, high_event: u64) {
        for group in &mut self.groups {
            let bytes = std::mem::take(&mut group.open);
            if group.high_event == high_event && bytes > 0 {
                group.bins.resize(group.bins.len().max(bin + 1), 0);
                group.bins[bin] = group.bins[bin].saturating_add(bytes);
            }
        }
    }

    /// Adds all changes. Blocks that are live at the end are so in the current bin, too, where they
    /// are open; it is the last of `len` bins.
    pub(super) fn end_run(&mut self, len: usize) {
        for group in &mut self.groups {
            group.settle(len.saturating_sub(1));
        }
    }

    pub(super) fn count_values(&self) -> usize {
        self.groups.iter().map(|group| group.bins.len().max(group.changes.len())).sum()
    }

    pub(super) fn merge_pairs(&mut self, len: usize, picks: &[usize]) {
        for group in &mut self.groups {
            group.settle(len);
            let pairs = group.bins.chunks(2).zip(picks);
            group.bins = pairs.map(|(pair, pick)| pair.get(*pick).copied().unwrap_or(0)).collect();
        }
    }

    /// The bytes of each group by bin, without the last bins that have 0.
    pub(super) fn filled_values(&self) -> impl Iterator<Item = &[u64]> {
        self.groups.iter().map(|group| group.bins.as_slice())
    }
}
