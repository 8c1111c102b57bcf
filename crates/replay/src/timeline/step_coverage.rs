//! Measures how much of a run its steps cover.
//!
//! Steps may end long before the run does, for example if a long evaluation follows the training.
//! Growth after the last boundary is in no step, so steps say nothing about it. The unit is
//! allocations, of PyTorch's blocks if there are any, else of driver memory.

use gpumemtrace_format::EventKind;

use crate::timeline::steps::StepLayer;

/// How the allocations of a run are distributed over its steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct StepCoverage {
    /// Allocations from the first step boundary to the last one.
    pub allocations_in_steps: u64,
    /// Allocations after the last step boundary. The last step itself is among them: about
    /// `allocations_per_step` are normal.
    pub allocations_after_last_step: u64,
    /// Bytes of these allocations, freed or not.
    pub bytes_after_last_step: u64,
    /// Mean number of allocations between two boundaries; `None` with one boundary.
    pub allocations_per_step: Option<f64>,
}

impl StepCoverage {
    /// The allocations after the last boundary, as a number of steps. About 1 is normal; `None` if
    /// the length of a step is unknown.
    pub(crate) fn steps_after_last(&self) -> Option<f64> {
        let per_step = self.allocations_per_step.filter(|per_step| *per_step > 0.0)?;
        Some(self.allocations_after_last_step as f64 / per_step)
    }
}

/// Allocations and their bytes so far, by layer.
#[derive(Clone, Copy, Debug, Default)]
struct LayerTotals {
    blocks: u64,
    block_bytes: u64,
    driver: u64,
    driver_bytes: u64,
}

/// Counts allocations at step boundaries.
#[derive(Debug, Default)]
pub(crate) struct CoverageCounter {
    block_bytes: u64,
    driver_bytes: u64,
    steps: u64,
    at_first: LayerTotals,
    at_last: LayerTotals,
}

impl CoverageCounter {
    /// Adds the size of an allocated block.
    #[inline]
    pub(crate) fn add_block(&mut self, bytes: u64) {
        self.block_bytes = self.block_bytes.wrapping_add(bytes);
    }

    /// Adds the size of driver memory, if `kind` allocates it.
    pub(crate) fn add_driver_call(&mut self, kind: EventKind, bytes: u64) {
        if StepLayer::Driver.is_allocation(kind) {
            self.driver_bytes = self.driver_bytes.wrapping_add(bytes);
        }
    }

    fn totals(&self, counts: &[u64; 256]) -> LayerTotals {
        LayerTotals {
            blocks: StepLayer::Blocks.count_allocations(counts),
            block_bytes: self.block_bytes,
            driver: StepLayer::Driver.count_allocations(counts),
            driver_bytes: self.driver_bytes,
        }
    }

    /// Begins a step immediately before an event of kind `first`, which `counts` includes already.
    pub(crate) fn begin_step(&mut self, counts: &[u64; 256], first: EventKind) {
        let mut totals = self.totals(counts);
        totals.blocks -= u64::from(StepLayer::Blocks.is_allocation(first)).min(totals.blocks);
        totals.driver -= u64::from(StepLayer::Driver.is_allocation(first)).min(totals.driver);
        if self.steps == 0 {
            self.at_first = totals;
        }
        self.at_last = totals;
        self.steps += 1;
    }

    /// The coverage at the end of the run; `None` if no step began.
    pub(crate) fn finish(&self, counts: &[u64; 256]) -> Option<StepCoverage> {
        let between = self.steps.checked_sub(1)?;
        let end = self.totals(counts);
        let has_blocks = end.blocks > 0;
        let allocations = |totals: LayerTotals| if has_blocks { totals.blocks } else { totals.driver };
        let bytes = |totals: LayerTotals| if has_blocks { totals.block_bytes } else { totals.driver_bytes };
        let in_steps = allocations(self.at_last) - allocations(self.at_first);
        Some(StepCoverage {
            allocations_in_steps: in_steps,
            allocations_after_last_step: allocations(end) - allocations(self.at_last),
            bytes_after_last_step: bytes(end).wrapping_sub(bytes(self.at_last)),
            allocations_per_step: (between > 0).then(|| in_steps as f64 / between as f64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The coverage of a run: a digit is an allocation of so many bytes, `f` a free, `|` the
    /// boundary before the next event.
    fn coverage(events: &str, kind: EventKind, free: EventKind) -> Option<StepCoverage> {
        let mut counter = CoverageCounter::default();
        let mut counts = [0; 256];
        let mut begins = false;
        for event in events.chars() {
            let size = event.to_digit(10);
            if event == '|' {
                begins = true;
                continue;
            }
            let of_event = if size.is_some() { kind } else { free };
            counts[usize::from(of_event.0)] += 1;
            if std::mem::take(&mut begins) {
                counter.begin_step(&counts, of_event);
            }
            match (size, kind) {
                (Some(bytes), EventKind::BLOCK_ALLOC) => counter.add_block(bytes.into()),
                (Some(bytes), _) => counter.add_driver_call(of_event, bytes.into()),
                (None, _) => {}
            }
        }
        counter.finish(&counts)
    }

    #[test]
    fn allocations_after_the_last_boundary_are_not_in_steps() {
        let layers = [
            (EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE),
            (EventKind::ASYNC_ALLOC, EventKind::ASYNC_FREE),
        ];
        for (alloc, free) in layers {
            let found = coverage("99|11f|11ff|22f25", alloc, free).unwrap();
            let expected = StepCoverage {
                allocations_in_steps: 4,
                allocations_after_last_step: 4,
                bytes_after_last_step: 11,
                allocations_per_step: Some(2.0),
            };
            assert_eq!((found, found.steps_after_last()), (expected, Some(2.0)));
        }
    }

    #[test]
    fn coverage_is_unknown_without_steps() {
        assert_eq!(coverage("11f1", EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE), None);
        let one = coverage("1|f1", EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE).unwrap();
        assert_eq!((one.allocations_after_last_step, one.allocations_per_step), (1, None));
        assert_eq!(one.steps_after_last(), None);
    }
}
