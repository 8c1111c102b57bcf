//! The live blocks of one device in one layer, and everything that is summed over them.
//!
//! Constraint: every analysis must see each event once, memory must not grow with events, and an event has about 50 ns.
//! Consequence: one table of live blocks ([`crate::state::live_set::block_map`]), one [`crate::state::live_set::lazy_counter::Tally`] per stack and per site (`crate::state::live_set::site_stats`), and marks (see [`crate::state::live_set::lazy_counter`]) for the
//! moments that matter: the peak, the last step end, the high and the low of the current bin.

pub mod block_map;
pub mod lazy_counter;
pub mod peak_blocks;
mod queries;
mod rebase;
pub mod site_stats;
pub mod step_peaks;

use crate::callsite::symbols::{SiteId, StackId};
use crate::state::live_set::block_map::LiveBlocks;
use crate::state::live_set::lazy_counter::{Held, Marks};
use crate::state::live_set::peak_blocks::{Death, PeakBlocks};
pub use crate::state::live_set::site_stats::{AGES, Fates, SiteBook};
use crate::state::live_set::site_stats::{
    HIGH, LOW, MARKS, PEAK, STACK_MARKS, STACK_PEAK, STACK_STEP, STEP, StackBook,
};
use crate::state::live_set::step_peaks::StepPeaks;
use crate::timeline::bins::{Bins, MAX_BINS, Sample, halve_values};
use crate::timeline::step_series::Series;

/// A block that has not been freed.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveBlock {
    /// Bytes.
    pub bytes: u64,
    /// Who allocated it.
    pub stack: StackId,
    /// Steps begun when it was.
    pub step: u32,
    /// Which event of the book brought it, counted from 1.
    pub born: u64,
    /// What was asked for, where PyTorch's tracker said it.
    pub requested_bytes: Option<u64>,
}

/// A moment and the values that go with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
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
pub struct Book {
    live: LiveBlocks,
    total: Held,
    marks: Marks<MARKS>,
    stack_marks: Marks<STACK_MARKS>,
    sites: Vec<SiteBook>,
    stacks: Vec<StackBook>,
    /// By site, once everything is read.
    stacks_of_sites: Vec<Vec<StackId>>,
    series: Series,
    step: u32,
    /// Steps that had ended when it began.
    pub(crate) first_step: u32,
    /// What was live at the last step end and was freed since: its stack and the step that it was allocated in.
    gone_since_step: Vec<(StackId, u32)>,
    bins: Bins,
    last: Sample,
    peak: Sample,
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

impl Book {
    /// A book that is opened when this many steps have ended, of a run that lasts so long (0: not known).
    pub fn at_step(step: u32, span_ns: u64) -> Self {
        Self { step, bins: Bins::for_span(span_ns), ..Self::default() }
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
    pub fn alloc(
        &mut self,
        addr: u64,
        (bytes, requested_bytes): (u64, Option<u64>),
        stack: StackId,
        site: SiteId,
        now: Now,
    ) -> Option<LiveBlock> {
        self.events += 1;
        self.turn_bin(now);
        let block = LiveBlock { bytes, stack, step: now.step, born: self.events, requested_bytes };
        let lost = self.live.insert(addr, block);
        if let Some(old) = lost {
            self.lost_free(addr, old, now.step);
        }
        self.change(stack, site, |held| held.add(bytes)).fates.born += 1;
        self.total.add(bytes);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.grew(self.total.bytes, now.time_ns, self.events);
        }
        self.note(now);
        lost
    }

    /// A block goes; the block that went, if it was known.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    pub fn free(&mut self, addr: u64, (by, free_site): (StackId, SiteId), now: Now) -> Option<LiveBlock> {
        self.events += 1;
        self.turn_bin(now);
        let block = self.live.remove(addr);
        if let Some(block) = &block {
            let book = self.change(block.stack, self.site_of(block.stack), |held| held.remove(block.bytes));
            let age_steps = now.step.saturating_sub(block.step);
            book.freed(free_site, age_steps);
            if age_steps > 0 {
                self.gone_since_step.push((block.stack, block.step));
            }
            self.total.remove(block.bytes);
            self.went(addr, block, Death { stack: Some(by), step: now.step });
        } else {
            self.unmatched_frees += 1;
        }
        self.note(now);
        block
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    fn change(&mut self, stack: StackId, site: SiteId, apply: impl Fn(&mut Held)) -> &mut SiteBook {
        let (stack_at, site_at) = (stack.0 as usize, site.0 as usize);
        if stack_at >= self.stacks.len() || site_at >= self.sites.len() {
            self.make_room(stack_at, site_at);
        }
        let of_stack = &mut self.stacks[stack_at];
        of_stack.site = site;
        if of_stack.tally.is_behind(&self.stack_marks) {
            of_stack.catch_up(self.step, &self.stack_marks);
        }
        apply(&mut of_stack.tally.now);
        let book = &mut self.sites[site_at];
        if book.tally.is_behind(&self.marks) {
            book.catch_up(self.step, &self.marks, &self.bins);
        }
        apply(&mut book.tally.now);
        book
    }

    #[cold]
    fn make_room(&mut self, stack_at: usize, site_at: usize) {
        self.stacks.resize(self.stacks.len().max(stack_at + 1), StackBook::default());
        self.sites.resize(self.sites.len().max(site_at + 1), SiteBook::default());
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    fn went(&mut self, addr: u64, block: &LiveBlock, death: Death) {
        self.peak_blocks.went(addr, block, death);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.went(addr, block, death);
        }
    }

    /// A block is replaced whose free was lost.
    #[cold]
    fn lost_free(&mut self, addr: u64, old: LiveBlock, step: u32) {
        self.lost_frees += 1;
        self.went(addr, &old, Death { stack: None, step });
        self.change(old.stack, self.site_of(old.stack), |held| held.remove(old.bytes));
        self.total.remove(old.bytes);
    }

    /// Takes note of the state after an event, of this layer or another of the same device.
    pub fn observe(&mut self, now: Now) {
        self.turn_bin(now);
        self.note(now);
    }

    /// What is noted or changed from here on is of the bin of this moment.
    #[inline]
    fn turn_bin(&mut self, now: Now) {
        if self.bins.begins_new(now.time_ns) {
            self.begin_bin(now);
        }
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // As above.
    fn note(&mut self, now: Now) {
        // What is as it was is no extreme of the bin, and what is none of the bin is no peak.
        let is_usual = now.reserved == self.last.reserved
            && now.device == self.last.device
            && self.bins.has_live(self.total.bytes);
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
        self.bins.marked(effect, self.marks.at(HIGH), self.marks.at(LOW));
    }

    #[cold]
    fn begin_bin(&mut self, now: Now) {
        while self.bins.is_full(now.time_ns) {
            // Nothing happened between the last event and this one: bins are joined only when all of them are there.
            self.marks.set(HIGH);
            self.marks.set(LOW);
            self.bins.pad(self.last, self.marks.at(HIGH));
            for site in &mut self.sites {
                site.fill_bins(MAX_BINS, &self.bins);
            }
            let winners = self.bins.halve();
            for site in &mut self.sites {
                halve_values(&mut site.bins, &winners);
            }
        }
        if self.bins.begins_new(now.time_ns) {
            self.marks.set(HIGH);
            self.marks.set(LOW);
            self.bins.begin(self.last, now.time_ns, self.marks.at(HIGH));
        }
    }

    /// A step begins: the one before it ends with the state as it is.
    pub fn step_boundary(&mut self) {
        self.series.record(self.step, self.total);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.step_boundary(self.total.bytes, self.last.time_ns, self.events);
        }
        self.step += 1;
        self.gone_since_step.clear();
        self.marks.set(STEP);
        self.stack_marks.set(STACK_STEP);
    }

    /// Ends the reading: everything that was put off is done.
    pub fn finish(&mut self) {
        let bins = self.bins.all().len();
        for site in &mut self.sites {
            site.catch_up(self.step, &self.marks, &self.bins);
            site.fill_bins(bins, &self.bins);
        }
        self.stacks_of_sites.resize(self.sites.len(), Vec::new());
        for (stack, id) in self.stacks.iter_mut().zip(0..) {
            stack.catch_up(self.step, &self.stack_marks);
            if let Some(stacks) = self.stacks_of_sites.get_mut(stack.site.0 as usize) {
                stacks.push(StackId(id));
            }
        }
    }
}
