//! What each key of a device allocated in a window, and its live memory at the peak, at the last
//! step end and at the end.
//!
//! No moment needs a copy of the live set: each row saves its value at the first change after a new
//! peak or a step end. So these make no event slower. `totals_tests.rs` compares the totals with a
//! model that copies the live set.

use std::collections::HashMap;
use std::hash::Hash;

use gpumemtrace_replay::report::WalkedBlock;

/// Bytes, as the allocator rounded them up, and the number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl Amount {
    /// The size of one block.
    pub(crate) fn of_block(block: &WalkedBlock) -> Self {
        Self { bytes: block.size_bytes, blocks: 1 }
    }

    /// Saturates: sizes in a damaged trace may have any sum.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    /// The difference, at least zero.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }
}

/// The blocks of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRow<K> {
    pub(crate) key: K,
    /// The stack of the first block of the key.
    pub(crate) first_stack: u32,
    /// Live when all keys together had the most live bytes in the window.
    pub(crate) peak: Amount,
    /// Live at the end of the window.
    pub(crate) end: Amount,
    /// Live at the end of the last step that ended in the window; `None` without one.
    pub(crate) last_step: Option<Amount>,
    /// Allocated in the window, whether freed or not.
    pub(crate) allocated: Amount,
}

/// The totals of one device and layer, by key.
#[derive(Debug)]
pub(crate) struct WindowTotals<K> {
    is_inside: bool,
    live_bytes: u64,
    peak_bytes: u64,
    /// Number of peaks so far, each higher than the one before.
    peaks: u64,
    /// Number of steps that ended in the window.
    steps_ended: u64,
    rows: Vec<GrowingRow<K>>,
    index_by_key: HashMap<K, usize>,
}

#[derive(Debug)]
struct GrowingRow<K> {
    /// Its `end` is the present value.
    row: WindowRow<K>,
    /// The number of the peak that `row.peak` was saved for.
    saved_peak: u64,
    /// The number of the step end that `row.last_step` was saved for.
    saved_step: u64,
}

impl<K> GrowingRow<K> {
    /// Saves the value at the last step end before the first change after it.
    fn save_step(&mut self, steps_ended: u64) {
        if self.saved_step < steps_ended {
            self.saved_step = steps_ended;
            self.row.last_step = Some(self.row.end);
        }
    }

    /// Saves the value at the last peak before the first change after it.
    fn save_peak(&mut self, peaks: u64) {
        if self.saved_peak < peaks {
            self.saved_peak = peaks;
            self.row.peak = self.row.end;
        }
    }
}

impl<K> Default for WindowTotals<K> {
    fn default() -> Self {
        Self {
            is_inside: false,
            live_bytes: 0,
            peak_bytes: 0,
            peaks: 0,
            steps_ended: 0,
            rows: Vec::new(),
            index_by_key: HashMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> WindowTotals<K> {
    /// Begins the window; the present state is its first peak. Before, blocks only become live.
    pub(crate) fn begin_window(&mut self) {
        self.is_inside = true;
        self.peak_bytes = self.live_bytes;
        self.peaks += 1;
    }

    /// Ends a step of the window at the present state.
    pub(crate) fn end_step(&mut self) {
        self.steps_ended += u64::from(self.is_inside);
    }

    /// Adds a block that was allocated.
    pub(crate) fn allocate(&mut self, key: K, block: &WalkedBlock) {
        let (amount, is_inside) = (Amount::of_block(block), self.is_inside);
        let row = self.row_to_change(key, block.stack);
        row.end.add(amount);
        if is_inside {
            row.allocated.add(amount);
        }
        self.live_bytes = self.live_bytes.saturating_add(amount.bytes);
        if is_inside && self.live_bytes > self.peak_bytes {
            self.peak_bytes = self.live_bytes;
            self.peaks += 1;
        }
    }

    /// Removes a block that was freed or lost.
    pub(crate) fn free(&mut self, key: K, block: &WalkedBlock) {
        let amount = Amount::of_block(block);
        let row = self.row_to_change(key, block.stack);
        row.end = row.end.minus(amount);
        self.live_bytes = self.live_bytes.saturating_sub(amount.bytes);
    }

    fn row_to_change(&mut self, key: K, stack: u32) -> &mut WindowRow<K> {
        let (peaks, steps_ended, none) = (self.peaks, self.steps_ended, Amount::default());
        let index = *self.index_by_key.entry(key).or_insert_with(|| {
            // Nothing was live at step ends before.
            let last_step = (steps_ended > 0).then_some(none);
            let row =
                WindowRow { key, first_stack: stack, peak: none, end: none, last_step, allocated: none };
            self.rows.push(GrowingRow { row, saved_peak: peaks, saved_step: steps_ended });
            self.rows.len() - 1
        });
        let row = &mut self.rows[index];
        row.save_peak(peaks);
        row.save_step(steps_ended);
        &mut row.row
    }

    /// The rows with any value, in the order of their first blocks. If the window never began, the
    /// present state is its peak and its end.
    pub(crate) fn into_rows(mut self) -> Vec<WindowRow<K>> {
        if !self.is_inside {
            self.begin_window();
        }
        let (peaks, steps_ended) = (self.peaks, self.steps_ended);
        let finished = self.rows.into_iter().map(|mut row| {
            row.save_peak(peaks);
            row.save_step(steps_ended);
            row.row
        });
        let amounts =
            |row: &WindowRow<K>| [row.peak, row.end, row.allocated, row.last_step.unwrap_or_default()];
        finished.filter(|row| amounts(row).iter().any(|amount| amount.blocks > 0)).collect()
    }
}
