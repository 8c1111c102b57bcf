//! Blocks by the bins of their birth and death, and by stack.
//!
//! A row sums the blocks of one stack that were born in one bin and died in another. From the rows
//! follows which blocks were live at the edge between two bins, which were allocated between two
//! edges and kept, and which were freed again.
//!
//! Constraint: bins x stacks may be many. Consequence: when [`MAX_ROWS`] are exceeded, bins are
//! merged in pairs, so memory is constant. The bin of a block's birth follows from its serial
//! number, so a block stores nothing for this. A removal costs a few comparisons and two additions.

use crate::state::live_set::LiveBlock;
use crate::util::ids::StackId;

/// Limit of rows after merging.
const MAX_ROWS: usize = 1 << 19;
/// The shift at which the table has one bin.
const MAX_SHIFT: u32 = 9;
/// The death bin of a block that was never freed.
pub(crate) const NEVER: u16 = u16::MAX;

/// Blocks of one stack with the same bins of birth and death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifetimeRow {
    pub birth: u16,
    /// [`NEVER`] for blocks that were not freed.
    pub death: u16,
    pub stack: StackId,
    /// Sum of the blocks.
    pub bytes: u64,
    pub count: u64,
}

impl LifetimeRow {
    fn key(&self) -> (u16, u16, u32) {
        (self.birth, self.death, self.stack.0)
    }
}

/// The last rows of one stack, which further blocks may be added to.
#[derive(Clone, Copy, Debug, Default)]
struct OpenRows {
    /// Blocks that died in the bin of their birth.
    churn: OpenRow,
    other: OpenRow,
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenRow {
    birth: u16,
    death: u16,
    bytes: u64,
    count: u64,
}

impl OpenRow {
    /// Stores the row, unless it is empty.
    fn close(self, stack: StackId, rows: &mut Vec<LifetimeRow>) {
        let Self { birth, death, bytes, count } = self;
        if count > 0 {
            rows.push(LifetimeRow { birth, death, stack, bytes, count });
        }
    }
}

/// The births and deaths of all blocks of a live set.
#[derive(Clone, Debug)]
pub(crate) struct LifetimeTable {
    /// Limit of rows after merging; twice as many may wait for it.
    max_rows: usize,
    /// For each bin of the timeline, the last event before it.
    edges: Vec<u64>,
    /// Each bin of the table has `1 << shift` bins of the timeline.
    shift: u32,
    /// The bin of the table with the present moment.
    current: u16,
    /// The last event before that bin.
    current_edge: u64,
    open: Vec<OpenRows>,
    rows: Vec<LifetimeRow>,
}

impl Default for LifetimeTable {
    fn default() -> Self {
        Self::with_max_rows(MAX_ROWS)
    }
}

impl LifetimeTable {
    fn with_max_rows(max_rows: usize) -> Self {
        Self {
            max_rows,
            edges: Vec::new(),
            shift: 0,
            current: 0,
            current_edge: 0,
            open: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Handles the removal of a block in the current bin.
    #[inline]
    pub(crate) fn on_removed(&mut self, block: &LiveBlock) {
        let stack = block.stack.0 as usize;
        if stack >= self.open.len() {
            self.grow(stack);
        }
        let (birth, death) = self.bins_of_removed(block);
        let open = &mut self.open[stack];
        let row = if birth == death { &mut open.churn } else { &mut open.other };
        if (row.birth, row.death) == (birth, death) {
            row.bytes = row.bytes.saturating_add(block.bytes);
            row.count += 1;
        } else {
            self.begin_row(block);
        }
    }

    #[cold]
    fn grow(&mut self, stack: usize) {
        self.open.resize(stack + 1, OpenRows::default());
    }

    /// The bins of birth and death of a block that is removed in the current bin.
    #[inline]
    fn bins_of_removed(&self, block: &LiveBlock) -> (u16, u16) {
        let is_churn = block.serial > self.current_edge;
        (if is_churn { self.current } else { self.bin_of(block.serial) }, self.current)
    }

    /// Stores the open row of a stack and begins one with this block. May merge bins.
    #[inline(never)] // Once per row.
    fn begin_row(&mut self, block: &LiveBlock) {
        let (birth, death) = self.bins_of_removed(block);
        let row = OpenRow { birth, death, bytes: block.bytes, count: 1 };
        let open = &mut self.open[block.stack.0 as usize];
        let place = if birth == death { &mut open.churn } else { &mut open.other };
        let old = std::mem::replace(place, row);
        if self.rows.capacity() == 0 {
            // A vector that grows would be copied, and twice as large in the meantime.
            self.rows.reserve_exact(2 * self.max_rows);
        }
        old.close(block.stack, &mut self.rows);
        if self.rows.len() >= 2 * self.max_rows {
            self.limit_rows();
        }
    }

    fn limit_rows(&mut self) {
        merge_equal(&mut self.rows);
        while self.rows.len() > self.max_rows && self.shift < MAX_SHIFT {
            self.merge_bins();
        }
    }

    /// The bin of the table in which an event was.
    fn bin_of(&self, serial: u64) -> u16 {
        let bin = self.edges.partition_point(|edge| *edge < serial).saturating_sub(1);
        (bin >> self.shift) as u16
    }

    /// Stores all open rows.
    fn close_all(&mut self) {
        for (open, stack) in std::mem::take(&mut self.open).into_iter().zip(0..) {
            open.churn.close(StackId(stack), &mut self.rows);
            open.other.close(StackId(stack), &mut self.rows);
        }
    }

    /// Merges the bins of the table in pairs.
    fn merge_bins(&mut self) {
        self.close_all();
        self.shift += 1;
        halve_rows(&mut self.rows);
        self.update_current();
    }

    /// Appends bins of the timeline up to `len`. `serial` is the last event before them.
    pub(crate) fn begin_bins(&mut self, len: usize, serial: u64) {
        self.edges.resize(len.max(self.edges.len()), serial);
        self.update_current();
    }

    fn update_current(&mut self) {
        let bin = self.edges.len().saturating_sub(1) >> self.shift;
        self.current = bin as u16;
        self.current_edge = self.edges.get(bin << self.shift).copied().unwrap_or(0);
    }

    /// Merges the bins of the timeline in pairs.
    pub(crate) fn halve(&mut self) {
        let mut index = 0usize;
        self.edges.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        if self.shift > 0 {
            self.shift -= 1;
        } else {
            self.close_all();
            halve_rows(&mut self.rows);
        }
        self.update_current();
    }

    /// Completes the table with the blocks that were not freed.
    pub(crate) fn finish<'a>(&mut self, live: impl Iterator<Item = &'a LiveBlock>) {
        self.close_all();
        for block in live {
            let (birth, bytes) = (self.bin_of(block.serial), block.bytes);
            self.rows.push(LifetimeRow { birth, death: NEVER, stack: block.stack, bytes, count: 1 });
        }
        self.limit_rows();
        self.rows.shrink_to_fit();
    }

    /// The rows by birth, death and stack. Complete after [`Self::finish`].
    pub(crate) fn into_rows(self) -> Vec<LifetimeRow> {
        self.rows
    }

    /// Number of bins of the table.
    pub(crate) fn bins(&self) -> usize {
        self.edges.len().div_ceil(1 << self.shift)
    }

    /// Number of bins of the timeline per bin of the table, as a power of two.
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }
}

/// Merges the bins of rows in pairs. Afterwards the rows are sorted and distinct.
pub(crate) fn halve_rows(rows: &mut Vec<LifetimeRow>) {
    for row in rows.iter_mut() {
        row.birth /= 2;
        if row.death != NEVER {
            row.death /= 2;
        }
    }
    merge_equal(rows);
}

/// Sorts rows by birth, death and stack, and adds up those with equal ones.
fn merge_equal(rows: &mut Vec<LifetimeRow>) {
    rows.sort_unstable_by_key(LifetimeRow::key);
    rows.dedup_by(|next, first| {
        let is_equal = next.key() == first.key();
        if is_equal {
            first.bytes = first.bytes.saturating_add(next.bytes);
            first.count = first.count.saturating_add(next.count);
        }
        is_equal
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bins of the axis before it is halved.
    const AXIS_BINS: usize = 8;

    proptest! {
        #[test]
        fn blocks_at_each_edge_are_those_of_a_recount(
            choices in proptest::collection::vec((0u8..10, 0u32..5, 0usize..100), 1..400),
            max_rows in 1usize..60,
        ) {
            let mut table = LifetimeTable::with_max_rows(max_rows);
            // Stack, birth and death of each block, as numbers of events.
            let mut blocks: Vec<(u32, u64, Option<u64>)> = Vec::new();
            let mut events = 0u64;
            let mut width = 1u64;
            for (what, stack, pick) in choices {
                // An event per unit of time, so its bin is the number of events before it.
                while events / width >= AXIS_BINS as u64 {
                    table.begin_bins(AXIS_BINS, events);
                    table.halve();
                    width *= 2;
                }
                table.begin_bins((events / width) as usize + 1, events);
                events += 1;
                let mut live = blocks.iter_mut().filter(|(.., death)| death.is_none());
                let count = live.by_ref().count();
                let mut live = blocks.iter_mut().filter(|(.., death)| death.is_none());
                match live.nth(pick % count.max(1)).filter(|_| what < 5) {
                    Some((stack, birth, death)) => {
                        *death = Some(events);
                        let (bytes, stack) = (*birth, StackId(*stack));
                        table.on_removed(&LiveBlock { bytes, stack, serial: *birth, ..LiveBlock::default() });
                    }
                    None => blocks.push((stack, events, None)),
                }
            }
            let still = blocks.iter().filter(|(.., death)| death.is_none());
            let still: Vec<LiveBlock> = still
                .map(|(stack, birth, _)| LiveBlock {
                    bytes: *birth,
                    stack: StackId(*stack),
                    serial: *birth,
                    ..LiveBlock::default()
                })
                .collect();
            table.finish(still.iter());
            prop_assert!(table.rows.len() <= max_rows.max(5) || table.shift() == MAX_SHIFT);
            let counted: u64 = table.rows.iter().map(|row| row.count).sum();
            prop_assert_eq!(counted, blocks.len() as u64);
            for edge in 1..=table.bins() {
                let last_event = (edge as u64 * (width << table.shift())).min(events);
                let is_live = |(_, birth, death): &&(u32, u64, Option<u64>)| {
                    *birth <= last_event && death.is_none_or(|death| death > last_event)
                };
                for stack in 0..5 {
                    let expected: u64 = blocks.iter().filter(|one| one.0 == stack).filter(is_live).map(|one| one.1).sum();
                    let rows = table.rows.iter().filter(|row| row.stack == StackId(stack));
                    let at_edge = rows.filter(|row| usize::from(row.birth) < edge && edge <= usize::from(row.death));
                    prop_assert_eq!(at_edge.map(|row| row.bytes).sum::<u64>(), expected);
                }
            }
        }
    }
}
