//! A counter that remembers its values at past moments.
//!
//! Constraint: the composition of memory at the peak must be exact, but the peak is known only at
//! the end. Copying every site at every new maximum would cost sites x maxima. Consequence: setting
//! a checkpoint only advances a clock ([`Checkpoints`]). A [`LazyCounter`] saves its old value on
//! its first change after that. A checkpoint costs one addition and a change one comparison. The
//! property test below compares the values with copies.

use crate::util::block_totals::BlockTotals;

/// The times at which each of `N` checkpoints was last set, on a clock that advances with each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoints<const N: usize> {
    clock: u64,
    at: [u64; N],
}

impl<const N: usize> Default for Checkpoints<N> {
    fn default() -> Self {
        Self { clock: 0, at: [0; N] }
    }
}

impl<const N: usize> Checkpoints<N> {
    /// Sets a checkpoint to the present moment.
    pub(crate) fn set(&mut self, checkpoint: usize) {
        self.clock += 1;
        self.at[checkpoint] = self.clock;
    }

    /// The clock at which the checkpoint was last set.
    pub(crate) fn clock_of(&self, checkpoint: usize) -> u64 {
        self.at[checkpoint]
    }
}

/// A value with its past at `N` checkpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LazyCounter<const N: usize> {
    /// The present value. Call [`Self::save`] before changing it if [`Self::is_behind`].
    pub now: BlockTotals,
    /// The clock of the last [`Self::save`].
    saved_at: u64,
    saved: [BlockTotals; N],
}

impl<const N: usize> Default for LazyCounter<N> {
    fn default() -> Self {
        Self { now: BlockTotals::default(), saved_at: 0, saved: [BlockTotals::default(); N] }
    }
}

impl<const N: usize> LazyCounter<N> {
    /// True if a checkpoint was set since the last [`Self::save`].
    #[inline]
    pub(crate) fn is_behind(&self, checkpoints: &Checkpoints<N>) -> bool {
        self.saved_at < checkpoints.clock
    }

    /// Saves the present value for every checkpoint set since the last call.
    pub(crate) fn save(&mut self, checkpoints: &Checkpoints<N>) {
        for (saved, at) in self.saved.iter_mut().zip(&checkpoints.at) {
            if *at > self.saved_at {
                *saved = self.now;
            }
        }
        self.saved_at = checkpoints.clock;
    }

    /// The value when the checkpoint was last set.
    pub(crate) fn value_at(&self, checkpoints: &Checkpoints<N>, checkpoint: usize) -> BlockTotals {
        self.value_at_clock(checkpoints.at[checkpoint], checkpoint)
    }

    /// The value when the checkpoint was set at `clock`. This must be the last time that it was set
    /// before the next change of this counter.
    pub(crate) fn value_at_clock(&self, clock: u64, checkpoint: usize) -> BlockTotals {
        if self.saved_at < clock { self.now } else { self.saved[checkpoint] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_at_checkpoints_equal_copies(
            changes in proptest::collection::vec((0usize..5, 0u64..100, 0usize..3), 0..200),
        ) {
            let mut checkpoints = Checkpoints::<2>::default();
            let mut counters = [LazyCounter::<2>::default(); 5];
            let mut expected = [[BlockTotals::default(); 5]; 2];
            for (index, bytes, checkpoint) in changes {
                let counter = &mut counters[index];
                if counter.is_behind(&checkpoints) {
                    counter.save(&checkpoints);
                }
                if bytes % 3 == 0 { counter.now.remove(bytes) } else { counter.now.add(bytes) }
                if checkpoint < 2 {
                    checkpoints.set(checkpoint);
                    expected[checkpoint] = counters.map(|counter| counter.now);
                }
            }
            for (checkpoint, expected) in expected.iter().enumerate() {
                prop_assert_eq!(&counters.map(|counter| counter.value_at(&checkpoints, checkpoint)), expected);
            }
        }
    }
}
