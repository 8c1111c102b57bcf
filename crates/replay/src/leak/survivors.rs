//! Survivors: the blocks live at the last step end, by stack and by the step they come from.
//!
//! A leak leaves blocks behind that no later step frees. Every other use of memory frees its
//! blocks, sooner or later, and the ages at which it does so tell how long a block of a stack may
//! live without being a leak. Blocks younger than that are undecided.
//! * *Settled age* of a stack: the smallest age from which on blocks are no longer freed. The
//!   blocks freed at that age or later are at most [`MAX_FREED_SHARE`] of the survivors of that
//!   age, and chance does not explain that they are so few: were blocks freed at the same rate at
//!   every age, the probability would be at most [`MAX_CHANCE`] (Chernoff's bound of the binomial
//!   distribution). 0 if hardly any block that outlived its step was freed. Ages double from class
//!   to class.
//! * *Settled survivors*: those of the settled age or older.
//!
//! A queue of depth 50 frees blocks at age 50: its survivors are all younger, so none is settled.
//! A leak beside short-lived blocks of the same stack has settled survivors from many steps. The
//! members of a pool that are replaced at random have none, however old one of them may be.
//! Survivors of the warm-up (parameters) do not count.
//!
//! *Survival* is the estimator of Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958): the share of
//! blocks live at the end of their own step, and 1, 3, 7, ... steps later. Each share counts only
//! blocks observed for that long.
//!
//! Collecting survivors is O(n log n) once at the end of the trace. The tests below check each
//! definition.

use crate::leak::growth::warm_up_values;
use crate::state::live_set::{AGES, BlockOutcomes, FreedByAge, LiveBlock, LiveSet};
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::{SiteId, StackId};

/// Blocks freed at the settled age or later, as a share of the survivors of that age. A pool that
/// replaces its members at random frees far more.
const MAX_FREED_SHARE: f64 = 0.05;
/// Probability that a stack whose blocks are freed at the same rate at every age seems settled.
const MAX_CHANCE: f64 = 0.01;
/// Most values of a site's series.
const MAX_VALUES: u32 = 16_384;

/// The survivors of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Births {
    pub(crate) step: u32,
    pub(crate) totals: BlockTotals,
    pub(crate) ends: SurvivorEnds,
}

/// How survivors ended, and when they were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SurvivorEnds {
    /// Bytes that were freed again while the program went on.
    pub(crate) released_bytes: u64,
    /// The events of the live set that allocated the first and the last of them.
    pub(crate) serials: [u64; 2],
}

impl SurvivorEnds {
    /// The sum over no survivors: the serials span nothing.
    pub(crate) const NONE: Self = Self { released_bytes: 0, serials: [u64::MAX, 0] };

    fn with_block(self, block: &LiveBlock, is_released: bool) -> Self {
        let released_bytes = if is_released { block.bytes } else { 0 };
        self.with(Self { released_bytes, serials: [block.serial; 2] })
    }

    /// The sum of the bytes, and the span of the serials, of both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            released_bytes: self.released_bytes.saturating_add(other.released_bytes),
            serials: [self.serials[0].min(other.serials[0]), self.serials[1].max(other.serials[1])],
        }
    }
}

/// The survivors of one stack.
#[derive(Clone, Debug)]
pub(crate) struct StackSurvivors {
    pub(crate) stack: StackId,
    site: SiteId,
    /// Survivors of each step, by ascending step.
    births: Vec<Births>,
    /// `None` if no survivor is settled.
    pub(crate) settled_age: Option<u32>,
}

impl StackSurvivors {
    /// The survivors allocated after step `after` (`None`: all) and up to step `last`.
    pub(crate) fn between(&self, after: Option<u32>, last: u32) -> BlockTotals {
        let included = self.births.iter().filter(|one| after.is_none_or(|after| one.step > after));
        sum_births(included.filter(|one| one.step <= last))
    }

    /// How the survivors of these steps ended.
    pub(crate) fn ends_between(&self, after: Option<u32>, last: u32) -> SurvivorEnds {
        let included = self.births.iter().filter(|one| after.is_none_or(|after| one.step > after));
        let included = included.filter(|one| one.step <= last);
        included.fold(SurvivorEnds::NONE, |sum, one| sum.with(one.ends))
    }
}

fn sum_births<'a>(births: impl Iterator<Item = &'a Births>) -> BlockTotals {
    births.fold(BlockTotals::default(), |sum, one| BlockTotals {
        bytes: sum.bytes.saturating_add(one.totals.bytes),
        blocks: sum.blocks + one.totals.blocks,
    })
}

/// The survivors of all stacks of a live set.
#[derive(Debug, Default)]
pub(crate) struct Survivors {
    /// By site, then stack.
    stacks: Vec<StackSurvivors>,
    freed_by_age: Vec<FreedByAge>,
    /// The events that allocated them, ascending.
    serials: Vec<u64>,
    first_step: u32,
    steps_ended: u32,
}

impl Survivors {
    /// Collects the survivors of a finished live set.
    pub(crate) fn of_live_set(live_set: &LiveSet, ends_in_teardown: bool) -> Self {
        let site = |block: &LiveBlock| live_set.site_of(block.stack);
        let mut blocks: Vec<(SiteId, &LiveBlock, bool)> = live_set
            .survivors(ends_in_teardown)
            .map(|(block, is_released)| (site(block), block, is_released))
            .collect();
        blocks.sort_unstable_by_key(|(site, block, _)| (*site, block.stack, block.step, block.serial));
        let mut serials: Vec<u64> = blocks.iter().map(|(_, block, _)| block.serial).collect();
        serials.sort_unstable();
        let freed_by_age = live_set.freed_by_age();
        let steps_ended = live_set.steps_ended();
        let mut survivors =
            Self { freed_by_age, first_step: live_set.first_step, steps_ended, serials, ..Self::default() };
        let warm_up =
            live_set.first_step + warm_up_values((steps_ended - live_set.first_step) as usize) as u32;
        for of_stack in blocks.chunk_by(|a, b| (a.0, a.1.stack) == (b.0, b.1.stack)) {
            let (site, LiveBlock { stack, .. }, _) = of_stack[0];
            let stack = *stack;
            let of_steps = of_stack.chunk_by(|a, b| a.1.step == b.1.step);
            let births: Vec<Births> = of_steps
                .map(|of_step| {
                    let bytes = saturating_sum(of_step.iter().map(|(_, block, _)| block.bytes));
                    let totals = BlockTotals { bytes, blocks: of_step.len() as u64 };
                    let of_blocks = of_step.iter();
                    let ends = of_blocks.fold(SurvivorEnds::NONE, |ends, (_, block, is_released)| {
                        ends.with_block(block, *is_released)
                    });
                    Births { step: of_step[0].1.step, totals, ends }
                })
                .collect();
            let freed = &survivors.freed_by_age[stack.0 as usize];
            let settled_age = find_settled_age(&births, freed, (warm_up, steps_ended));
            survivors.stacks.push(StackSurvivors { stack, site, births, settled_age });
        }
        survivors
    }

    /// The stacks with survivors of a site.
    pub(crate) fn stacks_of_site(&self, site: SiteId) -> &[StackSurvivors] {
        let begin = self.stacks.partition_point(|stack| stack.site < site);
        let end = self.stacks.partition_point(|stack| stack.site <= site);
        &self.stacks[begin..end]
    }

    /// The share of survivors among the events from `first` to `last`; 1 if the program only
    /// allocated there, and kept all of it.
    pub(crate) fn share_of_events(&self, [first, last]: [u64; 2]) -> f64 {
        let count = |below: u64| self.serials.partition_point(|serial| *serial < below);
        let survivors = count(last.saturating_add(1)) - count(first);
        survivors as f64 / (last.saturating_sub(first) + 1) as f64
    }

    /// The survivors of `stacks` that are at least `age` steps old, without stacks that settle at a
    /// higher age.
    pub(crate) fn settled<'a>(&self, stacks: &[&'a StackSurvivors], age: u32) -> SettledSurvivors<'a> {
        let is_settled = |stack: &&StackSurvivors| stack.settled_age.is_some_and(|settled| settled <= age);
        SettledSurvivors {
            stacks: stacks.iter().copied().filter(is_settled).collect(),
            age,
            first_step: self.first_step,
            end: self.steps_ended.saturating_sub(age),
        }
    }

    /// Number of survivors of a site, and of the steps that they come from.
    pub(crate) fn count(&self, site: SiteId) -> SurvivorCounts {
        let stacks = self.stacks_of_site(site);
        let mut steps: Vec<u32> = stacks.iter().flat_map(|stack| &stack.births).map(|one| one.step).collect();
        steps.sort_unstable();
        steps.dedup();
        SurvivorCounts {
            survivors: stacks.iter().flat_map(|stack| &stack.births).map(|one| one.totals.blocks).sum(),
            generations: steps.len() as u64,
        }
    }

    /// The frees of all `stacks` of a site, by age.
    pub(crate) fn freed_of(&self, stacks: impl Iterator<Item = StackId>) -> FreedByAge {
        let mut sum = FreedByAge::default();
        stacks.filter_map(|stack| self.freed_by_age.get(stack.0 as usize)).for_each(|freed| sum.add(freed));
        sum
    }

    /// Kaplan-Meier estimate of survival for a site: ages in steps, and the share reaching them.
    pub(crate) fn survival(
        &self,
        site: SiteId,
        outcomes: &BlockOutcomes,
        freed: &FreedByAge,
    ) -> Vec<(u32, f64)> {
        let last = self.steps_ended.saturating_sub(1);
        let births = self.stacks_of_site(site).iter().flat_map(|stack| &stack.births);
        let ages: Vec<(u32, u64)> =
            births.map(|one| (last.saturating_sub(one.step), one.totals.blocks)).collect();
        estimate_survival(outcomes, freed, &ages)
    }
}

/// Number of survivors, and of the steps that they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SurvivorCounts {
    pub(crate) survivors: u64,
    pub(crate) generations: u64,
}

/// The settled survivors of one site.
#[derive(Debug)]
pub(crate) struct SettledSurvivors<'a> {
    pub(crate) stacks: Vec<&'a StackSurvivors>,
    /// Survivors younger than that are not included.
    pub(crate) age: u32,
    first_step: u32,
    /// The first step whose survivors are not included.
    end: u32,
}

impl SettledSurvivors<'_> {
    /// How many blocks and bytes allocated up to each step are survivors: the distance of two
    /// values in steps, the number of values before the first step of the scope, and the values.
    pub(crate) fn series(&self) -> (u32, usize, Vec<BlockTotals>) {
        let mut stride = 1;
        while self.end / stride > MAX_VALUES {
            stride *= 2;
        }
        let before = self.first_step.div_ceil(stride) as usize;
        let count = (self.end.div_ceil(stride) as usize).saturating_sub(before);
        let mut values = vec![BlockTotals::default(); count];
        let births = self.stacks.iter().flat_map(|stack| &stack.births).filter(|one| one.step < self.end);
        for one in births {
            let index = (one.step.div_ceil(stride) as usize).saturating_sub(before);
            if let Some(value) = values.get_mut(index) {
                value.bytes = value.bytes.saturating_add(one.totals.bytes);
                value.blocks += one.totals.blocks;
            }
        }
        let mut sum = BlockTotals::default();
        for value in &mut values {
            sum.bytes = sum.bytes.saturating_add(value.bytes);
            sum.blocks += value.blocks;
            *value = sum;
        }
        (stride, before, values)
    }
}

/// The settled age of a stack; `None` if no survivor has reached it. `warm_up`: the first step
/// after the warm-up.
fn find_settled_age(
    births: &[Births],
    freed: &FreedByAge,
    (warm_up, steps_ended): (u32, u32),
) -> Option<u32> {
    let judged = || births.iter().filter(|one| one.step >= warm_up);
    let age = |one: &Births| (steps_ended - 1).saturating_sub(one.step);
    let reached =
        |least: u32| judged().filter(|one| age(one) >= least).map(|one| one.totals.blocks).sum::<u64>();
    let is_few = |freed: u64, survivors: u64| freed as f64 <= MAX_FREED_SHARE * survivors as f64;
    let all_freed = freed.count_from_class(0);
    if is_few(all_freed, reached(0)) {
        return (!births.is_empty()).then_some(0);
    }
    (1..AGES).find_map(|class| {
        let least = 1u32 << class;
        let (freed_later, survivors) = (freed.count_from_class(class), reached(least));
        let is_settled = survivors > 0 && is_few(freed_later, survivors) && {
            // Step ends that blocks passed, before this age and from it on.
            let of_survivors = judged().map(|one| (age(one), one.totals.blocks));
            let of_freed = (0..AGES).map(|class| (FreedByAge::typical_age(class), u64::from(freed.0[class])));
            let (mut before, mut after) = (0.0, 0.0);
            for (age, blocks) in of_survivors.chain(of_freed) {
                let early = age.min(least - 1);
                before += f64::from(early) * blocks as f64;
                after += f64::from(age - early) * blocks as f64;
            }
            chance_of_so_few(freed_later, all_freed, after / (before + after)) <= MAX_CHANCE
        };
        is_settled.then_some(least)
    })
}

/// An upper bound for the probability that at most `few` of `all` events fall into a part with this
/// `share` of the whole.
fn chance_of_so_few(few: u64, all: u64, share: f64) -> f64 {
    let found = few as f64 / all.max(1) as f64;
    if found >= share {
        return 1.0;
    }
    let term = |found: f64, share: f64| if found > 0.0 { found * (found / share).ln() } else { 0.0 };
    (-(all as f64) * (term(found, share) + term(1.0 - found, 1.0 - share))).exp()
}

/// Kaplan-Meier estimate of survival, by ages that double. `survivors`: age in steps and count.
fn estimate_survival(
    outcomes: &BlockOutcomes,
    freed: &FreedByAge,
    survivors: &[(u32, u64)],
) -> Vec<(u32, f64)> {
    if outcomes.allocated == 0 {
        return Vec::new();
    }
    let freed_in_step = outcomes.freed.saturating_sub(freed.count_from_class(0));
    let mut share = 1.0 - freed_in_step as f64 / outcomes.allocated as f64;
    let mut survival = vec![(0, share)];
    for class in 0..AGES {
        let reached = survivors.iter().filter(|(age, _)| *age >= 1 << class).map(|(_, count)| count);
        let observed = reached.sum::<u64>() + freed.count_from_class(class);
        if observed == 0 {
            break;
        }
        share *= 1.0 - f64::from(freed.0[class]) / observed as f64;
        survival.push(((2 << class) - 1, (share * 1000.0).round() / 1000.0));
    }
    survival
}

#[cfg(test)]
mod tests {
    use super::*;

    fn births(steps: impl Iterator<Item = u32>) -> Vec<Births> {
        let totals = BlockTotals { bytes: 512, blocks: 1 };
        steps.map(|step| Births { step, totals, ends: SurvivorEnds::NONE }).collect()
    }

    fn freed_at(ages: &[(u32, u32)]) -> FreedByAge {
        let mut freed = FreedByAge::default();
        for (age, count) in ages {
            (0..*count).for_each(|_| freed.count(*age));
        }
        freed
    }

    #[test]
    fn queue_has_no_settled_survivor() {
        // 200 steps, depth 50: the survivors come from the last 50 steps.
        assert_eq!(find_settled_age(&births(150..200), &freed_at(&[(50, 150)]), (3, 200)), None);
    }

    #[test]
    fn leak_beside_short_lived_blocks_is_settled_above_their_age() {
        let freed = freed_at(&[(1, 150), (3, 40)]);
        assert_eq!(find_settled_age(&births(0..200), &freed, (3, 200)), Some(4));
        assert_eq!(find_settled_age(&births(0..200), &FreedByAge::default(), (3, 200)), Some(0));
    }

    #[test]
    fn pool_with_random_replacement_has_at_most_its_oldest_member_settled() {
        // Eight members; 500 were replaced at ages up to 90. One has lived longer than all others.
        let freed = freed_at(&[(1, 60), (5, 100), (20, 200), (60, 120), (90, 20)]);
        let members = births([100, 420, 460, 470, 480, 490, 495, 499].into_iter());
        assert_eq!(find_settled_age(&members, &freed, (3, 500)), Some(128));
        // Two were replaced early, and six are old: chance in a short run.
        assert_eq!(find_settled_age(&births(3..9), &freed_at(&[(1, 2)]), (1, 12)), None);
    }

    #[test]
    fn parameters_do_not_hide_that_later_blocks_are_freed() {
        let mut blocks = births(std::iter::repeat_n(0, 5000));
        blocks.extend(births(190..200));
        let freed = freed_at(&[(10, 180)]);
        assert_eq!(find_settled_age(&blocks, &freed, (3, 200)), None);
    }

    #[test]
    fn series_counts_survivors_up_to_each_step() {
        let stack = StackSurvivors {
            stack: StackId(0),
            site: SiteId(0),
            births: births([0, 0, 2, 5, 9].into_iter()),
            settled_age: Some(2),
        };
        let settled = SettledSurvivors { stacks: vec![&stack], age: 2, first_step: 0, end: 8 };
        let (stride, before, values) = settled.series();
        let blocks: Vec<u64> = values.iter().map(|value| value.blocks).collect();
        assert_eq!((stride, before, blocks), (1, 0, vec![2, 2, 3, 3, 3, 4, 4, 4]));
        assert_eq!(stack.between(Some(0), 5), BlockTotals { bytes: 1024, blocks: 2 });
        assert_eq!(stack.between(None, 1), BlockTotals { bytes: 1024, blocks: 2 });
    }

    #[test]
    fn survival_stays_up_for_a_leak_and_falls_to_zero_for_a_buffer() {
        // Ten blocks, one per step, none freed.
        let leak = BlockOutcomes { allocated: 10, ..BlockOutcomes::default() };
        let ages: Vec<(u32, u64)> = (0..10).map(|age| (age, 1)).collect();
        let none = FreedByAge::default();
        assert_eq!(
            estimate_survival(&leak, &none, &ages),
            [(0, 1.0), (1, 1.0), (3, 1.0), (7, 1.0), (15, 1.0)]
        );
        // The last three outputs are kept: each block is freed three steps after its own.
        let buffer = BlockOutcomes { allocated: 10, freed: 7 };
        let freed = freed_at(&[(3, 7)]);
        assert_eq!(
            estimate_survival(&buffer, &freed, &[(0, 1), (1, 1), (2, 1)]),
            [(0, 1.0), (1, 1.0), (3, 0.125)]
        );
        // Half of the blocks are freed within their step; the others stay.
        let half = BlockOutcomes { allocated: 20, freed: 10 };
        assert_eq!(estimate_survival(&half, &none, &ages)[..2], [(0, 0.5), (1, 0.5)]);
        assert_eq!(estimate_survival(&BlockOutcomes::default(), &none, &[]), []);
    }
}
