//! The set of live blocks on one device, with running totals per stack and call site.
//!
//! A device has one [`LiveSet`] for PyTorch's blocks and one for driver memory. [`LiveSet::alloc`]
//! and [`LiveSet::free`] run once per event, so both are O(1) and allocate nothing in the steady
//! state; the budget is about 50 ns. Analyses that need a past state (the peak, the last step end,
//! the high and low of a timeline bin) do not copy the set. Each total is a
//! [`lazy_counter::LazyCounter`], which saves its value on the first change after a checkpoint.
//! `crates/replay/tests/exactness.rs` checks peaks and timelines against a plain recount.

pub(crate) mod address_order;
pub(crate) mod block_map;
pub(crate) mod history;
pub(crate) mod lazy_counter;
pub(crate) mod live_block;
pub(crate) mod peak_blocks;
pub(crate) mod queries;
pub(crate) mod rebase;
pub(crate) mod site_stats;
pub(crate) mod step_peaks;

use crate::callsite::symbols::StackSite;
use crate::state::live_set::address_order::AddressOrder;
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::history::LiveHistory;
use crate::state::live_set::lazy_counter::Checkpoints;
use crate::state::live_set::peak_blocks::{BlockFree, PeakBlocks};
use crate::state::live_set::rebase::RebasedState;
pub(crate) use crate::state::live_set::site_stats::{AGES, BlockOutcomes, FreedByAge, SiteStats};
use crate::state::live_set::site_stats::{
    CHECKPOINTS, HIGH, LOW, PEAK, STACK_CHECKPOINTS, STACK_PEAK, STACK_STEP, STEP, StackStats,
};
use crate::state::live_set::step_peaks::StepPeaks;
use crate::state::pool_key::PoolKey;
use crate::timeline::bin_axis::BinAxis;
use crate::timeline::bins::{MAX_BINS, MemorySample, TimelineBins};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};
pub(crate) use live_block::{BlockSize, LiveBlock};

/// The time of an event, and the reserved and device bytes after it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateSample {
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device: u64,
}

/// The live blocks of one device, either PyTorch's or the driver's, with totals over them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSet {
    live: BlockMap,
    order: AddressOrder,
    total: BlockTotals,
    checkpoints: Checkpoints<CHECKPOINTS>,
    stack_checkpoints: Checkpoints<STACK_CHECKPOINTS>,
    sites: Vec<SiteStats>,
    stacks: Vec<StackStats>,
    /// Stacks by site, filled by [`Self::finish`].
    stacks_by_site: Vec<Vec<StackId>>,
    series: StepSeries,
    step: u32,
    /// Number of steps before the reported part of the run.
    pub(crate) first_step: u32,
    /// Blocks live at the last step end and freed since, in the order of their frees.
    freed_since_step: Vec<LiveBlock>,
    /// How many of them were freed before the last allocation.
    freed_before_allocation: usize,
    /// The event of the last allocation.
    pub(crate) last_allocation: u64,
    axis: BinAxis,
    bins: TimelineBins,
    last: MemorySample,
    peak: MemorySample,
    /// The highest moment of the steps before that of `peak`.
    earlier_peak: MemorySample,
    peak_blocks: PeakBlocks,
    /// The blocks at the end of the program, if it may have ended.
    end_blocks: PeakBlocks,
    end_total: BlockTotals,
    /// Present if the options ask for the step before the peak.
    step_peaks: Option<Box<StepPeaks>>,
    /// Present if the options ask for a history.
    history: Option<Box<LiveHistory>>,
    /// The state at [`Self::rebase`]; `None` for a whole run.
    rebased: Option<Box<RebasedState>>,
    /// Number of frees of addresses that were not live: the allocation was lost, or happened before
    /// the recording.
    pub unmatched_frees: u64,
    /// Number of allocations at a live address: the free of the block there was lost.
    pub lost_frees: u64,
    /// Number of allocations and frees.
    pub events: u64,
}

impl LiveSet {
    /// An empty set that begins after `step` steps of a run with this axis.
    pub(crate) fn at_step(step: u32, axis: BinAxis) -> Self {
        Self { step, axis, bins: TimelineBins::on_axis(&axis), ..Self::default() }
    }

    /// The stack of the live block at this address.
    pub(crate) fn stack_at(&self, addr: u64) -> Option<StackId> {
        self.live.get(addr).map(|block| block.stack)
    }

    /// The live blocks with their addresses, in arbitrary order. With `of_ended_steps`, only those
    /// allocated in a step that has ended.
    pub(crate) fn blocks(&self, of_ended_steps: bool) -> impl Iterator<Item = (u64, LiveBlock)> {
        let is_included = move |block: &LiveBlock| !of_ended_steps || block.step < self.step;
        let included = self.live.iter().filter(move |(_, block)| is_included(block));
        included.map(|(addr, block)| (addr, *block))
    }

    /// Adds a block. Returns the block that was at the address, if its free was lost.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would pass size, origin and state through memory.
    pub(crate) fn alloc(
        &mut self,
        addr: u64,
        size: BlockSize,
        origin: StackSite,
        now: StateSample,
    ) -> Option<LiveBlock> {
        let BlockSize { bytes, requested_bytes } = size;
        let StackSite { stack, site, context } = origin;
        self.advance_bin(now);
        self.events += 1;
        // Made twice: if its address were taken, the block would be copied through the stack.
        let serial = self.events;
        let block = || LiveBlock { bytes, stack, step: now.step, serial, requested_bytes };
        let lost = self.live.insert(addr, block());
        if let Some(old) = lost {
            self.on_lost_free(addr, old, now.step);
        }
        self.update_totals(stack, site, |totals| totals.add(bytes)).outcomes.allocated += 1;
        self.total.add(bytes);
        self.freed_before_allocation = self.freed_since_step.len();
        self.last_allocation = serial;
        if let Some(history) = &mut self.history {
            history.classes.on_alloc(&block(), context);
        }
        if let Some(peaks) = &mut self.step_peaks {
            peaks.on_growth(self.total.bytes, now.time_ns, self.events);
        }
        self.record_state(now);
        lost
    }

    /// Removes a block that `origin` frees. Returns the block; `None` if the address is not live.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would pass origin, state and block through memory.
    pub(crate) fn free(&mut self, addr: u64, origin: StackSite, now: StateSample) -> Option<LiveBlock> {
        self.advance_bin(now);
        self.events += 1;
        if let Some(history) = &mut self.history {
            history.on_free(origin, self.events);
        }
        let block = self.live.remove(addr);
        if let Some(block) = &block {
            let site = self.site_of(block.stack);
            let stats = self.update_totals(block.stack, site, |totals| totals.remove(block.bytes));
            let age_steps = now.step.saturating_sub(block.step);
            stats.count_free(origin.site);
            if age_steps > 0 {
                self.stacks[block.stack.0 as usize].freed_by_age.count(age_steps);
                self.freed_since_step.push(*block);
            }
            self.total.remove(block.bytes);
            self.on_removed(addr, block, BlockFree { stack: Some(origin.stack), step: now.step });
        } else {
            self.unmatched_frees += 1;
        }
        self.record_state(now);
        block
    }

    /// Applies `update` to the totals of a stack and its site, after their deferred work.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Inlined into `alloc` and `free`, which specialize `update`.
    fn update_totals(
        &mut self,
        stack: StackId,
        site: SiteId,
        update: impl Fn(&mut BlockTotals),
    ) -> &mut SiteStats {
        let (stack_index, site_index) = (stack.0 as usize, site.0 as usize);
        if stack_index >= self.stacks.len() || site_index >= self.sites.len() {
            self.grow_tables(stack_index, site_index);
        }
        let stack_stats = &mut self.stacks[stack_index];
        if stack_stats.counter.is_behind(&self.stack_checkpoints) {
            stack_stats.apply_deferred(self.step, &self.stack_checkpoints);
        }
        stack_stats.site = site;
        update(&mut stack_stats.counter.now);
        let site_stats = &mut self.sites[site_index];
        if site_stats.counter.is_behind(&self.checkpoints) {
            site_stats.apply_deferred(self.step, &self.checkpoints, &self.bins);
        }
        update(&mut site_stats.counter.now);
        site_stats
    }

    #[cold]
    fn grow_tables(&mut self, stack_index: usize, site_index: usize) {
        self.stacks.resize(self.stacks.len().max(stack_index + 1), StackStats::default());
        self.sites.resize(self.sites.len().max(site_index + 1), SiteStats::default());
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // Three comparisons for most blocks; a call would cost more.
    fn on_removed(&mut self, addr: u64, block: &LiveBlock, free: BlockFree) {
        self.order.on_removed(addr, block);
        self.peak_blocks.on_removed(addr, block, free);
        self.end_blocks.on_removed(addr, block, free);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.on_removed(addr, block, free);
        }
        if let Some(history) = &mut self.history {
            let site = self.stacks[block.stack.0 as usize].site;
            history.on_removed(block, site, free, self.events);
        }
    }

    /// Removes a block that another one replaced, because its free was lost.
    #[cold]
    fn on_lost_free(&mut self, addr: u64, old: LiveBlock, step: u32) {
        self.lost_frees += 1;
        self.on_removed(addr, &old, BlockFree { stack: None, step });
        self.update_totals(old.stack, self.site_of(old.stack), |totals| totals.remove(old.bytes));
        self.total.remove(old.bytes);
    }

    /// Records the state after an event that changed no block of this set.
    pub(crate) fn observe(&mut self, now: StateSample) {
        self.advance_bin(now);
        self.record_state(now);
    }

    /// Begins a new bin if the event is past the current one.
    #[inline]
    fn advance_bin(&mut self, now: StateSample) {
        let position = self.axis.advance(now.time_ns);
        if self.bins.needs_new_bin(position) {
            self.begin_bin();
        }
        if let Some(history) = &mut self.history {
            history.advance(&self.axis, self.total.bytes, self.events);
        }
    }

    /// Records the state after an event for the timeline and the peak.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would pass the state through memory.
    fn record_state(&mut self, now: StateSample) {
        // An unchanged value is no new extreme of the bin, and only an extreme can be the peak.
        let is_usual = now.reserved == self.last.reserved
            && now.device == self.last.device
            && self.bins.contains_live(self.total.bytes);
        // Field by field: building a sample and copying it stalls on store forwarding.
        self.last.time_ns = now.time_ns;
        self.last.step = now.step;
        self.last.live = self.total.bytes;
        if !is_usual {
            self.last.reserved = now.reserved;
            self.last.device = now.device;
            self.record_extreme();
        }
        if let Some(history) = &mut self.history {
            history.observe(&self.axis, &self.last, self.events);
        }
    }

    #[inline(never)] // Few events set an extreme.
    fn record_extreme(&mut self) {
        let sample = self.last;
        if sample.live > self.peak.live {
            if sample.step != self.peak.step {
                self.earlier_peak = self.peak;
            }
            self.peak = sample;
            self.peak_blocks.set_peak(self.events);
            if let Some(peaks) = &mut self.step_peaks {
                peaks.on_new_peak();
            }
            self.checkpoints.set(PEAK);
            self.stack_checkpoints.set(STACK_PEAK);
        }
        let effect = self.bins.observe(sample);
        if effect.is_high {
            self.checkpoints.set(HIGH);
        }
        if effect.is_low {
            self.checkpoints.set(LOW);
        }
        self.bins.set_clocks(effect, self.checkpoints.clock_of(HIGH), self.checkpoints.clock_of(LOW));
    }

    #[cold]
    fn begin_bin(&mut self) {
        while self.bins.needs_halving(self.axis.position()) {
            // Bins are halved only when all are filled. The state is constant since the last event.
            self.checkpoints.set(HIGH);
            self.checkpoints.set(LOW);
            self.bins.append_all(self.last, &self.axis, self.checkpoints.clock_of(HIGH));
            self.follow_bins();
            for site in &mut self.sites {
                site.fill_bins(MAX_BINS, &self.bins);
            }
            let extremes = self.bins.halve();
            for site in &mut self.sites {
                site.bins.halve(&extremes);
            }
            if let Some(history) = &mut self.history {
                history.halve();
            }
        }
        if self.bins.needs_new_bin(self.axis.position()) {
            self.checkpoints.set(HIGH);
            self.checkpoints.set(LOW);
            self.bins.append_until_event(self.last, &self.axis, self.checkpoints.clock_of(HIGH));
            self.follow_bins();
        }
    }

    fn follow_bins(&mut self) {
        if let Some(history) = &mut self.history {
            history.begin_bins(&self.bins, self.events);
        }
    }

    /// Ends the current step with the present state.
    pub(crate) fn end_step(&mut self) {
        self.series.record(self.step, self.total);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.end_step(self.total.bytes, self.last.time_ns, self.events);
        }
        self.step += 1;
        self.freed_since_step.clear();
        self.freed_before_allocation = 0;
        self.checkpoints.set(STEP);
        self.stack_checkpoints.set(STACK_STEP);
    }

    /// Sets the end of the program to the present moment.
    pub(crate) fn set_end(&mut self) {
        self.end_total = self.total;
        self.end_blocks.set_peak(self.events);
    }

    /// Withdraws the end, because the program goes on.
    pub(crate) fn withdraw_end(&mut self) {
        self.end_blocks.set_peak(0);
    }

    /// Completes all deferred work after the last event. `pool_of` returns the pool of a live block
    /// at an address; `None` if it is unknown.
    pub(crate) fn finish(&mut self, pool_of: impl Fn(u64, &LiveBlock) -> Option<PoolKey>) {
        let bins = self.bins.all().len();
        for site in &mut self.sites {
            site.apply_deferred(self.step, &self.checkpoints, &self.bins);
            site.fill_bins(bins, &self.bins);
        }
        self.stacks_by_site.resize(self.sites.len(), Vec::new());
        for (stack, id) in self.stacks.iter_mut().zip(0..) {
            stack.apply_deferred(self.step, &self.stack_checkpoints);
            if let Some(stacks) = self.stacks_by_site.get_mut(stack.site.0 as usize) {
                stacks.push(StackId(id));
            }
        }
        if let Some(history) = &mut self.history {
            let (live, stacks) = (&self.live, &self.stacks);
            let site_of = |block: &LiveBlock| stacks[block.stack.0 as usize].site;
            let with_groups = live.iter().map(|(addr, block)| (block, site_of(block), pool_of(addr, block)));
            history.finish_composition(with_groups, self.step);
            history.blocks.finish(live.iter().map(|(_, block)| block));
        }
    }
}
