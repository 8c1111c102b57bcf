//! The memory of a run over time, for viewers: series, blocks by birth and death, and exact states.
//!
//! [`Analysis::history`] returns it for an analysis with
//! [`AnalysisOptions::keeps_history`](crate::AnalysisOptions::keeps_history). Its size is bounded,
//! whatever the number of events. Times are nanoseconds since the start of recording.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::assemble::fragmentation::pool_info;
use crate::device::DeviceState;
use crate::device::keyframes::{Keyframe, KeyframeReason};
use crate::fragmentation::CAUSES;
use crate::pass::Analysis;
use crate::peak::category::over_time::categories_over_time;
use crate::report::{Category, CauseKind, PoolInfo, Site};
use crate::state::live_set::LiveSet;
use crate::state::live_set::history::LiveHistory;
use crate::state::live_set::history::composition::{Composition, Grouping};
use crate::state::live_set::history::lifetimes::{LifetimeRow, NEVER, halve_rows};
use crate::state::pool_key::PoolKey;
use crate::timeline::extremes::ExtremeSeries;
use crate::util::ids::{SiteId, StackId};

/// Sites with a series of their own, per device.
const MAX_SITE_SERIES: usize = 200;

/// The memory of one run over time.
#[derive(Debug, Default)]
pub struct RunHistory {
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
    /// Begin of the first bin of `series`.
    pub series_start_ns: u64,
    /// Width of the bins of `series`.
    pub series_width_ns: u64,
    /// Per bin the least and the most live, reserved and device bytes, in this order. What is
    /// unknown is empty.
    pub series: [Vec<u64>; 6],
    /// Begin of the first bin of `bin_times_ns`, `bin_live` and `site_series`.
    pub bins_start_ns: u64,
    /// Width of these bins.
    pub bins_width_ns: u64,
    /// The moment of the most live bytes of each bin.
    pub bin_times_ns: Vec<u64>,
    /// Live bytes at that moment.
    pub bin_live: Vec<u64>,
    /// Live bytes at that moment by site (an index in `sites`), sites with the most bytes first.
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
}

/// Blocks by the bins of their birth and death.
///
/// Edge `e` lies at the end of bin `e - 1`, at `start_ns + e * width_ns - 1`. A block is live there
/// if `birth < e && e <= death`.
#[derive(Debug)]
pub struct BlockHistory {
    /// Begin of the first bin.
    pub start_ns: u64,
    /// Width of a bin.
    pub width_ns: u64,
    /// Number of bins, also the death bin of blocks that were not freed.
    pub bins: u16,
    /// The rows by birth and death.
    pub rows: Vec<BlockSum>,
}

/// Blocks of one stack with equal bins of birth and death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSum {
    /// Bin in which they were allocated.
    pub birth: u16,
    /// Bin in which they were freed; the number of bins if they were not.
    pub death: u16,
    /// The stack, as an index in [`RunHistory::stacks`].
    pub stack: usize,
    /// Sum of the bytes of these blocks.
    pub bytes: u64,
    /// Number of these blocks, at least 1.
    pub count: u64,
}

/// Unused reserved bytes at one moment.
#[derive(Debug)]
pub struct GapPoint {
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes reserved and not requested.
    pub gap: u64,
    /// The gap by cause; all causes in the same order at each moment.
    pub causes: Vec<(CauseKind, u64)>,
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
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// Segments by address. Empty without PyTorch's tracker.
    pub segments: Vec<SegmentPlace>,
    /// Live blocks by address: address, bytes, and index in [`RunHistory::stacks`].
    pub blocks: Vec<(u64, u64, usize)>,
}

/// A segment, or a mapped piece of an expandable one.
#[derive(Clone, Copy, Debug)]
pub struct SegmentPlace {
    /// Address of its first byte.
    pub addr: u64,
    /// Length in bytes, also of unused parts.
    pub bytes: u64,
    /// The stream that it serves.
    pub stream: u64,
    /// The pool that it serves; 0 is the default pool.
    pub pool: u64,
    /// A piece of an expandable segment.
    pub is_expandable: bool,
}

impl BlockHistory {
    /// Merges the bins in pairs, which makes the table smaller.
    pub fn merge_bins(&mut self) {
        let bins = self.bins;
        let key = |row: &BlockSum| LifetimeRow {
            birth: row.birth,
            death: if row.death == bins { NEVER } else { row.death },
            stack: StackId(row.stack as u32),
            bytes: row.bytes,
            count: row.count,
        };
        let mut rows: Vec<LifetimeRow> = self.rows.iter().map(key).collect();
        halve_rows(&mut rows);
        self.bins = self.bins.div_ceil(2);
        self.width_ns = self.width_ns.saturating_mul(2);
        let stack = |stack: StackId| stack.0 as usize;
        self.rows = rows.iter().map(|row| block_sum(row, self.bins, stack)).collect();
    }
}

fn block_sum(row: &LifetimeRow, bins: u16, stack: impl FnOnce(StackId) -> usize) -> BlockSum {
    let LifetimeRow { birth, death, bytes, count, .. } = *row;
    BlockSum {
        birth,
        death: if death == NEVER { bins } else { death },
        stack: stack(row.stack),
        bytes,
        count,
    }
}

impl Analysis {
    /// The memory of the run over time; `None` if the options did not ask for it.
    pub fn history(&self) -> Option<RunHistory> {
        let times = self.run_times.as_deref()?;
        let relative = |time_ns: u64| time_ns.saturating_sub(self.start_ns);
        let has_steps = self.step_rule.source().is_some();
        let starts = times.step_starts().iter().filter(|_| has_steps);
        let codes = &self.symbols.definitions().codes;
        let turns = times.turns().iter().map(|turn| {
            let name = codes.get(&turn.name).map_or_else(String::new, |code| code.name.clone());
            (name, relative(turn.begin_ns), relative(turn.end_ns.unwrap_or(self.end_ns)))
        });
        let marks = self.analyses.find::<crate::timeline::marks::MarkLog>();
        let marks = marks.into_iter().flat_map(|log| &log.first);
        let marks =
            marks.map(|mark| (mark.name.clone(), relative(mark.time_ns), self.reported_step(mark.step)));
        let mut builder = HistoryBuilder { analysis: self, sites: BTreeMap::new(), stacks: BTreeMap::new() };
        let devices = self.visible_devices().map(|(ordinal, state)| builder.device(ordinal, state)).collect();
        let mut history = RunHistory {
            step_starts_ns: starts.map(|time_ns| relative(*time_ns)).collect(),
            step_distance: times.every(),
            phase_turns: turns.collect(),
            omitted_phase_turns: times.omitted_turns(),
            marks: marks.collect(),
            devices,
            ..RunHistory::default()
        };
        builder.add_names(&mut history);
        Some(history)
    }
}

/// Numbers the sites and stacks that the history mentions.
struct HistoryBuilder<'a> {
    analysis: &'a Analysis,
    sites: BTreeMap<SiteId, usize>,
    stacks: BTreeMap<StackId, usize>,
}

impl HistoryBuilder<'_> {
    fn site(&mut self, site: SiteId) -> usize {
        let next = self.sites.len();
        *self.sites.entry(site).or_insert(next)
    }

    fn stack(&mut self, stack: StackId) -> usize {
        let next = self.stacks.len();
        *self.stacks.entry(stack).or_insert(next)
    }

    fn add_names(mut self, history: &mut RunHistory) {
        let symbols = &self.analysis.symbols;
        let mut stacks: Vec<(usize, StackId)> = self.stacks.iter().map(|(id, index)| (*index, *id)).collect();
        stacks.sort_unstable();
        for (_, stack) in stacks {
            let id = symbols.stack_info(stack).site;
            let site = self.site(id);
            history.stacks.push((symbols.site(id, Some(stack)), site));
        }
        let mut sites: Vec<(usize, SiteId)> = self.sites.into_iter().map(|(id, index)| (index, id)).collect();
        sites.sort_unstable();
        history.sites = sites.into_iter().map(|(_, id)| symbols.site(id, None)).collect();
    }

    fn device(&mut self, ordinal: u8, state: &DeviceState) -> DeviceHistory {
        let analysis = self.analysis;
        let relative = |time_ns: u64| time_ns.saturating_sub(analysis.start_ns);
        let live_set = state.main();
        let (has_torch, has_driver) = (state.has_torch(), !state.driver.is_empty());
        let is_known = [true, has_torch && analysis.knows_reserved(), has_driver];
        let series = live_set.history().map(|history| &history.series);
        let values = |index: usize| {
            let (series, is_known) = (series.filter(|_| is_known[index / 2]), index % 2);
            let least = || series.into_iter().flat_map(|series| series.least(index / 2)).collect();
            let most = || series.into_iter().flat_map(|series| series.most(index / 2)).collect();
            if is_known == 0 { least() } else { most() }
        };
        let composition = live_set.history().map(|history| &history.composition);
        let highs = || composition.into_iter().flat_map(Composition::highs);
        let (site_series, other_sites) = self.site_series(composition);
        DeviceHistory {
            ordinal,
            has_torch,
            series_start_ns: series.map_or(0, |series| relative(series.start_ns())),
            series_width_ns: series.map_or(0, ExtremeSeries::width_ns),
            series: std::array::from_fn(values),
            bins_start_ns: composition.map_or(0, |bins| relative(bins.start_ns())),
            bins_width_ns: composition.map_or(1, Composition::width_ns),
            bin_times_ns: highs().map(|high| relative(high.time_ns)).collect(),
            bin_live: highs().map(|high| high.live).collect(),
            site_series,
            other_sites,
            categories: categories_over_time(analysis, ordinal, state).into_iter().collect(),
            pools: pool_series(state),
            blocks: self.blocks(live_set),
            gap: gap_points(analysis, state),
            states: self.states(state),
        }
    }

    fn site_series(&mut self, composition: Option<&Composition>) -> (Vec<(usize, Vec<u64>)>, u64) {
        let values = composition.into_iter().flat_map(|bins| bins.values(Grouping::Site)).zip(0..);
        let mut sites: Vec<(u64, SiteId, Vec<u64>)> = values
            .map(|(values, id)| (values.iter().copied().max().unwrap_or(0), SiteId(id), values))
            .filter(|(most, ..)| *most > 0)
            .collect();
        sites.sort_by_key(|(most, id, _)| (Reverse(*most), *id));
        let others = sites.len().saturating_sub(MAX_SITE_SERIES) as u64;
        sites.truncate(MAX_SITE_SERIES);
        (sites.into_iter().map(|(_, id, values)| (self.site(id), values)).collect(), others)
    }

    fn blocks(&mut self, live_set: &LiveSet) -> BlockHistory {
        let bins = live_set.bins();
        let start_ns = bins.start_ns().saturating_sub(self.analysis.start_ns);
        let Some(history) = live_set.history() else {
            return BlockHistory { start_ns, width_ns: 1, bins: 0, rows: Vec::new() };
        };
        let table = &history.blocks;
        let count = u16::try_from(table.bins()).unwrap_or(u16::MAX - 1);
        BlockHistory {
            start_ns,
            width_ns: bins.width_ns() << table.shift(),
            bins: count,
            rows: table.rows().iter().map(|row| block_sum(row, count, |stack| self.stack(stack))).collect(),
        }
    }

    fn states(&mut self, state: &DeviceState) -> Vec<AllocatorState> {
        let keyframes = state.keyframes.iter().flat_map(|keyframes| keyframes.all());
        keyframes.map(|one| self.state(one)).collect()
    }

    fn state(&mut self, one: &Keyframe) -> AllocatorState {
        AllocatorState {
            why: one.why,
            time_ns: one.time_ns.saturating_sub(self.analysis.start_ns),
            step: self.analysis.reported_step(one.step),
            reserved: one.reserved,
            segments: one
                .segments
                .iter()
                .map(|segment| SegmentPlace {
                    addr: segment.addr,
                    bytes: segment.bytes,
                    stream: segment.pool.0,
                    pool: segment.pool.1,
                    is_expandable: segment.is_expandable,
                })
                .collect(),
            blocks: one
                .blocks
                .iter()
                .map(|block| (block.addr, block.bytes, self.stack(block.stack)))
                .collect(),
        }
    }
}

fn pool_series(state: &DeviceState) -> Vec<(Option<PoolInfo>, Vec<u64>)> {
    let mut by_pool: BTreeMap<Option<PoolKey>, Vec<u64>> =
        state.main().history().into_iter().flat_map(LiveHistory::pool_values).collect();
    by_pool.retain(|_, values| values.iter().any(|bytes| *bytes > 0));
    if by_pool.keys().all(Option::is_none) {
        return Vec::new();
    }
    by_pool.into_iter().map(|(pool, values)| (pool.map(pool_info), values)).collect()
}

fn gap_points(analysis: &Analysis, state: &DeviceState) -> Vec<GapPoint> {
    if !state.has_torch() || !analysis.knows_reserved() {
        return Vec::new();
    }
    let point = |one: &crate::fragmentation::history::GapObservation| GapPoint {
        time_ns: one.time_ns.saturating_sub(analysis.start_ns),
        reserved: one.reserved,
        live: one.live,
        gap: one.gap,
        causes: CAUSES.into_iter().zip(one.causes).collect(),
    };
    state.gap_history.observations().iter().map(point).collect()
}
