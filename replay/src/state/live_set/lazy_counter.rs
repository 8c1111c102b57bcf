//! Live bytes that can be asked for at a moment of the past.
//!
//! Constraint: the composition of memory at its peak must be exact, but nobody knows that a moment is the peak until the
//! end, and copying every site at every new maximum costs sites x maxima. Consequence: a [`Marks`] counter moves when a
//! moment is marked (again), and a [`Tally`] saves its old value when it is next changed after that. A mark costs one
//! addition, a change one comparison, and the answer is exact.

/// Together; a damaged file may hold amounts that no number holds.
pub fn sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(0, u64::saturating_add)
}

/// An amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Held {
    /// One block more.
    pub fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    /// One block less.
    pub fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}

/// When each of `N` moments was marked last, on a clock that moves with every mark.
#[derive(Clone, Copy, Debug)]
pub struct Marks<const N: usize> {
    clock: u64,
    at: [u64; N],
}

impl<const N: usize> Default for Marks<N> {
    fn default() -> Self {
        Self { clock: 0, at: [0; N] }
    }
}

impl<const N: usize> Marks<N> {
    /// Marks this moment, forgetting where the mark was.
    pub fn set(&mut self, mark: usize) {
        self.clock += 1;
        self.at[mark] = self.clock;
    }

    /// When the mark was set.
    pub fn at(&self, mark: usize) -> u64 {
        self.at[mark]
    }
}

/// A value with its past at `N` marks.
#[derive(Clone, Copy, Debug)]
pub struct Tally<const N: usize> {
    /// The value.
    pub now: Held,
    touched: u64,
    saved: [Held; N],
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self { now: Held::default(), touched: 0, saved: [Held::default(); N] }
    }
}

impl<const N: usize> Tally<N> {
    /// True when a mark was set since the last change: call [`Self::save`] before the next one.
    #[inline]
    pub fn is_behind(&self, marks: &Marks<N>) -> bool {
        self.touched < marks.clock
    }

    /// Keeps the value at every mark set since the last change.
    pub fn save(&mut self, marks: &Marks<N>) {
        for (saved, at) in self.saved.iter_mut().zip(&marks.at) {
            if *at > self.touched {
                *saved = self.now;
            }
        }
        self.touched = marks.clock;
    }

    /// The value when the mark was set.
    pub fn at(&self, marks: &Marks<N>, mark: usize) -> Held {
        self.at_clock(marks.at[mark], mark)
    }

    /// The value when `mark` stood at `clock`, which must be the last time it was set before this tally was changed again.
    pub fn at_clock(&self, clock: u64, mark: usize) -> Held {
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
            let mut marks = Marks::<2>::default();
            let mut tallies = [Tally::<2>::default(); 5];
            let mut expected = [[Held::default(); 5]; 2];
            for (at, bytes, mark) in changes {
                let tally = &mut tallies[at];
                if tally.is_behind(&marks) {
                    tally.save(&marks);
                }
                if bytes % 3 == 0 { tally.now.remove(bytes) } else { tally.now.add(bytes) }
                if mark < 2 {
                    marks.set(mark);
                    expected[mark] = tallies.map(|tally| tally.now);
                }
            }
            for (mark, expected) in expected.iter().enumerate() {
                prop_assert_eq!(&tallies.map(|tally| tally.at(&marks, mark)), expected);
            }
        }
    }
}
