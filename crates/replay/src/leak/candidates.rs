//! Decides which sites of a live set grow, and which have grown for a known, harmless reason.
//!
//! Each site is judged twice, by the rules of [`growth`](crate::leak::growth):
//! 1. Its *settled survivors* ([`crate::leak::survivors`]), by the step that allocated them. If
//!    they grow, blocks stay that nothing frees: a candidate for a leak. The growth must go on for
//!    at least as long as the settled age, so that the oldest block is twice as old as any that was
//!    freed. Growth of too few events is *weak*: it joins a leak of the same line, or is shown as a
//!    possible leak.
//! 2. Its *live bytes* at step ends. If these grow and the survivors do not, each step frees the
//!    blocks and allocates larger or more ones: a longer history, or larger inputs. Such growth
//!    must be certain ([`Growth::is_certain_of_live_bytes`]). A site whose live bytes rose and
//!    settled is benign.
//!
//! The cost is one pass over each site's series. `tests/leaks/accuracy.rs` checks the outcome.

use crate::leak::candidate::{
    BenignCandidate, Candidate, Candidates, GrowingWorkingSet, GrowthAfterWarmUp, LockstepKey,
};
use crate::leak::growth::{Growth, GrowthJudgement, GrowthRule, SettledGrowth, accelerates, judge_series};
use crate::leak::survivors::{SettledSurvivors, StackSurvivors, SurvivorEnds, Survivors};
use crate::state::live_set::{LiveSet, SiteStats};
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};

/// Stacks of a site that are judged alone first; with more, each has a small part of the growth.
const MAX_STACKS_ALONE: usize = 64;
/// Share of blocks that stay among all events of a stretch in which a program sets itself up. A
/// loop with a temporary frees one block for each that stays.
const MIN_STRETCH_SHARE: f64 = 0.9;
/// The most that a block may be larger than requested, and the most blocks whose slack may hide
/// their growth.
const MAX_SLACK_BYTES: u64 = 1 << 20;
const MAX_BLOCKS_WITH_SLACK: u64 = 4;
/// Growth steps from which on weak growth is shown: one event is not yet growth.
const MIN_WEAK_EVENTS: usize = 2;
/// Steps in which parameters, gradients and optimizer state appear. Growth in them does not count
/// towards a site's share of all growth.
const WARM_UP_STEPS: usize = 3;

/// Judges the sites of a live set, by the stacks that `is_judged` accepts. `ends_in_teardown`: the
/// last frees are those of a program that ends, and say nothing about it.
pub(crate) fn find_candidates(
    live_set: &LiveSet,
    ends_in_teardown: bool,
    is_judged: &dyn Fn(StackId) -> bool,
) -> Candidates {
    let survivors = Survivors::of_live_set(live_set, ends_in_teardown);
    let mut found = Candidates::default();
    for (site, entry) in live_set.sites() {
        let all_judged = live_set.stacks_of(site).all(is_judged);
        if entry.series().is_empty() || !live_set.stacks_of(site).any(is_judged) {
            continue;
        }
        let under_test = SiteUnderTest { live_set, survivors: &survivors, site, entry };
        let growing = under_test.judge_survivors(is_judged);
        if growing.is_empty() && all_judged {
            under_test.judge_live_bytes(&mut found);
        }
        found.growing.extend(growing);
    }
    found.growing.sort_by_key(|one| (std::cmp::Reverse(one.leaked.bytes), one.site, one.grown[0].0));
    found.larger.sort_by_key(|one| (std::cmp::Reverse(one.held.bytes), one.site));
    found
}

struct SiteUnderTest<'a> {
    live_set: &'a LiveSet,
    survivors: &'a Survivors,
    site: SiteId,
    entry: &'a SiteStats,
}

impl SiteUnderTest<'_> {
    /// The candidates among the stacks of the site. Stacks that grow on their own and in the same
    /// steps are one candidate: a line that several callers share may leak through two of them.
    /// The other stacks are judged together. So are all if their sum grows in a simpler way than
    /// any part (a block per step, through one stack or another), or at the same rate for longer:
    /// one stack after another, as a program goes through its phases.
    fn judge_survivors(&self, is_judged: &dyn Fn(StackId) -> bool) -> Vec<Candidate> {
        let stacks = self.survivors.stacks_of_site(self.site).iter();
        let stacks: Vec<&StackSurvivors> = stacks.filter(|stack| is_judged(stack.stack)).collect();
        let parts = self.judge_parts(&stacks);
        if parts.is_empty() || stacks.len() < 2 {
            return parts;
        }
        let together = self.judge_stacks(&stacks).filter(|all| !all.is_weak);
        let explains_parts = |all: &Candidate| {
            parts.iter().all(|part| all.extends(part))
                || parts.len() > 1 && parts.iter().all(|part| all.is_simpler_than(part))
        };
        match together.filter(explains_parts) {
            Some(all) => vec![all],
            None => parts,
        }
    }

    fn judge_parts(&self, stacks: &[&StackSurvivors]) -> Vec<Candidate> {
        let mut groups: Vec<(LockstepKey, Vec<&StackSurvivors>)> = Vec::new();
        let mut rest = Vec::new();
        for &stack in stacks {
            let alone =
                (2..=MAX_STACKS_ALONE).contains(&stacks.len()).then(|| self.judge_stacks(&[stack])).flatten();
            match alone.filter(|candidate| !candidate.is_weak).map(|candidate| candidate.lockstep_key()) {
                Some(key) => match groups.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, group)) => group.push(stack),
                    None => groups.push((key, vec![stack])),
                },
                None => rest.push(stack),
            }
        }
        groups
            .iter()
            .map(|(_, group)| group)
            .chain([&rest])
            .filter_map(|group| self.judge_stacks(group))
            .collect()
    }

    /// Judges survivors of `stacks` by ever larger settled ages, until they grow.
    fn judge_stacks(&self, stacks: &[&StackSurvivors]) -> Option<Candidate> {
        let mut ages: Vec<u32> = stacks.iter().filter_map(|stack| stack.settled_age).collect();
        ages.sort_unstable();
        ages.dedup();
        let mut weak = None;
        for age in ages {
            match self.judge_settled(&self.survivors.settled(stacks, age)) {
                Some(candidate) if !candidate.is_weak => return Some(candidate),
                candidate => weak = weak.or(candidate),
            }
        }
        weak
    }

    fn judge_settled(&self, settled: &SettledSurvivors<'_>) -> Option<Candidate> {
        let (stride, before, values) = settled.series();
        let blocks: Vec<u64> = values.iter().map(|held| held.blocks).collect();
        let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
        let (block_growth, byte_growth, is_weak) = match judge_series(&blocks) {
            GrowthJudgement::Grows(growth) => (growth, judge_series(&bytes).growth(), false),
            GrowthJudgement::Settled(weak) if weak.goes_on && weak.growth_steps >= MIN_WEAK_EVENTS => {
                (weak_growth(weak), None, true)
            }
            GrowthJudgement::Settled(_) | GrowthJudgement::Quiet => return None,
        };
        let last = values.last().copied()?;
        let since = if block_growth.first == 0 { 0 } else { block_growth.base };
        let base = if block_growth.first == 0 { BlockTotals::default() } else { values[since] };
        let span = (values.len() - 1).saturating_sub(block_growth.first) as u32 * stride;
        let leaked = BlockTotals {
            bytes: last.bytes.saturating_sub(base.bytes),
            blocks: last.blocks.saturating_sub(base.blocks),
        };
        if leaked.bytes == 0 || span < settled.age {
            return None;
        }
        let settled_at = block_growth.first.max(WARM_UP_STEPS).min(values.len().saturating_sub(2));
        let after_warm_up = GrowthAfterWarmUp {
            step: (settled_at + before) as u32 * stride,
            bytes: last.bytes.saturating_sub(values[settled_at].bytes),
        };
        let last_step = (values.len() + before - 1) as u32 * stride;
        let block_growth = block_growth.shifted_by(before);
        let after = (block_growth.first > 0).then_some(block_growth.base as u32 * stride);
        let freed = self.survivors.freed_of(self.live_set.stacks_of(self.site));
        let outcomes = self.live_set.outcomes(self.entry);
        let of_stacks = settled.stacks.iter().map(|stack| stack.ends_between(after, last_step));
        let ends = of_stacks.fold(SurvivorEnds::NONE, SurvivorEnds::with);
        Some(Candidate {
            site: self.site,
            accelerates: accelerates(&bytes[since..]),
            block_growth,
            byte_growth: byte_growth.map(|growth| growth.shifted_by(before)),
            is_weak,
            stride,
            leaked,
            grown: grown_stacks(settled, after, last_step),
            ends,
            is_one_stretch: self.survivors.share_of_events(ends.serials) >= MIN_STRETCH_SHARE,
            last_step,
            after_warm_up,
            freed_after_step: freed.count_from_class(0),
            counts: self.survivors.count(self.site),
            survival: self.survivors.survival(self.site, &outcomes, &freed),
            outcomes,
            free_site: self.entry.main_free_site(),
        })
    }

    fn judge_live_bytes(&self, found: &mut Candidates) {
        let Self { live_set, site, entry, .. } = *self;
        let (stride, _, values) = entry.series().values_from(live_set.first_step, live_set.steps_ended());
        let blocks: Vec<u64> = values.iter().map(|held| held.blocks).collect();
        let bytes = without_slack(&values);
        let last = values.last().copied().unwrap_or_default();
        let (by_blocks, by_bytes) = (judge_series(&blocks), judge_series(&bytes));
        let main_stack = || {
            let stacks = self.survivors.stacks_of_site(site).iter();
            let main =
                stacks.max_by_key(|one| (one.between(None, u32::MAX).bytes, std::cmp::Reverse(one.stack)));
            main.map(|one| one.stack)
        };
        let benign =
            |rule, held, is_by_size| BenignCandidate { site, rule, held, is_by_size, stack: main_stack() };
        match (by_blocks, by_bytes) {
            // It may go on.
            (by_blocks, GrowthJudgement::Settled(settled))
                if settled.rule == GrowthRule::TooEarly && settled.goes_on =>
            {
                let held = BlockTotals { bytes: settled.rise, blocks: last.blocks };
                let values = (values.len() - 1).saturating_sub(settled.base).max(1);
                let bytes_per_step = settled.rise as f64 / (values as f64 * f64::from(stride));
                let (grows_by, stack) = (by_blocks.grows_by(), main_stack());
                let events = settled.growth_steps;
                found.larger.push(GrowingWorkingSet { site, held, bytes_per_step, grows_by, events, stack });
            }
            (by_blocks, GrowthJudgement::Settled(SettledGrowth { rule, rise, .. })) => {
                let is_by_size =
                    !matches!(by_blocks, GrowthJudgement::Settled(_)) && rule != GrowthRule::WarmUp;
                let held = BlockTotals { bytes: rise, blocks: last.blocks };
                found.benign.push(benign(rule, held, is_by_size));
            }
            // A bounded cache with later entries that happen to be larger.
            (GrowthJudgement::Settled(SettledGrowth { rule, rise, .. }), GrowthJudgement::Grows(_))
                if rule != GrowthRule::WarmUp =>
            {
                found.benign.push(benign(rule, BlockTotals { bytes: last.bytes, blocks: rise }, false));
            }
            (by_blocks, GrowthJudgement::Grows(growth)) => {
                if growth.is_certain_of_live_bytes(values.len()) {
                    let held = BlockTotals { bytes: growth.rise, blocks: last.blocks };
                    let bytes_per_step = growth.per_value / f64::from(stride);
                    let stack = main_stack();
                    let grows_by = by_blocks.grows_by();
                    let events = growth.rising_steps;
                    found.larger.push(GrowingWorkingSet {
                        site,
                        held,
                        bytes_per_step,
                        grows_by,
                        events,
                        stack,
                    });
                }
            }
            (_, GrowthJudgement::Quiet) => {}
        }
    }
}

/// Bytes at step ends, without falls that the slack of blocks explains: PyTorch splits a large
/// block only if more than 1 MiB would remain (`should_split` in `CUDACachingAllocator.cpp`), so
/// equal requests may get blocks that differ by that much.
fn without_slack(values: &[BlockTotals]) -> Vec<u64> {
    let mut held = BlockTotals::default();
    let steady = values.iter().map(|now| {
        let slack = if now.blocks <= MAX_BLOCKS_WITH_SLACK { now.blocks * MAX_SLACK_BYTES } else { 0 };
        let is_large = now.bytes > slack && now.blocks == held.blocks;
        let is_slack = now.bytes <= held.bytes && held.bytes - now.bytes <= slack;
        if !(is_large && is_slack) {
            held = *now;
        }
        held.bytes
    });
    steady.collect()
}

/// The stacks with settled survivors after step `after` up to step `last`, most bytes first.
fn grown_stacks(
    settled: &SettledSurvivors<'_>,
    after: Option<u32>,
    last: u32,
) -> Vec<(StackId, BlockTotals)> {
    let grown = settled.stacks.iter().map(|stack| (stack.stack, stack.between(after, last)));
    let mut grown: Vec<_> = grown.filter(|(_, grown)| grown.bytes > 0).collect();
    grown.sort_by_key(|(stack, grown)| (std::cmp::Reverse(grown.bytes), *stack));
    grown
}

/// Growth of too few events, without a rate.
fn weak_growth(weak: SettledGrowth) -> Growth {
    let SettledGrowth { rise, base, first, growth_steps, .. } = weak;
    Growth { base, rise, first, rising_steps: growth_steps, ..Growth::NONE }
}
