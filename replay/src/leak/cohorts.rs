//! What is left of the blocks of each step: generations, and how long blocks live.
//!
//! The blocks that a site allocated in one step are a *cohort*. *Survivors* are its blocks that were live at the end of the
//! last complete step, *generations* the different steps that they come from: a leak has one for each time, a pool few, a
//! block that is replaced one. *Survival* (Kaplan and Meier 1958) is the share of blocks still live at the end of their own
//! step, and 1, 3, 7, ... steps later, of those that were watched so long: it stays up for a leak and falls to zero for a
//! buffer, however long.
//!
//! Constraint: nobody knows which step is the last. Consequence: the book keeps what went since the last step end, so that
//! who was live then is known in the end.

use crate::callsite::symbols::SiteId;
use crate::state::live_set::{AGES, BlockOutcomes, LiveSet};

/// Survivors of all sites of a book, with the steps that they come from; in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cohorts {
    sorted: Vec<(SiteId, u32)>,
    /// Steps ended.
    steps: u32,
}

/// What is left of a site's blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cohort {
    /// Blocks live at the last step end.
    pub survivors: u64,
    /// Different steps that they come from.
    pub generations: u64,
    /// Steps after its own, and the share of blocks live at that step's end. As far as blocks were watched.
    pub survival: Vec<(u32, f64)>,
}

impl Cohorts {
    /// Of a book that is finished.
    pub(crate) fn of(live_set: &LiveSet) -> Self {
        let mut sorted: Vec<(SiteId, u32)> =
            live_set.survivors().map(|(stack, step)| (live_set.site_of(stack), step)).collect();
        sorted.sort_unstable();
        Self { sorted, steps: live_set.steps_ended() }
    }

    fn steps_of(&self, site: SiteId) -> &[(SiteId, u32)] {
        let begin = self.sorted.partition_point(|(other, _)| *other < site);
        let end = self.sorted.partition_point(|(other, _)| *other <= site);
        &self.sorted[begin..end]
    }

    /// Different steps that a site's survivors come from.
    pub(crate) fn generations(&self, site: SiteId) -> u64 {
        self.steps_of(site).chunk_by(|a, b| a == b).count() as u64
    }

    /// All that is known of a site's cohorts.
    pub(crate) fn of_site(&self, site: SiteId, outcomes: &BlockOutcomes) -> Cohort {
        let steps = self.steps_of(site);
        let last = self.steps.saturating_sub(1);
        let ages: Vec<u32> = steps.iter().map(|(_, step)| last.saturating_sub(*step)).collect();
        Cohort {
            survivors: steps.len() as u64,
            generations: self.generations(site),
            survival: survival(outcomes, &ages),
        }
    }
}

fn survival(outcomes: &BlockOutcomes, ages_of_survivors: &[u32]) -> Vec<(u32, f64)> {
    if outcomes.allocated == 0 {
        return Vec::new();
    }
    let freed_at_once = outcomes.freed.saturating_sub(outcomes.freed_after_step);
    let mut share = 1.0 - freed_at_once as f64 / outcomes.allocated as f64;
    let mut survival = vec![(0, share)];
    for age in 0..AGES {
        let later: u64 = outcomes.freed_by_age[age..].iter().map(|count| u64::from(*count)).sum();
        let watched = ages_of_survivors.iter().filter(|at| **at >= 1 << age).count() as u64 + later;
        if watched == 0 {
            break;
        }
        share *= 1.0 - f64::from(outcomes.freed_by_age[age]) / watched as f64;
        survival.push(((2 << age) - 1, (share * 1000.0).round() / 1000.0));
    }
    survival
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_stays_and_a_buffer_goes() {
        // Ten blocks, one a step, none freed.
        let leak = BlockOutcomes { allocated: 10, ..BlockOutcomes::default() };
        let ages: Vec<u32> = (0..10).collect();
        assert_eq!(survival(&leak, &ages), [(0, 1.0), (1, 1.0), (3, 1.0), (7, 1.0), (15, 1.0)]);
        // The last three outputs are kept: each dies three steps after its own.
        let buffer =
            BlockOutcomes { allocated: 10, freed: 7, freed_after_step: 7, freed_by_age: [0, 7, 0, 0, 0, 0] };
        assert_eq!(survival(&buffer, &[0, 1, 2]), [(0, 1.0), (1, 1.0), (3, 0.125)]);
        // Half of the blocks are freed within their step; the others stay.
        let half = BlockOutcomes { allocated: 20, freed: 10, ..BlockOutcomes::default() };
        assert_eq!(survival(&half, &ages)[..2], [(0, 0.5), (1, 0.5)]);
        assert_eq!(survival(&BlockOutcomes::default(), &[]), []);
    }

    #[test]
    fn generations_are_the_steps_that_survivors_come_from() {
        let (a, b) = (SiteId(1), SiteId(4));
        let sorted = vec![(a, 0), (a, 0), (a, 3), (b, 2)];
        let cohorts = Cohorts { sorted, steps: 4 };
        let outcomes = BlockOutcomes { allocated: 3, ..BlockOutcomes::default() };
        let cohort = cohorts.of_site(a, &outcomes);
        assert_eq!((cohort.survivors, cohort.generations), (3, 2));
        assert_eq!((cohorts.generations(b), cohorts.generations(SiteId(2))), (1, 0));
    }
}
