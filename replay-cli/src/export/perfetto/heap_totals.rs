//! What each stack allocated and freed up to some moments of a run.
//!
//! The live blocks of a moment are exact. The history has the freed blocks by bins of time, so the
//! blocks that died in the bin of the moment are not counted. Both totals are therefore what was
//! allocated and freed at least, and their difference is exact. They never fall.

use std::collections::BTreeMap;

use gpumemtrace_replay::{AllocatorState, BlockHistory};

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64, blocks: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks = self.blocks.saturating_add(blocks);
    }

    fn each(self, other: Self, pick: impl Fn(u64, u64) -> u64) -> Self {
        Self { bytes: pick(self.bytes, other.bytes), blocks: pick(self.blocks, other.blocks) }
    }
}

/// The totals of one stack from the start of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackTotals {
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
}

/// The totals of the stacks of one device, moment by moment.
pub(super) struct HeapTotals<'a> {
    history: &'a BlockHistory,
    /// Rows of the history by death, those not yet counted last.
    by_death: Vec<usize>,
    counted: usize,
    /// Where the stacks of the history are in the profile.
    stacks: &'a [usize],
    /// What surely was freed.
    freed: Vec<Amount>,
    totals: Vec<StackTotals>,
}

impl<'a> HeapTotals<'a> {
    /// `stacks` has for each stack of the history its number in the profile.
    pub(super) fn new(history: &'a BlockHistory, stacks: &'a [usize]) -> Self {
        let count = stacks.iter().max().map_or(0, |most| most + 1);
        let mut by_death: Vec<usize> = (0..history.rows.len()).collect();
        by_death.sort_by_key(|row| history.rows[*row].death);
        Self {
            history,
            by_death,
            counted: 0,
            stacks,
            freed: vec![Amount::default(); count],
            totals: vec![StackTotals::default(); count],
        }
    }

    /// Advances to a state; returns the totals that changed, by number in the profile. States
    /// ascend in time.
    pub(super) fn advance(&mut self, state: &AllocatorState) -> Vec<(usize, StackTotals)> {
        self.count_freed(state.time_ns);
        let mut live: BTreeMap<usize, Amount> = BTreeMap::new();
        for (_, bytes, stack) in state.blocks() {
            live.entry(self.stacks[stack as usize]).or_default().add(bytes, 1);
        }
        let mut changed = Vec::new();
        for (number, totals) in self.totals.iter_mut().enumerate() {
            let live = live.get(&number).copied().unwrap_or_default();
            // What was allocated before and is not live has been freed.
            let gone = totals.allocated.each(live, u64::saturating_sub);
            let freed = totals.freed.each(gone, u64::max).each(self.freed[number], u64::max);
            let now = StackTotals { allocated: freed.each(live, u64::saturating_add), freed };
            if now != *totals {
                *totals = now;
                changed.push((number, now));
            }
        }
        changed
    }

    /// Counts the rows whose blocks all died before a moment.
    fn count_freed(&mut self, time_ns: u64) {
        let BlockHistory { start_ns, width_ns, bins, rows, .. } = self.history;
        let is_past = |death: u16| {
            let end_ns = start_ns.saturating_add((u64::from(death) + 1).saturating_mul(*width_ns));
            death < *bins && end_ns <= time_ns
        };
        while let Some(row) = self.by_death.get(self.counted).map(|row| &rows[*row])
            && is_past(row.death)
        {
            self.freed[self.stacks[row.stack as usize]].add(row.bytes, row.count);
            self.counted += 1;
        }
    }
}
