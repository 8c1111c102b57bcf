//! The peak of the step before the step of the run's peak, with its blocks.
//!
//! Definition: the peak of a step is the first moment of its highest live bytes, including blocks
//! allocated before it.
//!
//! Constraint: the step of the run's peak is known only at the end. Copying the blocks at the peak
//! of every step would cost steps x blocks. Consequence: [`StepPeaks`] tracks the peaks of the
//! current and the previous step like the peak of the run ([`PeakBlocks`]). When a step with a new
//! peak of the run ends, it keeps the peak of the step before. This is enabled on demand and costs
//! three comparisons per event. `crates/replay/tests/peaks.rs` checks it.

use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::peak_blocks::{BlockFree, PeakBlock, PeakBlocks};

/// The highest moment of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPeak {
    /// Number of the step.
    pub step: u32,
    /// `None` if the step ended before the first event.
    pub time_ns: Option<u64>,
    pub live_bytes: u64,
    blocks: PeakBlocks,
}

impl StepPeak {
    /// The blocks live at this peak, in the order of their allocation. `live` are the present
    /// blocks.
    pub(crate) fn collect_blocks(&self, live: &BlockMap) -> Vec<PeakBlock> {
        self.blocks.collect(live)
    }

    fn set_peak(&mut self, live_bytes: u64, time_ns: u64, newest: u64) {
        (self.live_bytes, self.time_ns) = (live_bytes, Some(time_ns));
        self.blocks.set_peak(newest);
    }
}

/// The peaks of recent steps of a live set.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPeaks {
    current: StepPeak,
    previous: Option<StepPeak>,
    /// The run's peak is in the current step, so `previous` is the step before it.
    is_peak_in_current: bool,
    /// The step before the run's peak, if the peak is in an earlier step.
    before_peak: Option<StepPeak>,
}

impl StepPeaks {
    /// The peaks of a live set that begins after `step` steps and was empty in them.
    pub(crate) fn at_step(step: u32) -> Self {
        let previous = step.checked_sub(1).map(|step| StepPeak { step, ..StepPeak::default() });
        Self { current: StepPeak { step, ..StepPeak::default() }, previous, ..Self::default() }
    }

    /// Observes the live bytes after an allocation. `newest` is its event number.
    #[inline]
    pub(crate) fn on_growth(&mut self, live_bytes: u64, time_ns: u64, newest: u64) {
        if live_bytes > self.current.live_bytes {
            self.current.set_peak(live_bytes, time_ns, newest);
        }
    }

    /// Handles the removal of a block.
    #[inline]
    pub(crate) fn on_removed(&mut self, addr: u64, block: &LiveBlock, free: BlockFree) {
        self.current.blocks.on_removed(addr, block, free);
        for peak in self.previous.iter_mut().chain(&mut self.before_peak) {
            peak.blocks.on_removed(addr, block, free);
        }
    }

    /// Handles a new peak of the run, in the current step.
    pub(crate) fn on_new_peak(&mut self) {
        self.is_peak_in_current = true;
        self.before_peak = None;
    }

    /// Ends the current step. The next one begins with these live bytes.
    pub(crate) fn end_step(&mut self, live_bytes: u64, time_ns: u64, newest: u64) {
        let mut next = StepPeak { step: self.current.step + 1, ..StepPeak::default() };
        next.set_peak(live_bytes, time_ns, newest);
        let ended = std::mem::replace(&mut self.current, next);
        let previous = self.previous.replace(ended);
        if std::mem::take(&mut self.is_peak_in_current) {
            self.before_peak = previous;
        }
    }

    /// The peak of the step before the step of the run's peak, if there was one.
    pub(crate) fn before_peak(&self) -> Option<&StepPeak> {
        if self.is_peak_in_current { self.previous.as_ref() } else { self.before_peak.as_ref() }
    }
}
