//! Restarts a live set in the middle of a run (`--since`).
//!
//! [`LiveSet::rebase`] rebuilds the set once, from the blocks that are live at the given time, as
//! if their stacks had allocated them at that time. Events therefore cost no more than without
//! `--since`. Ages of blocks and frees keep their meaning. `crates/replay/tests/parts.rs` checks
//! the totals.

use super::{LiveSet, PEAK, STACK_PEAK};
use crate::timeline::bins::{MemorySample, TimelineBins};
use crate::util::ids::{SiteId, StackId};

/// The state of a set when it was restarted.
#[derive(Clone, Debug)]
pub(crate) struct RebasedState {
    /// The last event before.
    pub serial: u64,
    /// Site and live bytes of each stack that had allocated, by stack.
    pub stacks: Vec<(StackId, SiteId, u64)>,
}

impl LiveSet {
    /// Restarts the peak, the bins, the series and the outcomes with the present blocks. `rest_ns`
    /// is the length of the rest of the run, 0 if unknown.
    #[cold]
    pub(crate) fn rebase(&mut self, time_ns: u64, rest_ns: u64) {
        let old = std::mem::take(self);
        let last = MemorySample { time_ns, step: old.step, live: old.total.bytes, ..old.last };
        let axis = old.axis.for_part(rest_ns);
        *self = Self {
            live: old.live,
            step: old.step,
            first_step: old.step,
            axis,
            bins: TimelineBins::on_axis(&axis),
            last,
            unmatched_frees: old.unmatched_frees,
            lost_frees: old.lost_frees,
            events: old.events,
            step_peaks: old.step_peaks,
            ..Self::default()
        };
        let before = old.stacks.iter().zip(0..).filter(|(stats, _)| stats.has_allocated());
        let stacks = before.map(|(stats, id)| (StackId(id), stats.site, stats.counter.now.bytes)).collect();
        self.rebased = Some(Box::new(RebasedState { serial: self.events, stacks }));
        let live: Vec<_> = self.live.iter().map(|(_, block)| (block.stack, block.bytes)).collect();
        for (stack, bytes) in live {
            let site = old.stacks[stack.0 as usize].site;
            self.update_totals(stack, site, |totals| totals.add(bytes)).outcomes.allocated += 1;
            self.total.add(bytes);
        }
        for site in &mut self.sites {
            site.recorded_step = self.step;
        }
        self.peak = last;
        self.peak_blocks.set_peak(self.events);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.on_new_peak();
        }
        self.checkpoints.set(PEAK);
        self.stack_checkpoints.set(STACK_PEAK);
        let now =
            super::StateSample { time_ns, step: last.step, reserved: last.reserved, device: last.device };
        self.advance_bin(now);
    }
}
