//! Makes the [`RunHistory`] of an analysis.
//!
//! The tables of the pass become those of the history, because copies would double them: a million
//! live blocks take 6 MB in each exact state, and blocks by birth and death take up to 25 MB.
//! `crates/replay/tests/history/memory.rs` limits what a history adds to the memory of a report.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpumemtrace_format::NO_DEVICE;

use super::run_history::{AllocatorState, BlockHistory, DeviceHistory, RunHistory, block_sums, keep_every};
use crate::assemble::fragmentation::pool_info;
use crate::device::DeviceState;
use crate::device::keyframes::Keyframe;
use crate::fragmentation::CAUSES;
use crate::pass::Analysis;
use crate::peak::category::over_time::categories_over_time;
use crate::report::{GapPoint, PoolInfo, SegmentPlace};
use crate::state::live_set::LiveSet;
use crate::state::live_set::history::LiveHistory;
use crate::state::live_set::history::composition::{Composition, Grouping};
use crate::state::live_set::history::lifetimes::LifetimeTable;
use crate::state::pool_key::PoolKey;
use crate::timeline::extremes::ExtremeSeries;
use crate::timeline::phase_turns::PhaseTurns;
use crate::util::ids::{SiteId, StackId};

/// Sites with a series of their own, per device.
const MAX_SITE_SERIES: usize = 200;

impl Analysis {
    /// The memory of the run over time; `None` if the options did not ask for it, or if it was
    /// taken. The other results stay as they are.
    pub fn take_history(&mut self) -> Option<RunHistory> {
        let turns = self.phase_turns.take()?;
        let visible = self.devices.iter_mut().filter(|(ordinal, _)| *ordinal != NO_DEVICE);
        let tables: Vec<HistoryTables> = visible.map(|(_, state)| HistoryTables::take_from(state)).collect();
        Some(self.history_from(&turns, tables))
    }

    fn history_from(&self, phase_turns: &PhaseTurns, tables: Vec<HistoryTables>) -> RunHistory {
        let relative = |time_ns: u64| time_ns.saturating_sub(self.start_ns);
        let has_steps = self.step_rule.source().is_some();
        let starts = self.step_times.starts().iter().filter(|_| has_steps);
        let codes = &self.symbols.definitions().codes;
        let turns = phase_turns.turns().iter().map(|turn| {
            let name = codes.get(&turn.name).map_or_else(String::new, |code| code.name.clone());
            (name, relative(turn.begin_ns), relative(turn.end_ns.unwrap_or(self.end_ns)))
        });
        let marks = self.analyses.find::<crate::timeline::marks::MarkLog>();
        let marks = marks.into_iter().flat_map(|log| &log.first);
        let marks =
            marks.map(|mark| (mark.name.clone(), relative(mark.time_ns), self.reported_step(mark.step)));
        let mut builder = HistoryBuilder { analysis: self, sites: BTreeMap::new(), stacks: BTreeMap::new() };
        let devices = self.visible_devices().zip(tables);
        let devices =
            devices.map(|((ordinal, state), tables)| builder.device(ordinal, state, tables)).collect();
        let mut history = RunHistory {
            duration_ns: relative(self.end_ns),
            steps: self.steps,
            step_source: self.step_source(),
            step_starts_ns: starts.map(|time_ns| relative(*time_ns)).collect(),
            step_distance: self.step_times.every(),
            phase_turns: turns.collect(),
            omitted_phase_turns: phase_turns.omitted(),
            marks: marks.collect(),
            devices,
            ..RunHistory::default()
        };
        builder.add_names(&mut history);
        history
    }
}

/// The large tables of one device that only its history needs.
struct HistoryTables {
    /// That of the live set that is shown.
    lifetimes: Option<LifetimeTable>,
    keyframes: Vec<Keyframe>,
    /// Number of errors and marks without a state.
    omitted_states: u64,
}

impl HistoryTables {
    fn take_from(state: &mut DeviceState) -> Self {
        let keyframes = state.keyframes.take().unwrap_or_default();
        let omitted_states = keyframes.omitted();
        let history = if state.has_torch() { state.torch.history_mut() } else { state.driver.history_mut() };
        Self {
            lifetimes: history.map(|history| std::mem::take(&mut history.blocks)),
            keyframes: keyframes.into_all(),
            omitted_states,
        }
    }
}

/// Numbers the sites and stacks that the history mentions.
struct HistoryBuilder<'a> {
    analysis: &'a Analysis,
    sites: BTreeMap<SiteId, usize>,
    stacks: BTreeMap<StackId, u32>,
}

impl HistoryBuilder<'_> {
    fn site(&mut self, site: SiteId) -> usize {
        let next = self.sites.len();
        *self.sites.entry(site).or_insert(next)
    }

    fn stack(&mut self, stack: StackId) -> u32 {
        let next = self.stacks.len() as u32;
        *self.stacks.entry(stack).or_insert(next)
    }

    fn add_names(mut self, history: &mut RunHistory) {
        let symbols = &self.analysis.symbols;
        let mut stacks: Vec<(u32, StackId)> = self.stacks.iter().map(|(id, index)| (*index, *id)).collect();
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

    fn device(&mut self, ordinal: u8, state: &DeviceState, tables: HistoryTables) -> DeviceHistory {
        let analysis = self.analysis;
        let relative = |time_ns: u64| time_ns.saturating_sub(analysis.start_ns);
        let live_set = state.main();
        let (has_torch, has_driver) = (state.has_torch(), !state.driver.is_empty());
        let is_known = [true, has_torch && analysis.knows_reserved(), has_driver];
        let HistoryTables { lifetimes, keyframes, omitted_states } = tables;
        let series = live_set.history().map(|history| &history.series);
        let values = |index: usize| {
            let (series, is_most) = (series.filter(|_| is_known[index / 2]), index % 2 == 1);
            let least = || series.into_iter().flat_map(|series| series.least(index / 2)).collect();
            let most = || series.into_iter().flat_map(|series| series.most(index / 2)).collect();
            if is_most { most() } else { least() }
        };
        let composition = live_set.history().map(|history| &history.composition);
        let highs = || composition.into_iter().flat_map(Composition::highs);
        let end_ns = relative(live_set.last_event_ns()).saturating_add(1);
        let edges = |begins_ns: &mut dyn Iterator<Item = u64>| {
            let mut edges_ns: Vec<u64> = begins_ns.map(relative).collect();
            edges_ns.extend((!edges_ns.is_empty()).then_some(end_ns));
            edges_ns
        };
        let bins_edges_ns = edges(&mut highs().map(|high| high.begin_ns));
        let (site_series, other_sites) = self.site_series(composition, &bins_edges_ns);
        let mut device = DeviceHistory {
            ordinal,
            has_torch,
            series_edges_ns: edges(&mut series.into_iter().flat_map(ExtremeSeries::begins_ns).copied()),
            series: std::array::from_fn(values),
            bins_edges_ns,
            bin_times_ns: highs().map(|high| relative(high.time_ns)).collect(),
            bin_live: highs().map(|high| high.live).collect(),
            site_series,
            other_sites,
            categories: categories_over_time(analysis, ordinal, state).into_iter().collect(),
            pools: pool_series(state),
            blocks: self.blocks(live_set, lifetimes),
            gap: gap_points(analysis, state),
            states: keyframes.into_iter().map(|one| self.state(&one)).collect(),
            omitted_states,
        };
        device.drop_empty_bins();
        device
    }

    fn site_series(
        &mut self,
        composition: Option<&Composition>,
        edges_ns: &[u64],
    ) -> (Vec<(usize, Vec<u64>)>, u64) {
        let values = composition.into_iter().flat_map(|bins| bins.filled_values(Grouping::Site)).zip(0..);
        let mut sites: Vec<(u64, SiteId, &[u64])> = values
            .map(|(values, id)| (values.iter().copied().max().unwrap_or(0), SiteId(id), values))
            .filter(|(most, ..)| *most > 0)
            .collect();
        sites.sort_by_key(|(most, id, _)| (Reverse(*most), *id));
        let others = sites.len().saturating_sub(MAX_SITE_SERIES) as u64;
        sites.truncate(MAX_SITE_SERIES);
        let over_time = |values: &[u64]| {
            let areas = values
                .iter()
                .zip(edges_ns.windows(2))
                .map(|(bytes, edges)| u128::from(*bytes) * u128::from(edges[1].saturating_sub(edges[0])));
            areas.fold(0u128, u128::saturating_add)
        };
        sites.sort_by_cached_key(|(_, id, values)| (Reverse(over_time(values)), *id));
        let bins = composition.map_or(0, |bins| bins.highs().len());
        let all_bins = |values: &[u64]| {
            let mut all = values.to_vec();
            all.resize(bins, 0);
            all
        };
        (sites.into_iter().map(|(_, id, values)| (self.site(id), all_bins(values))).collect(), others)
    }

    fn blocks(&mut self, live_set: &LiveSet, table: Option<LifetimeTable>) -> BlockHistory {
        let bins = live_set.bins();
        let start_ns = self.analysis.start_ns;
        let begins = bins.all().iter().map(|bin| bin.begin_ns.saturating_sub(start_ns).saturating_sub(1));
        let end_ns = live_set.last_event_ns().saturating_sub(start_ns);
        let Some(table) = table else {
            return BlockHistory { edges_ns: vec![end_ns], bins: 0, merged: 1, rows: Vec::new() };
        };
        let edges_ns: Vec<u64> = begins.chain([end_ns]).collect();
        let count = u16::try_from(table.bins()).unwrap_or(u16::MAX - 1);
        BlockHistory {
            edges_ns: keep_every(&edges_ns, 1 << table.shift()),
            bins: count,
            merged: 1 << table.shift(),
            rows: block_sums(table.into_rows(), count, |stack| self.stack(stack)),
        }
    }

    fn state(&mut self, one: &Keyframe) -> AllocatorState {
        AllocatorState {
            why: one.why,
            time_ns: one.time_ns.saturating_sub(self.analysis.start_ns),
            step: self.analysis.reported_step(one.step),
            block_events: one.block_events,
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
            blocks: one.blocks.with_stacks(|stack| self.stack(StackId(stack))),
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
