//! Follows the gap over the run: its causes, and the memory that each line's blocks pinned over
//! time.
//!
//! Constraint: one observation visits every live block and every range of driver memory.
//! Consequence: at most [`MAX_OBSERVATIONS`] are kept, at even distances in time, and at most one
//! block or range is visited per [`EVENTS_PER_BLOCK`] events. Each observation is exact; between
//! two of them, the state of the first is assumed. The tests below bound the cost and check each
//! line's bytes over time.

use super::Gap;
use crate::util::ids::SiteId;
use crate::util::seeded_map::SeededMap;

/// Observations that are kept. When one more comes, every other is dropped.
pub(crate) const MAX_OBSERVATIONS: usize = 256;
/// Blocks and ranges that may be visited regardless of the number of events.
const FREE_BLOCKS: u64 = 1 << 14;
/// Events that allow one more block or range to be visited.
const EVENTS_PER_BLOCK: u64 = 32;

/// The gap at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GapObservation {
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes reserved and not requested.
    pub gap: u64,
    /// The gap by cause, in the order of [`super::CAUSES`].
    pub causes: [u64; 7],
}

/// Free memory that the blocks of one line pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinnedCost {
    /// Integral over time, in bytes times nanoseconds.
    pub byte_ns: u128,
    /// Duration for which the line pinned any memory.
    pub time_ns: u64,
    /// Most bytes in one observation.
    pub peak_bytes: u64,
    /// Time of the first observation with that many.
    pub peak_time_ns: u64,
}

/// The gap of one device over the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct GapHistory {
    observations: Vec<GapObservation>,
    /// So many observations are skipped for each that is kept.
    skip: u64,
    count: u64,
    blocks_visited: u64,
    costs: SeededMap<SiteId, PinnedCost>,
    /// Bytes pinned by each line as of the last observation.
    pinned: Vec<(SiteId, u64)>,
    /// Time of the last observation.
    last_ns: Option<u64>,
    first_ns: u64,
    end_ns: u64,
}

impl GapHistory {
    /// True if the events so far allow an observation that visits so many blocks and ranges.
    pub(crate) fn may_observe(&self, blocks: u64, events: u64) -> bool {
        let allowed = FREE_BLOCKS.saturating_add(events / EVENTS_PER_BLOCK);
        self.blocks_visited.saturating_add(blocks) <= allowed
    }

    /// Adds the gap of one moment. `blocks`: how many blocks and ranges were visited for it.
    pub(crate) fn observe(&mut self, (time_ns, step): (u64, u32), reserved: u64, blocks: u64, gap: &Gap) {
        self.add_costs_until(time_ns);
        self.blocks_visited = self.blocks_visited.saturating_add(blocks);
        self.pinned.clear();
        self.pinned.extend(gap.pinned_by_line());
        // A line may appear under several causes: merge them.
        self.pinned.sort_unstable();
        self.pinned.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            first.1 = first.1.saturating_add(if is_same { next.1 } else { 0 });
            is_same
        });
        for (site, bytes) in &self.pinned {
            let cost = self.costs.entry(*site).or_default();
            if *bytes > cost.peak_bytes {
                (cost.peak_bytes, cost.peak_time_ns) = (*bytes, time_ns);
            }
        }
        if self.count.is_multiple_of(self.skip + 1) {
            if self.observations.len() >= MAX_OBSERVATIONS {
                self.skip = self.skip * 2 + 1;
                let mut index = 0usize;
                self.observations.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            let causes = gap.bytes_by_cause().map(|(_, bytes)| bytes);
            self.observations.push(GapObservation {
                time_ns,
                step,
                reserved,
                live: gap.live,
                gap: gap.bytes,
                causes,
            });
        }
        self.count += 1;
    }

    /// Adds to the costs what was pinned at the last observation, from then to `time_ns`.
    fn add_costs_until(&mut self, time_ns: u64) {
        let Some(last_ns) = self.last_ns.replace(time_ns) else {
            self.first_ns = time_ns;
            return;
        };
        let elapsed_ns = time_ns.saturating_sub(last_ns);
        self.end_ns = time_ns;
        for (site, bytes) in &self.pinned {
            let cost = self.costs.entry(*site).or_default();
            cost.byte_ns = cost.byte_ns.saturating_add(u128::from(*bytes) * u128::from(elapsed_ns));
            cost.time_ns = cost.time_ns.saturating_add(elapsed_ns);
        }
    }

    /// Extends the last observation to the end of the run.
    pub(crate) fn finish(&mut self, time_ns: u64) {
        if self.last_ns.is_some() {
            self.add_costs_until(time_ns);
        }
    }

    /// Nanoseconds from the first observation to the end of the run.
    pub(crate) fn span_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.first_ns)
    }

    /// Number of observations, including those that were dropped.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The observations that were kept, oldest first.
    pub(crate) fn observations(&self) -> &[GapObservation] {
        &self.observations
    }

    /// Costs by line, highest integral over time first.
    pub(crate) fn costs(&self) -> Vec<(SiteId, PinnedCost)> {
        let mut costs: Vec<(SiteId, PinnedCost)> =
            self.costs.iter().map(|(site, cost)| (*site, *cost)).collect();
        costs.sort_by_key(|(site, cost)| (std::cmp::Reverse((cost.byte_ns, cost.peak_bytes)), *site));
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragmentation::GapCause;

    fn gap(pinned: &[(u32, u64)]) -> Gap {
        let culprits: Vec<(SiteId, u64)> =
            pinned.iter().map(|(site, bytes)| (SiteId(*site), *bytes)).collect();
        let bytes = culprits.iter().map(|(_, bytes)| bytes).sum();
        Gap { bytes, pinned: GapCause { bytes, culprits, pools: Vec::new() }, ..Gap::default() }
    }

    #[test]
    fn costs_are_pinned_bytes_times_their_duration() {
        let mut history = GapHistory::default();
        history.observe((100, 0), 0, 0, &gap(&[(1, 10), (2, 5)]));
        history.observe((200, 1), 0, 0, &gap(&[(1, 30)]));
        history.observe((250, 1), 0, 0, &gap(&[]));
        history.finish(1100);
        let cost = |byte_ns, time_ns, peak_bytes, peak_time_ns| PinnedCost {
            byte_ns,
            time_ns,
            peak_bytes,
            peak_time_ns,
        };
        assert_eq!(
            history.costs(),
            [(SiteId(1), cost(1000 + 1500, 150, 30, 200)), (SiteId(2), cost(500, 100, 5, 100))]
        );
        assert_eq!(history.span_ns(), 1000);
    }

    #[test]
    fn observations_are_evenly_spaced_and_bounded_by_the_number_of_events() {
        let mut history = GapHistory::default();
        let mut visited = 0;
        for time in 0..10_000u64 {
            if history.may_observe(1000, time * 400) {
                history.observe((time, 0), time, 1000, &Gap::default());
                visited += 1000;
            }
            assert!(visited <= FREE_BLOCKS + time * 400 / EVENTS_PER_BLOCK);
        }
        let observations = history.observations();
        let count = observations.len();
        assert!(count <= MAX_OBSERVATIONS && count > 100, "{count}");
        let distances: Vec<u64> =
            observations.windows(2).map(|pair| pair[1].time_ns - pair[0].time_ns).collect();
        let (shortest, longest) = (distances.iter().skip(20).min(), distances.iter().max());
        assert!(longest <= shortest.map(|shortest| shortest * 3).as_ref(), "{distances:?}");
    }
}
