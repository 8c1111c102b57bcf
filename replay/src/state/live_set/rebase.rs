//! A book that begins anew in the middle of a run.
//!
//! Constraint: what is asked for is a part of the run (`--since`), and an event must cost no more for it. Consequence: nothing is
//! looked at per event; at the one moment the book is made again from the blocks that are live then, as if all of them had been
//! allocated at that moment, by the lines that did; ages of blocks, and what frees find, stay as they are.

use super::{LiveSet, PEAK, STACK_PEAK};
use crate::timeline::bins::{MemorySample, TimelineBins};

impl LiveSet {
    /// What comes from here on is all there is: the peak, the bins, the series and what became of blocks begin now, with what is
    /// held. `rest_ns` is how long the run goes on; 0 where that is not known.
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, rest_ns: u64) {
        let old = std::mem::take(self);
        let last = MemorySample { time_ns, step: old.step, live: old.total.bytes, ..old.last };
        *self = Self {
            live: old.live,
            step: old.step,
            first_step: old.step,
            bins: TimelineBins::for_span(rest_ns),
            last,
            unmatched_frees: old.unmatched_frees,
            lost_frees: old.lost_frees,
            events: old.events,
            step_peaks: old.step_peaks,
            ..Self::default()
        };
        let held: Vec<_> = self.live.iter().map(|(_, block)| (block.stack, block.bytes)).collect();
        for (stack, bytes) in held {
            let site = old.stacks[stack.0 as usize].site;
            self.change(stack, site, |held| held.add(bytes)).outcomes.allocated += 1;
            self.total.add(bytes);
        }
        for site in &mut self.sites {
            site.step_seen = self.step;
        }
        for stack in &mut self.stacks {
            stack.step_seen = self.step;
        }
        self.peak = last;
        self.peak_blocks.mark(self.events);
        if let Some(peaks) = &mut self.step_peaks {
            peaks.new_peak();
        }
        self.marks.set(PEAK);
        self.stack_marks.set(STACK_PEAK);
        let now =
            super::StateSample { time_ns, step: last.step, reserved: last.reserved, device: last.device };
        self.advance_bin(now);
    }
}
