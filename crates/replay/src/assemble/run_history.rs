//! The memory of a run over time, for viewers: series, blocks by birth and death, and exact states.
//!
//! [`Analysis::take_history`](crate::Analysis::take_history) returns it for an analysis with
//! [`AnalysisOptions::keeps_history`](crate::AnalysisOptions::keeps_history). Its size is bounded,
//! whatever the number of events. Times are nanoseconds since the start of recording.

use crate::device::keyframes::KeyframeReason;
use crate::device::placed_blocks::PlacedBlocks;
use crate::report::{BlockSum, Category, GapPoint, PoolInfo, SegmentPlace, Site, StepSource};
use crate::state::live_set::history::lifetimes::{LifetimeRow, NEVER, halve_rows};
use crate::util::ids::StackId;

/// The memory of one run over time.
#[derive(Debug, Default)]
pub struct RunHistory {
    /// Duration of the recording.
    pub duration_ns: u64,
    /// Number of steps begun.
    pub steps: u32,
    /// The step source as in `steps.source` of a report; `None` without steps.
    pub step_source: Option<StepSource>,
    /// Start of steps 1, 1 + `step_distance`, 1 + 2 * `step_distance`...; empty without steps.
    pub step_starts_ns: Vec<u64>,
    /// Distance between steps with a known start; 1 unless the run has very many.
    pub step_distance: u64,
    /// Turns of phases in the order of their begin: name, begin and end. A turn that did not end
    /// ends with the recording.
    pub phase_turns: Vec<(String, u64, u64)>,
    /// Number of turns beyond those in `phase_turns`.
    pub omitted_phase_turns: u64,
    /// Marks: name, time and step. At most the first 1,000.
    pub marks: Vec<(String, u64, Option<u64>)>,
    /// The sites that stacks belong to, without stacks.
    pub sites: Vec<Site>,
    /// The stacks of blocks: each as its site with all frames, and the index of that site in
    /// `sites`.
    pub stacks: Vec<(Site, usize)>,
    /// The devices by ascending ordinal; unknown ones are left out.
    pub devices: Vec<DeviceHistory>,
}

/// The memory of one device over time.
#[derive(Debug)]
pub struct DeviceHistory {
    /// Ordinal of the device.
    pub ordinal: u8,
    /// True if blocks are those of PyTorch's allocator, else they are driver memory.
    pub has_torch: bool,
    /// Begins of the bins of `series`, and the end of the last. Bins follow events as well as time,
    /// so their widths differ. The end of a bin is not in it. Empty without bins.
    pub series_edges_ns: Vec<u64>,
    /// Per bin the least and the most live, reserved and device bytes, in this order. What is
    /// unknown is empty.
    pub series: [Vec<u64>; 6],
    /// As `series_edges_ns`, for the bins of `bin_times_ns`, `bin_live` and `site_series`.
    pub bins_edges_ns: Vec<u64>,
    /// The moment of the most live bytes of each bin.
    pub bin_times_ns: Vec<u64>,
    /// Live bytes at that moment.
    pub bin_live: Vec<u64>,
    /// Live bytes at that moment by site, an index in `sites`. These are the sites with the most
    /// bytes in any bin; those with the most bytes over time come first.
    pub site_series: Vec<(usize, Vec<u64>)>,
    /// Number of sites without a series of their own.
    pub other_sites: u64,
    /// Live bytes at that moment by category. Empty without PyTorch.
    pub categories: Vec<(Category, Vec<u64>)>,
    /// Live bytes at that moment by stream and pool; `None` where they are unknown. Empty if all
    /// are.
    pub pools: Vec<(Option<PoolInfo>, Vec<u64>)>,
    /// Blocks by birth and death.
    pub blocks: BlockHistory,
    /// Reserved and unused bytes at some moments, ascending in time. Empty without PyTorch.
    pub gap: Vec<GapPoint>,
    /// Exact states by time.
    pub states: Vec<AllocatorState>,
    /// Number of marks, and of errors in the report, without a state.
    pub omitted_states: u64,
}

impl DeviceHistory {
    /// Drops bins without a width. No event is in them: events of one moment are in one bin.
    pub(super) fn drop_empty_bins(&mut self) {
        let is_kept = keep_wide_bins(&mut self.series_edges_ns);
        self.series.iter_mut().for_each(|values| retain(values, &is_kept));
        let is_kept = keep_wide_bins(&mut self.bins_edges_ns);
        retain(&mut self.bin_times_ns, &is_kept);
        retain(&mut self.bin_live, &is_kept);
        let sites = self.site_series.iter_mut().map(|(_, values)| values);
        let categories = self.categories.iter_mut().map(|(_, values)| values);
        let pools = self.pools.iter_mut().map(|(_, values)| values);
        sites.chain(categories).chain(pools).for_each(|values| retain(values, &is_kept));
    }
}

/// Drops the edges of bins without a width. Returns which bins are kept.
fn keep_wide_bins(edges_ns: &mut Vec<u64>) -> Vec<bool> {
    let is_kept: Vec<bool> = edges_ns.windows(2).map(|edges| edges[0] < edges[1]).collect();
    edges_ns.dedup();
    is_kept
}

fn retain(values: &mut Vec<u64>, is_kept: &[bool]) {
    let mut is_kept = is_kept.iter();
    values.retain(|_| is_kept.next().copied().unwrap_or(true));
}

/// Blocks by the bins of their birth and death.
///
/// Edge `e` lies between bins `e - 1` and `e`: after all events up to and with `edges_ns[e]`. A
/// block is live there if `birth < e && e <= death`.
#[derive(Debug)]
pub struct BlockHistory {
    /// Times of the edges, one more than bins. The first is before all events, and the last is the
    /// end of the run. Bins follow events as well as time, so the distances differ.
    pub edges_ns: Vec<u64>,
    /// Number of bins, also the death bin of blocks that were not freed.
    pub bins: u16,
    /// Number of bins that were merged into each, at least 1.
    pub merged: u64,
    /// The rows by birth and death.
    pub rows: Vec<BlockSum>,
}

/// The state of PyTorch's allocator at one moment.
#[derive(Debug)]
pub struct AllocatorState {
    /// Why the state was kept.
    pub why: KeyframeReason,
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    /// Number of the step; `None` without steps.
    pub step: Option<u64>,
    /// Number of events of PyTorch's blocks on the device up to the moment, as a walk passes them.
    pub block_events: u64,
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// Segments by address. Empty without PyTorch's tracker.
    pub segments: Vec<SegmentPlace>,
    pub(super) blocks: PlacedBlocks,
}

impl AllocatorState {
    /// Live blocks by address: address, bytes, and index in [`RunHistory::stacks`].
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (u64, u64, u32)> + '_ {
        self.blocks.iter()
    }
}

impl BlockHistory {
    /// Merges the bins in pairs, which makes the table smaller.
    pub fn merge_bins(&mut self) {
        let bins = self.bins;
        let lifetime = |row: BlockSum| LifetimeRow {
            birth: row.birth,
            death: if row.death == bins { NEVER } else { row.death },
            stack: StackId(row.stack),
            bytes: row.bytes,
            count: row.count,
        };
        // Both kinds of rows have the same size, so the rows are converted in place.
        let mut rows: Vec<LifetimeRow> = std::mem::take(&mut self.rows).into_iter().map(lifetime).collect();
        halve_rows(&mut rows);
        rows.shrink_to_fit();
        self.bins = self.bins.div_ceil(2);
        self.merged = self.merged.saturating_mul(2);
        self.edges_ns = keep_every(&self.edges_ns, 2);
        self.rows = block_sums(rows, self.bins, |stack| stack.0);
    }
}

/// The edges of bins that were merged: each `merged`-th one, and the last.
pub(super) fn keep_every(edges_ns: &[u64], merged: usize) -> Vec<u64> {
    let last = edges_ns.last().copied();
    let before_last = &edges_ns[..edges_ns.len().saturating_sub(1)];
    before_last.iter().step_by(merged).copied().chain(last).collect()
}

/// The rows with the numbers of their stacks, in the same memory.
pub(super) fn block_sums(
    rows: Vec<LifetimeRow>,
    bins: u16,
    mut stack: impl FnMut(StackId) -> u32,
) -> Vec<BlockSum> {
    let sum = |row: LifetimeRow| BlockSum {
        birth: row.birth,
        death: if row.death == NEVER { bins } else { row.death },
        stack: stack(row.stack),
        bytes: row.bytes,
        count: row.count,
    };
    rows.into_iter().map(sum).collect()
}
