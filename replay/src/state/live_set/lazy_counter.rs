//! Live bytes that can be asked for at a moment of the past.
//!
//! Constraint: the composition of memory at its peak must be exact, but nobody knows that a moment is the peak until the
//! end, and copying every site at every new maximum costs sites x maxima. Consequence: a [`Checkpoints`] counter moves when a
//! moment is marked (again), and a [`LazyCounter`] saves its old value when it is next changed after that. A mark costs one
//! addition, a change one comparison, and the answer is exact.

use crate::util::block_totals::BlockTotals;

/// When each of `N` moments was marked last, on a clock that moves with every mark.
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
    /// Marks this moment, forgetting where the mark was.
    pub(crate) fn set(&mut self, mark: usize) {
        self.clock += 1;
        self.at[mark] = self.clock;
    }

    /// When the mark was set.
    pub(crate) fn at(&self, mark: usize) -> u64 {
        self.at[mark]
    }
}

/// A value with its past at `N` marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LazyCounter<const N: usize> {
    /// The value.
    pub now: BlockTotals,
    touched: u64,
    saved: [BlockTotals; N],
}

impl<const N: usize> Default for LazyCounter<N> {
    fn default() -> Self {
        Self { now: BlockTotals::default(), touched: 0, saved: [BlockTotals::default(); N] }
    }
}

impl<const N: usize> LazyCounter<N> {
    /// True when a mark was set since the last change: call [`Self::save`] before the next one.
    #[inline]
    pub(crate) fn is_behind(&self, marks: &Checkpoints<N>) -> bool {
        self.touched < marks.clock
    }

    /// Keeps the value at every mark set since the last change.
    pub(crate) fn save(&mut self, marks: &Checkpoints<N>) {
        for (saved, at) in self.saved.iter_mut().zip(&marks.at) {
            if *at > self.touched {
                *saved = self.now;
            }
        }
        self.touched = marks.clock;
    }

    /// The value when the mark was set.
    pub(crate) fn at(&self, marks: &Checkpoints<N>, mark: usize) -> BlockTotals {
        self.at_clock(marks.at[mark], mark)
    }

    /// The value when `mark` stood at `clock`, which must be the last time it was set before this tally was changed again.
    pub(crate) fn at_clock(&self, clock: u64, mark: usize) -> BlockTotals {
        if self.touched < clock { self.now } else { self.saved[mark] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_past_is_what_it_was(changes in proptest::collection::vec((0usize..5, 0u64..100, 0usize..3), 0..200)) {
            let mut marks = Checkpoints::<2>::default();
            let mut tallies = [LazyCounter::<2>::default(); 5];
            let mut expected = [[BlockTotals::default(); 5]; 2];
            for (at, bytes, mark) in changes {
                let counter = &mut tallies[at];
                if counter.is_behind(&marks) {
                    counter.save(&marks);
                }
                if bytes % 3 == 0 { counter.now.remove(bytes) } else { counter.now.add(bytes) }
                if mark < 2 {
                    marks.set(mark);
                    expected[mark] = tallies.map(|counter| counter.now);
                }
            }
            for (mark, expected) in expected.iter().enumerate() {
                prop_assert_eq!(&tallies.map(|counter| counter.at(&marks, mark)), expected);
            }
        }
    }
}
