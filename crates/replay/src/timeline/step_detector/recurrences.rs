//! Finds a period in allocations without Python stacks.
//!
//! A native program has no frames that show its loops
//! ([`crate::timeline::step_detector::loop_detector`]). Its steps begin at an allocation, by stack
//! and size, that recurs after a constant number of allocations. Of several, the one with the
//! longest period counts: it belongs to the outermost loop.

use crate::timeline::steps::StepToken;
use crate::util::seeded_map::SeededMap;

/// A period must repeat at least this often.
const MIN_PERIODS: u64 = 8;

/// The occurrences of one allocation, with the majority candidate for their distance.
#[derive(Clone, Copy, Debug, Default)]
struct Recurrence {
    count: u64,
    /// Index of the first occurrence among all allocations.
    first: u64,
    /// Index of the last occurrence.
    last: u64,
    /// Candidate for the distance of two occurrences.
    gap: u64,
    /// Majority vote for `gap`.
    votes: u64,
    /// Distances equal to `gap` since it became the candidate.
    matches: u64,
    widest_gap: u64,
    /// Occurrences with a free since the last allocation.
    after_frees: u64,
}

impl Recurrence {
    fn add(&mut self, index: u64, follows_free: bool) {
        if self.count > 0 {
            // Boyer-Moore majority vote: a gap in more than half of the cases ends as the
            // candidate.
            let gap = index - self.last;
            self.widest_gap = self.widest_gap.max(gap);
            if gap == self.gap {
                self.votes += 1;
                self.matches += 1;
            } else if self.votes == 0 {
                (self.gap, self.votes, self.matches) = (gap, 1, 1);
            } else {
                self.votes -= 1;
            }
            self.after_frees += u64::from(follows_free);
        }
        self.count += 1;
        self.last = index;
    }

    /// True if 95% of the distances are equal, apart from two at the start, and if the occurrences
    /// span at least half of the allocations, reach the last quarter, and are not concentrated in a
    /// few moments. One allocation that repeats without a free may be a single list of buffers.
    fn is_regular(&self, allocations: u64) -> bool {
        let span = self.last - self.first;
        self.count >= MIN_PERIODS
            && (self.matches + 2) * 20 >= (self.count - 1) * 19
            && span * 2 >= allocations
            && (allocations - self.last) * 4 <= allocations
            && self.widest_gap * 3 <= span
            && (self.gap > 1 || self.after_frees * 2 >= self.count - 1)
    }
}

/// Counts the recurrences of allocations.
#[derive(Debug, Default)]
pub(super) struct Recurrences {
    by_token: SeededMap<StepToken, Recurrence>,
    allocations: usize,
    follows_free: bool,
}

impl Recurrences {
    /// Observes an allocation. `index` is its number among all allocations of the run.
    pub(super) fn on_allocation(&mut self, token: StepToken, index: u64) {
        self.allocations += 1;
        let follows_free = std::mem::take(&mut self.follows_free);
        let new = Recurrence { first: index, ..Recurrence::default() };
        self.by_token.entry(token).or_insert(new).add(index, follows_free);
    }

    /// Observes a free by any thread.
    #[inline]
    pub(super) fn on_free(&mut self) {
        self.follows_free = true;
    }

    /// Number of observed allocations.
    pub(super) fn allocations(&self) -> usize {
        self.allocations
    }

    /// The regular allocation with the longest period, of `allocations` in all.
    pub(super) fn find_period(&self, allocations: u64) -> Option<StepToken> {
        let regular = self.by_token.iter().filter(|(_, recurrence)| recurrence.is_regular(allocations));
        let longest =
            regular.max_by_key(|(_, recurrence)| (recurrence.gap, std::cmp::Reverse(recurrence.first)));
        longest.map(|(token, _)| *token)
    }
}
