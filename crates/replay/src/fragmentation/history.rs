//! Follows the gap over the run: its causes, and the memory that each line's blocks pinned over
//! time.
//!
//! Each observation is exact; between two of them, the state of the first is assumed.
//! [`crate::fragmentation::gap_schedule`] decides when to observe, and which observations are kept.
//! The tests below check each line's bytes over time.

use super::Gap;
use crate::util::ids::SiteId;
use crate::util::seeded_map::SeededMap;

/// The gap at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GapObservation {
    /// Number of the event before it, from the begin of the schedule.
    pub event: u64,
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
    count: u64,
    /// Distance of the observations in events.
    stride: u64,
    is_limited: bool,
    costs: SeededMap<SiteId, PinnedCost>,
    /// Bytes pinned by each line as of the last observation.
    pinned: Vec<(SiteId, u64)>,
    /// Time of the last observation.
    last_ns: Option<u64>,
    first_ns: u64,
    end_ns: u64,
}

impl GapHistory {
    /// Sets the distance of observations in events, and whether live blocks limit their number.
    /// Drops those at other numbers.
    pub(crate) fn set_stride(&mut self, stride: u64, is_limited: bool) {
        self.is_limited = is_limited;
        if stride != self.stride {
            self.stride = stride;
            self.observations.retain(|one| one.event.is_multiple_of(stride));
        }
    }

    /// Adds the gap of one moment, after `event` events.
    pub(crate) fn observe(&mut self, event: u64, (time_ns, step): (u64, u32), reserved: u64, gap: &Gap) {
        self.add_costs_until(time_ns);
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
        let causes = gap.bytes_by_cause().map(|(_, bytes)| bytes);
        let (live, gap) = (gap.live, gap.bytes);
        self.observations.push(GapObservation { event, time_ns, step, reserved, live, gap, causes });
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

    /// Distance of the kept observations in events; 0 without any.
    pub(crate) fn stride(&self) -> u64 {
        self.stride
    }

    /// The number of live blocks made the distance larger.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
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
        history.observe(0, (100, 0), 0, &gap(&[(1, 10), (2, 5)]));
        history.observe(0, (200, 1), 0, &gap(&[(1, 30)]));
        history.observe(0, (250, 1), 0, &gap(&[]));
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
    fn observations_between_larger_distances_are_dropped_and_their_costs_are_kept() {
        let mut history = GapHistory::default();
        history.set_stride(10, false);
        for event in [10, 20, 30] {
            history.observe(event, (event * 100, 0), 0, &gap(&[(1, 7)]));
        }
        history.set_stride(20, true);
        history.finish(4000);
        assert_eq!(history.observations().iter().map(|one| one.event).collect::<Vec<_>>(), [20]);
        assert_eq!((history.count(), history.stride(), history.is_limited()), (3, 20, true));
        assert_eq!(history.costs()[0].1.byte_ns, 7 * 3000);
    }
}
