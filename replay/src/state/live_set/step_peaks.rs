//! The peak of the step before the one in which the peak was, block by block.
//!
//! Definition. The peak of a step is the first moment of it at which most was live, what it began with included.
//!
//! Constraint: which step that is shows only at the end, and a copy of the blocks at the peak of every step would cost steps x blocks.
//! Consequence: the peaks of the step that runs and of the one before it are followed as the peak of the run is ([`PeakBlocks`]), and when the
//! run has a new peak, that of the step before is kept. Only for who asks for it: an event then costs three comparisons more.

use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::peak_blocks::{BlockDeath, PeakBlock, PeakBlocks};

/// The highest moment of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPeak {
    /// Which.
    pub step: u32,
    /// When; unknown where nothing had happened yet.
    pub time_ns: Option<u64>,
    /// What was live.
    pub live_bytes: u64,
    blocks: PeakBlocks,
}

impl StepPeak {
    /// What was live then, in the order in which it came, given what is live now.
    pub(crate) fn blocks(&self, live: &BlockMap) -> Vec<PeakBlock> {
        self.blocks.all(live)
    }

    fn mark(&mut self, live_bytes: u64, time_ns: u64, newest: u64) {
        (self.live_bytes, self.time_ns) = (live_bytes, Some(time_ns));
        self.blocks.mark(newest);
    }
}

/// Of one book.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPeaks {
    running: StepPeak,
    before: Option<StepPeak>,
    /// The run's peak is in the step that runs, so `before` is what is wanted.
    is_before_wanted: bool,
    /// Else this is.
    kept: Option<StepPeak>,
}

impl StepPeaks {
    /// Of a book that is opened when this many steps have ended: it held nothing in them.
    pub(crate) fn at_step(step: u32) -> Self {
        let before = step.checked_sub(1).map(|step| StepPeak { step, ..StepPeak::default() });
        Self { running: StepPeak { step, ..StepPeak::default() }, before, ..Self::default() }
    }

    /// More is live; `newest` is the event that brought it.
    #[inline]
    pub(crate) fn on_growth(&mut self, live_bytes: u64, time_ns: u64, newest: u64) {
        if live_bytes > self.running.live_bytes {
            self.running.mark(live_bytes, time_ns, newest);
        }
    }

    /// A block is gone.
    #[inline]
    pub(crate) fn on_removed(&mut self, addr: u64, block: &LiveBlock, death: BlockDeath) {
        self.running.blocks.on_removed(addr, block, death);
        for peak in self.before.iter_mut().chain(&mut self.kept) {
            peak.blocks.on_removed(addr, block, death);
        }
    }

    /// The run has a new peak.
    pub(crate) fn new_peak(&mut self) {
        self.is_before_wanted = true;
        self.kept = None;
    }

    /// A step begins with what is live.
    pub(crate) fn step_boundary(&mut self, live_bytes: u64, time_ns: u64, newest: u64) {
        let mut next = StepPeak { step: self.running.step + 1, ..StepPeak::default() };
        next.mark(live_bytes, time_ns, newest);
        let ended = std::mem::replace(&mut self.running, next);
        let old = self.before.replace(ended);
        if std::mem::take(&mut self.is_before_wanted) {
            self.kept = old;
        }
    }

    /// The peak of the step before that of the run's peak, if there was one.
    pub(crate) fn before_peak(&self) -> Option<&StepPeak> {
        if self.is_before_wanted { self.before.as_ref() } else { self.kept.as_ref() }
    }
}
