//! The schedule of observations of the gap: one after each equal number of events.
//!
//! Constraint: one observation visits every live block and every range of driver memory. Neither
//! the number of events nor that of later blocks is known in advance.
//! Consequence: the distance doubles, and every other observation is dropped, when there are more
//! than [`MAX_OBSERVATIONS`], or when they would visit more than one block per [`EVENTS_PER_BLOCK`]
//! events. So those that are left have even distances over the whole run. There are at least half
//! of [`MIN_OBSERVATIONS`], however many blocks are live. The tests below check the distances and
//! the bound.

/// Most observations that are kept.
const MAX_OBSERVATIONS: u64 = 256;
/// Observations that are made whatever they cost.
const MIN_OBSERVATIONS: u64 = 16;
/// Blocks and ranges that may be visited regardless of the number of events.
const FREE_BLOCKS: u64 = 1 << 14;
/// Events that allow one more block or range to be visited.
const EVENTS_PER_BLOCK: u64 = 8;
/// The first distance in a run of unknown length, in events.
const MIN_STRIDE: u64 = 16;

/// What to do at a moment at which an observation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueObservation {
    /// The number of the event before the moment; observations at its multiples are kept.
    pub event: u64,
    /// The distance of observations in events. Those at other numbers are dropped.
    pub stride: u64,
    /// The present moment is to be observed.
    pub is_kept: bool,
    /// Fewer observations are kept than [`MAX_OBSERVATIONS`] need, because of the live blocks.
    pub is_limited: bool,
}

/// The observations of the gap that are still to come.
#[derive(Debug)]
pub(crate) struct GapSchedule {
    /// Number of events so far.
    events: u64,
    stride: u64,
    next_event: u64,
    blocks_visited: u64,
    is_limited: bool,
    /// Number of events of the whole run, as far as it is known; else 0.
    expected_events: u64,
}

impl GapSchedule {
    /// Schedules observations for a run with this number of events (0 if unknown).
    pub(crate) fn new(expected_events: u64) -> Self {
        let stride = expected_events.div_ceil(MAX_OBSERVATIONS).max(MIN_STRIDE);
        Self { events: 0, stride, next_event: stride, blocks_visited: 0, is_limited: false, expected_events }
    }

    /// Begins anew for the rest of the run.
    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.expected_events.saturating_sub(self.events));
    }

    /// Number of events until the next observation. 0 if it is due now.
    #[inline]
    pub(crate) fn events_until_due(&self) -> u64 {
        self.next_event - self.events
    }

    /// Counts events, at most [`Self::events_until_due`].
    #[inline]
    pub(crate) fn count_events(&mut self, events: usize) {
        self.events = self.events.saturating_add(events as u64).min(self.next_event);
    }

    /// Takes the observation that is due, which would visit this number of blocks and ranges.
    pub(crate) fn take_due(&mut self, blocks: u64) -> DueObservation {
        let allowed = FREE_BLOCKS.saturating_add(self.events / EVENTS_PER_BLOCK);
        let is_costly = self.blocks_visited.saturating_add(blocks) > allowed;
        while self.events.is_multiple_of(self.stride) {
            let observations = self.events / self.stride;
            let is_too_costly = is_costly && observations > MIN_OBSERVATIONS;
            if observations <= MAX_OBSERVATIONS && !is_too_costly {
                break;
            }
            self.stride = self.stride.saturating_mul(2);
            self.is_limited |= is_too_costly;
        }
        let is_kept = self.events.is_multiple_of(self.stride);
        if is_kept {
            self.blocks_visited = self.blocks_visited.saturating_add(blocks);
        }
        self.next_event = (self.events / self.stride + 1).saturating_mul(self.stride);
        let is_limited = self.is_limited && self.events / self.stride <= MAX_OBSERVATIONS / 2;
        DueObservation { event: self.events, stride: self.stride, is_kept, is_limited }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a schedule over events with `blocks_at` live blocks after each; returns the events of
    /// the observations that are kept, the blocks that were visited, and the last step.
    fn observe(
        expected_events: u64,
        events: u64,
        blocks_at: impl Fn(u64) -> u64,
    ) -> (Vec<u64>, u64, DueObservation) {
        let mut schedule = GapSchedule::new(expected_events);
        let (mut kept, mut visited, mut last) = (Vec::new(), 0, None);
        while schedule.events + schedule.events_until_due() <= events {
            schedule.count_events(schedule.events_until_due() as usize);
            let due = schedule.take_due(blocks_at(schedule.events));
            kept.retain(|event: &u64| event.is_multiple_of(due.stride));
            if due.is_kept {
                visited += blocks_at(schedule.events);
                kept.push(due.event);
            }
            last = Some(due);
        }
        (kept, visited, last.unwrap())
    }

    #[test]
    fn observations_have_even_distances_over_the_whole_run() {
        for expected in [0, 1_000_000] {
            // A constant number of live blocks, one that grows, and many from the begin on.
            for (live, per_events) in [(100, u64::MAX), (0, 1000), (0, 20), (100_000, 2)] {
                let (kept, visited, last) = observe(expected, 1_000_000, |event| live + event / per_events);
                let distances = kept.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(distances.chain(kept.first().copied()).all(|distance| distance == last.stride));
                assert!(1_000_000 - kept.last().unwrap() < last.stride, "up to the end");
                assert!(kept.len() as u64 <= MAX_OBSERVATIONS);
                assert!(kept.len() as u64 >= MIN_OBSERVATIONS / 2, "{}", kept.len());
                let most_live = live + 1_000_000 / per_events;
                if kept.len() as u64 > MIN_OBSERVATIONS {
                    let allowed = FREE_BLOCKS + 1_000_000 / EVENTS_PER_BLOCK;
                    assert!(visited <= allowed + MIN_OBSERVATIONS * most_live, "{visited}");
                }
                let is_few = kept.len() as u64 <= MAX_OBSERVATIONS / 2;
                assert_eq!(last.is_limited, is_few && most_live > 300, "{live} {per_events}");
            }
        }
    }

    #[test]
    fn short_runs_are_observed_often() {
        let (kept, ..) = observe(0, 3000, |_| 50);
        assert!(kept.len() > 90, "{}", kept.len());
    }

    #[test]
    fn rest_of_a_run_has_a_schedule_of_its_own() {
        let mut schedule = GapSchedule::new(256_000);
        schedule.count_events(1000);
        schedule.take_due(1);
        schedule.restart();
        assert_eq!((schedule.stride, schedule.events_until_due()), (997, 997));
    }
}
