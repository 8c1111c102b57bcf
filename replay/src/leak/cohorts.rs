//! Cohorts of blocks: how many survive, and how long blocks live.
//!
//! A *cohort* is the blocks that a site allocated in one step. Its *survivors* are those live at
//! the end of the last complete step. The *generations* of a site are the different steps its
//! survivors come from: one per occurrence for a leak, few for a pool, one for a block that is
//! replaced.
//!
//! *Survival* is the estimator of Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958): the share of
//! blocks live at the end of their own step, and 1, 3, 7, ... steps later. Each share counts only
//! blocks observed for that long. It stays up for a leak and falls to zero for any buffer.
//!
//! Which step is the last one is known only at the end. [`LiveSet::survivors`] therefore keeps the
//! blocks freed since the last step end.

use crate::state::live_set::{AGES, BlockOutcomes, LiveSet};
use crate::util::ids::SiteId;

/// Survivors of all sites of a live set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cohorts {
    /// Site and step of allocation of each survivor, sorted.
    sorted: Vec<(SiteId, u32)>,
    steps_ended: u32,
}

/// Survivors and survival of one site's blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cohort {
    /// Blocks live at the last step end.
    pub survivors: u64,
    /// Number of different steps that they come from.
    pub generations: u64,
    /// Age in steps, and the share of blocks that reached it. Ends at the age that no block was
    /// observed for.
    pub survival: Vec<(u32, f64)>,
}

impl Cohorts {
    /// Collects the survivors of a finished live set. O(n log n).
    pub(crate) fn of_survivors(live_set: &LiveSet) -> Self {
        let mut sorted: Vec<(SiteId, u32)> =
            live_set.survivors().map(|(stack, step)| (live_set.site_of(stack), step)).collect();
        sorted.sort_unstable();
        Self { sorted, steps_ended: live_set.steps_ended() }
    }

    fn survivors_of_site(&self, site: SiteId) -> &[(SiteId, u32)] {
        let begin = self.sorted.partition_point(|(other, _)| *other < site);
        let end = self.sorted.partition_point(|(other, _)| *other <= site);
        &self.sorted[begin..end]
    }

    /// Number of different steps that a site's survivors come from.
    pub(crate) fn count_generations(&self, site: SiteId) -> u64 {
        self.survivors_of_site(site).chunk_by(|a, b| a == b).count() as u64
    }

    pub(crate) fn cohort_of_site(&self, site: SiteId, outcomes: &BlockOutcomes) -> Cohort {
        let survivors = self.survivors_of_site(site);
        let last = self.steps_ended.saturating_sub(1);
        let ages: Vec<u32> = survivors.iter().map(|(_, step)| last.saturating_sub(*step)).collect();
        Cohort {
            survivors: survivors.len() as u64,
            generations: self.count_generations(site),
            survival: estimate_survival(outcomes, &ages),
        }
    }
}

/// Kaplan-Meier estimate of survival, by ages that double.
fn estimate_survival(outcomes: &BlockOutcomes, ages_of_survivors: &[u32]) -> Vec<(u32, f64)> {
    if outcomes.allocated == 0 {
        return Vec::new();
    }
    let freed_in_step = outcomes.freed.saturating_sub(outcomes.freed_after_step);
    let mut share = 1.0 - freed_in_step as f64 / outcomes.allocated as f64;
    let mut survival = vec![(0, share)];
    for age in 0..AGES {
        let freed_later: u64 = outcomes.freed_by_age[age..].iter().map(|count| u64::from(*count)).sum();
        let observed = ages_of_survivors.iter().filter(|at| **at >= 1 << age).count() as u64 + freed_later;
        if observed == 0 {
            break;
        }
        share *= 1.0 - f64::from(outcomes.freed_by_age[age]) / observed as f64;
        survival.push(((2 << age) - 1, (share * 1000.0).round() / 1000.0));
    }
    survival
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survival_stays_up_for_a_leak_and_falls_to_zero_for_a_buffer() {
        // Ten blocks, one per step, none freed.
        let leak = BlockOutcomes { allocated: 10, ..BlockOutcomes::default() };
        let ages: Vec<u32> = (0..10).collect();
        assert_eq!(estimate_survival(&leak, &ages), [(0, 1.0), (1, 1.0), (3, 1.0), (7, 1.0), (15, 1.0)]);
        // The last three outputs are kept: each block is freed three steps after its own.
        let buffer =
            BlockOutcomes { allocated: 10, freed: 7, freed_after_step: 7, freed_by_age: [0, 7, 0, 0, 0, 0] };
        assert_eq!(estimate_survival(&buffer, &[0, 1, 2]), [(0, 1.0), (1, 1.0), (3, 0.125)]);
        // Half of the blocks are freed within their step; the others stay.
        let half = BlockOutcomes { allocated: 20, freed: 10, ..BlockOutcomes::default() };
        assert_eq!(estimate_survival(&half, &ages)[..2], [(0, 0.5), (1, 0.5)]);
        assert_eq!(estimate_survival(&BlockOutcomes::default(), &[]), []);
    }

    #[test]
    fn generations_count_different_steps_of_survivors() {
        let (a, b) = (SiteId(1), SiteId(4));
        let sorted = vec![(a, 0), (a, 0), (a, 3), (b, 2)];
        let cohorts = Cohorts { sorted, steps_ended: 4 };
        let outcomes = BlockOutcomes { allocated: 3, ..BlockOutcomes::default() };
        let cohort = cohorts.cohort_of_site(a, &outcomes);
        assert_eq!((cohort.survivors, cohort.generations), (3, 2));
        assert_eq!((cohorts.count_generations(b), cohorts.count_generations(SiteId(2))), (1, 0));
    }
}
