//! The live blocks of one device in one layer, and everything that is summed over them.
//!
//! Constraint: every analysis must see each event once, memory must not grow with events, and an event has about 50 ns.
//! Consequence: one hash map of live blocks, one [`Tally`] per stack and per site, and marks (see [`crate::tally`]) for the
//! moments that matter: the peak, the last step end, the high and the low of the current bin.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::bins::{BinValues, Bins, Effect, MAX_BINS, Sample, halve_values};
use crate::series::Series;
use crate::symbols::{SiteId, StackId};
use crate::tally::{Held, Marks, Tally};

const PEAK: usize = 0;
const STEP: usize = 1;
const HIGH: usize = 2;
const LOW: usize = 3;
const MARKS: usize = 4;
/// Most places of free told apart per site.
const MAX_FREE_SITES: usize = 16;

/// A block that has not been freed.
#[derive(Clone, Copy, Debug)]
pub struct LiveBlock {
    /// Bytes.
    pub bytes: u64,
    /// Who allocated it.
    pub stack: StackId,
    /// Steps begun when it was.
    pub step: u32,
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

/// What happened to the blocks of a site, as counted at a step end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Allocated.
    pub born: u64,
    /// Freed.
    pub freed: u64,
    /// Freed in a later step than they were allocated in.
    pub freed_late: u64,
}

#[derive(Clone, Copy, Debug)]
struct FreeSite {
    site: SiteId,
    count: u64,
    this_step: u64,
}

/// One site of a book.
#[derive(Clone, Debug, Default)]
pub struct SiteBook {
    tally: Tally<MARKS>,
    series: Series,
    step_seen: u32,
    bins: BinValues,
    fates: Fates,
    fates_at_step_end: Fates,
    free_sites: Vec<FreeSite>,
}

impl SiteBook {
    /// At the end of every step.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Blocks and bytes now.
    pub fn now(&self) -> Held {
        self.tally.now
    }
}

/// One layer of one device.
#[derive(Clone, Debug, Default)]
pub struct Book {
    live: FxHashMap<u64, LiveBlock>,
    total: Held,
    marks: Marks<MARKS>,
    sites: Vec<SiteBook>,
    stacks: Vec<Tally<MARKS>>,
    sites_of_stacks: Vec<SiteId>,
    series: Series,
    step: u32,
    bins: Bins,
    last: Sample,
    peak: Sample,
    /// Frees of addresses that were not live: their allocation was lost, or happened before recording.
    pub unmatched_frees: u64,
    /// Allocations at an address that was live already: its free was lost.
    pub lost_frees: u64,
    /// Events taken.
    pub events: u64,
}

impl Book {
    /// A book that is opened when this many steps have ended.
    pub fn at_step(step: u32) -> Self {
        Self { step, ..Self::default() }
    }

    /// A block appears.
    pub fn alloc(&mut self, addr: u64, bytes: u64, stack: StackId, site: SiteId, now: Now) {
        self.events += 1;
        let block = LiveBlock { bytes, stack, step: now.step };
        match self.live.entry(addr) {
            Entry::Vacant(place) => {
                place.insert(block);
            }
            Entry::Occupied(mut place) => {
                let old = place.insert(block);
                self.lost_frees += 1;
                self.change(old.stack, self.site_of(old.stack), now, |held| held.remove(old.bytes));
                self.total.remove(old.bytes);
            }
        }
        self.change(stack, site, now, |held| held.add(bytes));
        self.sites[site.0 as usize].fates.born += 1;
        self.total.add(bytes);
        self.observe(now);
    }

    /// A block goes; the block that went, if it was known.
    pub fn free(&mut self, addr: u64, free_site: SiteId, now: Now) -> Option<LiveBlock> {
        self.events += 1;
        let Some(block) = self.live.remove(&addr) else {
            self.unmatched_frees += 1;
            self.observe(now);
            return None;
        };
        let site = self.site_of(block.stack);
        self.change(block.stack, site, now, |held| held.remove(block.bytes));
        let book = &mut self.sites[site.0 as usize];
        book.fates.freed += 1;
        book.fates.freed_late += u64::from(block.step < now.step);
        if let Some(entry) = book.free_sites.iter_mut().find(|entry| entry.site == free_site) {
            entry.this_step += 1;
        } else if book.free_sites.len() < MAX_FREE_SITES {
            book.free_sites.push(FreeSite { site: free_site, count: 0, this_step: 1 });
        }
        self.total.remove(block.bytes);
        self.observe(now);
        Some(block)
    }

    fn site_of(&self, stack: StackId) -> SiteId {
        self.sites_of_stacks[stack.0 as usize]
    }

    #[inline]
    fn change(&mut self, stack: StackId, site: SiteId, now: Now, apply: impl Fn(&mut Held)) {
        if self.bins.begins_new(now.time_ns) {
            self.begin_bin(now);
        }
        let (stack_at, site_at) = (stack.0 as usize, site.0 as usize);
        if stack_at >= self.stacks.len() {
            self.stacks.resize(stack_at + 1, Tally::default());
            self.sites_of_stacks.resize(stack_at + 1, SiteId(0));
        }
        self.sites_of_stacks[stack_at] = site;
        if site_at >= self.sites.len() {
            self.sites.resize(site_at + 1, SiteBook::default());
        }
        let tally = &mut self.stacks[stack_at];
        if tally.is_behind(&self.marks) {
            tally.save(&self.marks);
        }
        apply(&mut tally.now);
        let book = &mut self.sites[site_at];
        if book.tally.is_behind(&self.marks) {
            book.catch_up(self.step, &self.marks, &self.bins);
        }
        apply(&mut book.tally.now);
    }

    /// Takes note of the state after an event, of this layer or another of the same device.
    pub fn observe(&mut self, now: Now) {
        if self.bins.begins_new(now.time_ns) {
            self.begin_bin(now);
        }
        let sample = Sample {
            time_ns: now.time_ns,
            step: now.step,
            live: self.total.bytes,
            reserved: now.reserved,
            device: now.device,
        };
        self.last = sample;
        if sample.live > self.peak.live {
            self.peak = sample;
            self.marks.set(PEAK);
        }
        let effect = self.bins.observe(sample);
        if effect != Effect::default() {
            if effect.is_high {
                self.marks.set(HIGH);
            }
            if effect.is_low {
                self.marks.set(LOW);
            }
            self.bins.marked(effect, self.marks.at(HIGH), self.marks.at(LOW));
        }
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
        self.step += 1;
        self.marks.set(STEP);
    }

    /// Ends the reading: everything that was put off is done.
    pub fn finish(&mut self) {
        let bins = self.bins.all().len();
        for site in &mut self.sites {
            site.catch_up(self.step, &self.marks, &self.bins);
            site.fill_bins(bins, &self.bins);
        }
    }

    /// True when nothing ever happened here.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Blocks and bytes now.
    pub fn total(&self) -> Held {
        self.total
    }

    /// The highest moment.
    pub fn peak(&self) -> Sample {
        self.peak
    }

    /// The last moment.
    pub fn last(&self) -> Sample {
        self.last
    }

    /// Steps ended.
    pub fn steps_ended(&self) -> u32 {
        self.step
    }

    /// All blocks at the end of each step.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// The live blocks.
    pub fn live(&self) -> &FxHashMap<u64, LiveBlock> {
        &self.live
    }

    /// The bins.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// Sites that ever held something.
    pub fn sites(&self) -> impl Iterator<Item = (SiteId, &SiteBook)> {
        self.sites
            .iter()
            .zip(0..)
            .filter(|(book, _)| book.fates.born > 0)
            .map(|(book, id)| (SiteId(id), book))
    }

    /// A site's bytes at the high and low of each bin.
    pub fn bin_values<'a>(&self, site: &'a SiteBook) -> &'a BinValues {
        &site.bins
    }

    /// What a site held at the peak.
    pub fn at_peak(&self, site: &SiteBook) -> Held {
        site.tally.at(&self.marks, PEAK)
    }

    /// What became of a site's blocks until the end of the last step.
    pub fn fates(&self, site: &SiteBook) -> Fates {
        if site.step_seen < self.step { site.fates } else { site.fates_at_step_end }
    }

    /// Where most of a site's blocks were freed until the end of the last step.
    pub fn main_free_site(&self, site: &SiteBook) -> Option<SiteId> {
        let best = site.free_sites.iter().max_by_key(|entry| entry.count)?;
        (best.count > 0).then_some(best.site)
    }

    /// The stack of a site that held most at the peak.
    pub fn main_stack_at_peak(&self, site: SiteId) -> Option<StackId> {
        self.main_stack(site, |tally| tally.at(&self.marks, PEAK).bytes)
    }

    /// The stack of a site that held most at the end of the last step.
    pub fn main_stack_at_step_end(&self, site: SiteId) -> Option<StackId> {
        self.main_stack(site, |tally| tally.at(&self.marks, STEP).bytes)
    }

    fn main_stack(&self, site: SiteId, bytes: impl Fn(&Tally<MARKS>) -> u64) -> Option<StackId> {
        let stacks = self.stacks.iter().zip(&self.sites_of_stacks).zip(0..);
        stacks
            .filter(|((_, of), _)| **of == site)
            .map(|((tally, _), id)| (bytes(tally), StackId(id)))
            .filter(|(bytes, _)| *bytes > 0)
            .max_by_key(|(bytes, id)| (*bytes, std::cmp::Reverse(*id)))
            .map(|(_, id)| id)
    }

    /// Stacks of a site with what they held at the end of the last step.
    pub fn stacks_at_step_end(&self, site: SiteId) -> impl Iterator<Item = (StackId, Held)> {
        let stacks = self.stacks.iter().zip(&self.sites_of_stacks).zip(0..);
        stacks
            .filter(move |((_, of), _)| **of == site)
            .map(|((tally, _), id)| (StackId(id), tally.at(&self.marks, STEP)))
            .filter(|(_, held)| held.bytes > 0)
    }
}

impl SiteBook {
    /// Does what was put off since this site last changed.
    #[inline(never)]
    fn catch_up(&mut self, step: u32, marks: &Marks<MARKS>, bins: &Bins) {
        if self.step_seen < step {
            self.series.record(self.step_seen, self.tally.now);
            self.step_seen = step;
            self.fates_at_step_end = self.fates;
            for entry in &mut self.free_sites {
                entry.count += entry.this_step;
                entry.this_step = 0;
            }
        }
        self.fill_bins(bins.current(), bins);
        self.tally.save(marks);
    }

    /// Finishes the bins before `end`.
    fn fill_bins(&mut self, end: usize, bins: &Bins) {
        if self.bins.len() >= end {
            return;
        }
        let all = bins.all();
        for bin in &all[self.bins.len()..end.min(all.len())] {
            let high = self.tally.at_clock(bin.high_clock, HIGH).bytes;
            let low = self.tally.at_clock(bin.low_clock, LOW).bytes;
            self.bins.push([high, low]);
        }
    }
}
