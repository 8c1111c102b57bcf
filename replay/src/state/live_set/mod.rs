//! The live blocks of one device in one layer, and everything that is summed over them.
//!
//! Constraint: every analysis must see each event once, memory must not grow with events, and an event has about 50 ns.
//! Consequence: one table of live blocks ([`crate::state::live_set::block_map`]), one [`crate::state::live_set::lazy_counter::LazyCounter`] per stack and per site (`crate::state::live_set::site_stats`), and marks (see [`crate::state::live_set::lazy_counter`]) for the
//! moments that matter: the peak, the last step end, the high and the low of the current bin.

pub(crate) mod block_map;
pub(crate) mod lazy_counter;
pub(crate) mod live_block;
pub(crate) mod peak_blocks;
pub(crate) mod queries;
pub(crate) mod rebase;
pub(crate) mod site_stats;
pub(crate) mod step_peaks;

use crate::callsite::symbols::{SiteId, StackId};
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::lazy_counter::Checkpoints;
use crate::state::live_set::peak_blocks::{BlockDeath, PeakBlocks};
pub(crate) use crate::state::live_set::site_stats::{AGES, BlockOutcomes, SiteStats};
use crate::state::live_set::site_stats::{
    HIGH, LOW, MARKS, PEAK, STACK_MARKS, STACK_PEAK, STACK_STEP, STEP, StackStats,
};
use crate::state::live_set::step_peaks::StepPeaks;
use crate::timeline::bins::{MAX_BINS, MemorySample, TimelineBins, halve_values};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
pub(crate) use live_block::LiveBlock;

/// A moment and the values that go with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateSample {
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
    /// Held by PyTorch.
    pub reserved: u64,
    /// Handed out by the driver.
    pub device: u64,
}

/// One layer of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSet {
    live: BlockMap,
    total: BlockTotals,
    marks: Checkpoints<MARKS>,
    stack_marks: Checkpoints<STACK_MARKS>,
    sites: Vec<SiteStats>,
    stacks: Vec<StackStats>,
    /// By site, once everything is read.
    stacks_by_site: Vec<Vec<StackId>>,
    series: StepSeries,
    step: u32,
    /// Steps that had ended when it began.
    pub(crate) first_step: u32,
    /// What was live at the last step end and was freed since: its stack and the step that it was allocated in.
    freed_since_step: Vec<(StackId, u32)>,
    bins: TimelineBins,
    last: MemorySample,
    peak: MemorySample,
    peak_blocks: PeakBlocks,
    /// Where somebody asked for the step before the peak.
    step_peaks: Option<Box<StepPeaks>>,
    /// Frees of addresses that were not live: their allocation was lost, or happened before recording.
    pub unmatched_frees: u64,
    /// Allocations at an address that was live already: its free was lost.
    pub lost_frees: u64,
    /// Events taken.
    pub events: u64,
}

impl LiveSet {
    /// A book that is opened when this many steps have ended, of a run that lasts so long (0: not known).
    pub(crate) fn at_step(step: u32, span_ns: u64) -> Self {
        Self { step, bins: TimelineBins::for_span(span_ns), ..Self::default() }
    }

    /// Whose the block is that is live at this address.
    pub(crate) fn site_at(&self, addr: u64) -> Option<SiteId> {
        self.live.get(addr).map(|block| self.site_of(block.stack))
    }

    /// The live blocks that were allocated in a step which has ended, or all of them: address, bytes and site, in no order.
    pub(crate) fn blocks(&self, of_ended_steps: bool) -> impl Iterator<Item = (u64, LiveBlock, SiteId)> {
        let counts = move |block: &LiveBlock| !of_ended_steps || block.step < self.step;
        let all = self.live.iter().filter(move |(_, block)| counts(block));
        all.map(|(addr, block)| (addr, *block, self.site_of(block.stack)))
    }

    /// A block appears; the block that was there, if its free was lost.
    #[inline(always)]
    #[allow(clippy::inline_always)] // What is passed on in memory from one step to the next costs as much as the steps.
    pub(crate) fn alloc(
        &mut self,
        addr: u64,
        (bytes, requested_bytes): (u64, Option<u64>),
        stack: StackId,
        site: SiteId,
        now: StateSample,
    ) -> Option<LiveBlock> {
        self.events += 1;
        self.advance_bin(now);
        let block = LiveBlock { bytes, stack, step: now.step, born: self.events, requested_bytes };
        let lost = self.live.insert(addr, block);
        if let Some(old) = lost {
            self.on_lost_free(addr, old, now.step);
        }
        self.change(stack, site, |held| held.add(bytes)).outcomes.allocated += 1;
        self.total.add(bytes);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.on_growth(self.total.bytes, now.time_ns, self.events);
        }
        self.record_state(now);
        lost
    }

    /// A block goes; the block that went, if it was known.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    pub(crate) fn free(
        &mut self,
        addr: u64,
        (by, free_site): (StackId, SiteId),
        now: StateSample,
    ) -> Option<LiveBlock> {
        self.events += 1;
        self.advance_bin(now);
        let block = self.live.remove(addr);
        if let Some(block) = &block {
            let stats = self.change(block.stack, self.site_of(block.stack), |held| held.remove(block.bytes));
            let age_steps = now.step.saturating_sub(block.step);
            stats.freed(free_site, age_steps);
            if age_steps > 0 {
                self.freed_since_step.push((block.stack, block.step));
            }
            self.total.remove(block.bytes);
            self.on_removed(addr, block, BlockDeath { stack: Some(by), step: now.step });
        } else {
            self.unmatched_frees += 1;
        }
        self.record_state(now);
        block
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    fn change(&mut self, stack: StackId, site: SiteId, apply: impl Fn(&mut BlockTotals)) -> &mut SiteStats {
        let (stack_at, site_at) = (stack.0 as usize, site.0 as usize);
        if stack_at >= self.stacks.len() || site_at >= self.sites.len() {
            self.grow_tables(stack_at, site_at);
        }
        let of_stack = &mut self.stacks[stack_at];
        of_stack.site = site;
        if of_stack.counter.is_behind(&self.stack_marks) {
            of_stack.catch_up(self.step, &self.stack_marks);
        }
        apply(&mut of_stack.counter.now);
        let stats = &mut self.sites[site_at];
        if stats.counter.is_behind(&self.marks) {
            stats.catch_up(self.step, &self.marks, &self.bins);
        }
        apply(&mut stats.counter.now);
        stats
    }

    #[cold]
    fn grow_tables(&mut self, stack_at: usize, site_at: usize) {
        self.stacks.resize(self.stacks.len().max(stack_at + 1), StackStats::default());
        self.sites.resize(self.sites.len().max(site_at + 1), SiteStats::default());
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    fn on_removed(&mut self, addr: u64, block: &LiveBlock, death: BlockDeath) {
        self.peak_blocks.on_removed(addr, block, death);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.on_removed(addr, block, death);
        }
    }

    /// A block is replaced whose free was lost.
    #[cold]
    fn on_lost_free(&mut self, addr: u64, old: LiveBlock, step: u32) {
        self.lost_frees += 1;
        self.on_removed(addr, &old, BlockDeath { stack: None, step });
        self.change(old.stack, self.site_of(old.stack), |held| held.remove(old.bytes));
        self.total.remove(old.bytes);
    }

    /// Takes note of the state after an event, of this layer or another of the same device.
    pub(crate) fn observe(&mut self, now: StateSample) {
        self.advance_bin(now);
        self.record_state(now);
    }

    /// What is noted or changed from here on is of the bin of this moment.
    #[inline]
    fn advance_bin(&mut self, now: StateSample) {
        if self.bins.needs_new_bin(now.time_ns) {
            self.begin_bin(now);
        }
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    fn record_state(&mut self, now: StateSample) {
        // What is as it was is no extreme of the bin, and what is none of the bin is no peak.
        let is_usual = now.reserved == self.last.reserved
            && now.device == self.last.device
            && self.bins.contains_live(self.total.bytes);
        // One by one: a sample that is put together and then copied makes the processor wait.
        self.last.time_ns = now.time_ns;
        self.last.step = now.step;
        self.last.live = self.total.bytes;
        self.last.reserved = now.reserved;
        self.last.device = now.device;
        if !is_usual {
            self.new_extreme();
        }
    }

    #[inline(never)] // Few moments are extremes.
    fn new_extreme(&mut self) {
        let sample = self.last;
        if sample.live > self.peak.live {
            self.peak = sample;
            self.peak_blocks.mark(self.events);
            if let Some(peaks) = &mut self.step_peaks {
                peaks.new_peak();
            }
            self.marks.set(PEAK);
            self.stack_marks.set(STACK_PEAK);
        }
        let effect = self.bins.observe(sample);
        if effect.is_high {
            self.marks.set(HIGH);
        }
        if effect.is_low {
            self.marks.set(LOW);
        }
        self.bins.set_clocks(effect, self.marks.at(HIGH), self.marks.at(LOW));
    }

    #[cold]
    fn begin_bin(&mut self, now: StateSample) {
        while self.bins.needs_halving(now.time_ns) {
            // Nothing happened between the last event and this one: bins are joined only when all of them are there.
            self.marks.set(HIGH);
            self.marks.set(LOW);
            self.bins.append_all(self.last, self.marks.at(HIGH));
            for site in &mut self.sites {
                site.fill_bins(MAX_BINS, &self.bins);
            }
            let winners = self.bins.halve();
            for site in &mut self.sites {
                halve_values(&mut site.bins, &winners);
            }
        }
        if self.bins.needs_new_bin(now.time_ns) {
            self.marks.set(HIGH);
            self.marks.set(LOW);
            self.bins.append_until_time(self.last, now.time_ns, self.marks.at(HIGH));
        }
    }

    /// A step begins: the one before it ends with the state as it is.
    pub(crate) fn step_boundary(&mut self) {
        self.series.record(self.step, self.total);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.step_boundary(self.total.bytes, self.last.time_ns, self.events);
        }
        self.step += 1;
        self.freed_since_step.clear();
        self.marks.set(STEP);
        self.stack_marks.set(STACK_STEP);
    }

    /// Ends the reading: everything that was put off is done.
    pub(crate) fn finish(&mut self) {
        let bins = self.bins.all().len();
        for site in &mut self.sites {
            site.catch_up(self.step, &self.marks, &self.bins);
            site.fill_bins(bins, &self.bins);
        }
        self.stacks_by_site.resize(self.sites.len(), Vec::new());
        for (stack, id) in self.stacks.iter_mut().zip(0..) {
            stack.catch_up(self.step, &self.stack_marks);
            if let Some(stacks) = self.stacks_by_site.get_mut(stack.site.0 as usize) {
                stacks.push(StackId(id));
            }
        }
    }
}
