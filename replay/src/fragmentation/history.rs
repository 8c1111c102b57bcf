//! The gap over the whole run, by its causes, and what each line's blocks have cost in memory that nobody could use.
//!
//! Constraint: taking a moment apart looks at every live block, and at every range of driver memory. Consequence: it is done at even distances in time, at most [`MOST`]
//! times, and never so often that more than one of them in 32 events is looked at. Between two looks things are taken to be as at
//! the first; each look by itself is exact.

use super::Gap;
use crate::callsite::symbols::SiteId;
use crate::util::seeded_map::SeededMap;

/// Most looks that are kept; then every other is given up.
pub(crate) const MOST: usize = 256;
/// Blocks and ranges that may be looked at whatever the number of events.
const FREE_BLOCKS: u64 = 1 << 14;
/// Events for each that is looked at.
const EVENTS_A_BLOCK: u64 = 32;

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GapObservation {
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
    /// Held by PyTorch.
    pub reserved: u64,
    /// In tensors.
    pub live: u64,
    /// The gap.
    pub gap: u64,
    /// Its causes, in the order of [`super::CAUSES`]; they sum to it.
    pub causes: [u64; 7],
}

/// What the blocks of a line have kept from use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinnedCost {
    /// Bytes times nanoseconds.
    pub byte_ns: u128,
    /// How long any.
    pub time_ns: u64,
    /// Most at a look.
    pub most: u64,
    /// When that was first.
    pub most_at_ns: u64,
}

/// Of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct GapHistory {
    looks: Vec<GapObservation>,
    /// Only every so many looks are kept, less 1.
    skip: u64,
    taken: u64,
    blocks_seen: u64,
    costs: SeededMap<SiteId, PinnedCost>,
    /// Who keeps what, since when.
    held: Vec<(SiteId, u64)>,
    since_ns: Option<u64>,
    first_ns: u64,
    end_ns: u64,
}

impl GapHistory {
    /// True if a look at so many blocks is in proportion to the events so far.
    pub(crate) fn may_look(&self, blocks: u64, events: u64) -> bool {
        self.blocks_seen.saturating_add(blocks) <= FREE_BLOCKS.saturating_add(events / EVENTS_A_BLOCK)
    }

    /// Takes a look.
    pub(crate) fn look(&mut self, (time_ns, step): (u64, u32), reserved: u64, blocks: u64, gap: &Gap) {
        self.pass_until(time_ns);
        self.blocks_seen = self.blocks_seen.saturating_add(blocks);
        self.held.clear();
        self.held.extend(gap.kept());
        // A line may keep some of several causes.
        self.held.sort_unstable();
        self.held.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            first.1 = first.1.saturating_add(if is_same { next.1 } else { 0 });
            is_same
        });
        for (site, bytes) in &self.held {
            let cost = self.costs.entry(*site).or_default();
            if *bytes > cost.most {
                (cost.most, cost.most_at_ns) = (*bytes, time_ns);
            }
        }
        if self.taken.is_multiple_of(self.skip + 1) {
            if self.looks.len() >= MOST {
                self.skip = self.skip * 2 + 1;
                let mut index = 0usize;
                self.looks.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            let causes = gap.parts().map(|(_, bytes)| bytes);
            self.looks.push(GapObservation {
                time_ns,
                step,
                reserved,
                live: gap.live,
                gap: gap.bytes,
                causes,
            });
        }
        self.taken += 1;
    }

    /// What was held at the last look was held until now.
    fn pass_until(&mut self, time_ns: u64) {
        let Some(since) = self.since_ns.replace(time_ns) else {
            self.first_ns = time_ns;
            return;
        };
        let span = time_ns.saturating_sub(since);
        self.end_ns = time_ns;
        for (site, bytes) in &self.held {
            let cost = self.costs.entry(*site).or_default();
            cost.byte_ns = cost.byte_ns.saturating_add(u128::from(*bytes) * u128::from(span));
            cost.time_ns = cost.time_ns.saturating_add(span);
        }
    }

    /// Ends the reading.
    pub(crate) fn finish(&mut self, time_ns: u64) {
        if self.since_ns.is_some() {
            self.pass_until(time_ns);
        }
    }

    /// From the first look to the end.
    pub(crate) fn span_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.first_ns)
    }

    /// How many looks there were.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Those that are kept.
    pub(crate) fn looks(&self) -> &[GapObservation] {
        &self.looks
    }

    /// What each line has cost, most first.
    pub(crate) fn costs(&self) -> Vec<(SiteId, PinnedCost)> {
        let mut costs: Vec<(SiteId, PinnedCost)> =
            self.costs.iter().map(|(site, cost)| (*site, *cost)).collect();
        costs.sort_by_key(|(site, cost)| (std::cmp::Reverse((cost.byte_ns, cost.most)), *site));
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragmentation::GapCause;

    fn gap(kept: &[(u32, u64)]) -> Gap {
        let culprits: Vec<(SiteId, u64)> = kept.iter().map(|(site, bytes)| (SiteId(*site), *bytes)).collect();
        let bytes = culprits.iter().map(|(_, bytes)| bytes).sum();
        Gap { bytes, pinned: GapCause { bytes, culprits }, ..Gap::default() }
    }

    #[test]
    fn a_line_pays_for_what_its_blocks_keep_for_as_long_as_they_do() {
        let mut course = GapHistory::default();
        course.look((100, 0), 0, 0, &gap(&[(1, 10), (2, 5)]));
        course.look((200, 1), 0, 0, &gap(&[(1, 30)]));
        course.look((250, 1), 0, 0, &gap(&[]));
        course.finish(1100);
        let cost = |byte_ns, time_ns, most, most_at_ns| PinnedCost { byte_ns, time_ns, most, most_at_ns };
        assert_eq!(
            course.costs(),
            [(SiteId(1), cost(1000 + 1500, 150, 30, 200)), (SiteId(2), cost(500, 100, 5, 100))]
        );
        assert_eq!(course.span_ns(), 1000);
    }

    #[test]
    fn of_many_looks_even_ones_are_kept_and_no_more_blocks_are_seen_than_events_allow() {
        let mut course = GapHistory::default();
        let mut seen = 0;
        for time in 0..10_000u64 {
            if course.may_look(1000, time * 400) {
                course.look((time, 0), time, 1000, &Gap::default());
                seen += 1000;
            }
            assert!(seen <= FREE_BLOCKS + time * 400 / EVENTS_A_BLOCK);
        }
        assert!(course.looks().len() <= MOST && course.looks().len() > 100, "{}", course.looks().len());
        let gaps: Vec<u64> =
            course.looks().windows(2).map(|pair| pair[1].time_ns - pair[0].time_ns).collect();
        let (least, most) = (gaps.iter().skip(20).min(), gaps.iter().max());
        assert!(most <= least.map(|least| least * 3).as_ref(), "{gaps:?}");
    }
}
