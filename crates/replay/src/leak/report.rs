//! From candidates to the leaks of the report.

use std::collections::BTreeMap;

use crate::callsite::call_context::CallContext;
use crate::callsite::module_calls::FewerCalls;
use crate::callsite::module_owner::owning_module;
use crate::leak::candidate::{Candidate, GrowingWorkingSet, GrowthAfterWarmUp};
use crate::leak::growth::{Growth, GrowthRule};
use crate::leak::merge::Finding;
use crate::leak::oom_forecast::Headroom;
use crate::leak::rate::GrowthRate;
use crate::pass::Analysis;
use crate::report::{
    AmountUnit, FreedSiblings, GrowingSite, GrowsBy, GrowthClass, Holder, HolderCoverage, Leak, LeakEvidence,
    LeakKind, LeakShape, Quantity, Site, StepSource, Survival,
};
use crate::state::holder_scans::HolderScans;
use crate::state::live_set::LiveSet;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::SeededSet;

/// The library with PyTorch's cache of pinned memory: `libtorch_cuda.so`, or `libtorch.so` in
/// builds with one library.
const HOST_CACHE: &str = "libtorch";
/// Most members of one leak.
const MAX_MEMBERS: usize = 100;
/// Highest confidence in growth with a period. A buffer that is still filling for the first time
/// grows like that, too: docs/accuracy.md has the share of true leaks among findings.
const MAX_REGULAR_CONFIDENCE: f64 = 0.97;
/// Highest confidence in growth without a period, as a cache fills.
const MAX_IRREGULAR_CONFIDENCE: f64 = 0.88;

/// Builds the leaks of one live set.
#[derive(Clone, Copy)]
pub(super) struct LeakReporter<'a> {
    pub(super) trace: usize,
    pub(super) analysis: &'a Analysis,
    pub(super) ordinal: u8,
    pub(super) live_set: &'a LiveSet,
    pub(super) kind: LeakKind,
    pub(super) room: Option<Headroom>,
    /// Only some call sites of the live set are judged.
    pub(super) is_in_part: bool,
}

/// The facts of a leak, whether blocks or reserved memory grow.
pub(super) struct LeakFacts<'a> {
    pub(super) site: Site,
    pub(super) held: BlockTotals,
    pub(super) growth: &'a Growth,
    pub(super) stride: u32,
    pub(super) first_step: u64,
    /// The last step that was judged.
    pub(super) last_step: u32,
    pub(super) blocks_per_step: f64,
    /// Expected, least and most.
    pub(super) bytes_per_step: GrowthRate,
    /// Growth from the end of this step on.
    pub(super) after_warm_up: GrowthAfterWarmUp,
    /// The series of all memory of this kind.
    pub(super) total: &'a StepSeries,
}

impl LeakReporter<'_> {
    pub(super) fn has_steps(&self) -> bool {
        self.analysis.step_rule.source().is_some()
    }

    /// Why the growth of a candidate is harmless, if the whole run shows it. Without steps, a run
    /// is divided by its allocations, and one phase of a program may look like many steps. The
    /// history of a snapshot ends in the middle of a program, so its last moment counts.
    pub(super) fn harmless_rule(&self, candidate: &Candidate) -> Option<GrowthRule> {
        let is_snapshot = !self.analysis.ends_in_teardown();
        let events_after = self.live_set.last_allocation.saturating_sub(candidate.ends.serials[1]);
        let fewer_calls = candidate.fewer_model_calls(&self.analysis.symbols);
        match () {
            () if fewer_calls == FewerCalls::Yes => Some(GrowthRule::OneModelCall),
            () if (is_snapshot || !self.has_steps()) && candidate.is_released() => Some(GrowthRule::Released),
            () if is_snapshot && !self.has_net_growth(candidate) => Some(GrowthRule::Replaced),
            () if !self.has_steps()
                && self.is_set_up(candidate)
                && events_after >= candidate.leaked.blocks =>
            {
                Some(GrowthRule::SetUp)
            }
            () => None,
        }
    }

    /// True if the growth of a finding cannot be called a leak, although it came often enough: one
    /// pass of a model, the set-up of a program, or an exchange of all its memory looks like many
    /// steps.
    pub(super) fn is_doubtful(&self, finding: &Finding) -> bool {
        let symbols = &self.analysis.symbols;
        let is_doubtful = |one: &Candidate| {
            self.is_set_up(one)
                || self.is_set_up_before_error(one)
                || one.fewer_model_calls(symbols) > FewerCalls::No
                || !self.has_lowest_growth(one)
        };
        self.analysis.lacks_stacks() || finding.members.iter().all(is_doubtful)
    }

    /// True if allocations alone show the steps of the run, or it has none.
    fn has_steps_of_allocations(&self) -> bool {
        matches!(self.analysis.step_source(), None | Some(StepSource::Period))
    }

    /// True if a run with steps that only allocations show did nothing but allocate while the
    /// candidate grew: weights, a cache, or a loop that does nothing else. Other memory than the
    /// main one shows too little of the program.
    fn is_set_up(&self, candidate: &Candidate) -> bool {
        self.is_main() && self.has_steps_of_allocations() && candidate.is_one_stretch
    }

    /// True if a program with steps that only allocations show may have failed before it was set
    /// up: it had called no model half as often as the candidate grew, and the candidate is the
    /// weights of a module, or most of what the program had.
    fn is_set_up_before_error(&self, candidate: &Candidate) -> bool {
        let symbols = &self.analysis.symbols;
        let is_of_module = |(stack, _): &(StackId, BlockTotals)| {
            let context = symbols.stack_info(*stack).context;
            matches!(context, CallContext::Module | CallContext::Initial | CallContext::Loading)
        };
        let held_before = candidate.base_step().map_or(0, |base| self.live_set.series().at(base).bytes);
        self.is_main()
            && self.analysis.ended_with_error()
            && self.has_steps_of_allocations()
            && symbols.most_module_calls() < candidate.growth_count() as u64 / 2
            && (held_before <= candidate.leaked.bytes || candidate.grown.iter().all(is_of_module))
    }

    fn is_main(&self) -> bool {
        !self.is_in_part && self.kind != LeakKind::PinnedHost
    }

    /// True if all live bytes grew by at least half of what the candidate did, from its base to the
    /// end.
    fn has_net_growth(&self, candidate: &Candidate) -> bool {
        let base = candidate.base_step().unwrap_or(self.live_set.first_step);
        let held = self.live_set.series().at(base).bytes;
        self.live_set.total().bytes.saturating_sub(held) >= candidate.leaked.bytes / 2
    }

    /// True if all live bytes grew by at least half of what the candidate did, between their lowest
    /// values in the first and in the last quarter of its growth, or if it is less than half of
    /// them. Lowest values: a run without steps is divided anywhere in its passes.
    fn has_lowest_growth(&self, candidate: &Candidate) -> bool {
        let base = candidate.base_step().unwrap_or(self.live_set.first_step);
        let (_, _, values) = self.live_set.series().values_from(base, candidate.last_step.saturating_add(1));
        let quarter = values.len().div_ceil(4);
        let lowest = |part: &[BlockTotals]| part.iter().map(|held| held.bytes).min().unwrap_or(0);
        let [first, last] = [&values[..quarter], &values[values.len() - quarter..]].map(lowest);
        let grown = candidate.leaked.bytes;
        grown < last / 2 || last.saturating_sub(first) >= grown / 2
    }

    /// The leak of a finding.
    pub(super) fn leak_of(&self, finding: &Finding) -> Leak {
        let symbols = &self.analysis.symbols;
        let (place, members) = (finding.place, &finding.members);
        let main = &members[0];
        let mut leak = self.describe(symbols.site(place.line, place.stack), members);
        if members.iter().filter(|member| !member.is_weak).all(|member| member.accelerates) {
            leak.shape = LeakShape::Accelerating;
        }
        if let Some(sources) = &finding.sources {
            // Holders of all blocks would show the graph.
            let is_searched = leak.holder_coverage.as_ref().is_some_and(|seen| seen.unresolved.is_empty());
            if !is_searched || leak.is_held_by_graph() {
                leak.shape = LeakShape::RetainedGraph;
            }
            let joined = members.iter().map(|one| (one.site, one.grown.first().map(|(stack, _)| *stack)));
            let mut listed: SeededSet<SiteId> = sources.iter().map(|(site, _)| *site).collect();
            let sources = sources.iter().map(|(site, stack)| (*site, Some(*stack)));
            let joined = joined.filter(|(site, _)| members.len() > 1 && listed.insert(*site));
            let named: Vec<_> = sources.chain(joined).take(MAX_MEMBERS).collect();
            leak.members = named.into_iter().map(|(site, stack)| symbols.site(site, stack)).collect();
        } else {
            if place.line != main.site {
                leak.leaf = Some(symbols.site(main.site, place.stack));
            }
            let mut listed: SeededSet<SiteId> = SeededSet::default();
            let named: Vec<SiteId> =
                members.iter().map(|one| one.site).filter(|site| listed.insert(*site)).collect();
            if named.len() > 1 {
                let named = named.into_iter().take(MAX_MEMBERS);
                leak.members = named.map(|site| symbols.site(site, None)).collect();
            }
        }
        leak
    }

    /// Growth of too few or too uneven events to be called a leak.
    pub(super) fn possible_leak(&self, finding: &Finding) -> GrowingSite {
        let leak = Leak { confidence: None, ..self.leak_of(finding) };
        GrowingSite {
            needs: finding.missing_events().map(|missing| missing as u64),
            ..growth_of(leak, GrowthClass::PossibleLeak)
        }
    }

    /// A working set that gets larger.
    pub(super) fn growing_sizes(&self, larger: &GrowingWorkingSet) -> GrowingSite {
        GrowingSite {
            site: self.analysis.symbols.site(larger.site, larger.stack),
            device: u32::from(self.ordinal),
            memory: self.kind,
            bytes: larger.held.bytes,
            blocks: larger.held.blocks,
            class: GrowthClass::GrowingSizes,
            grows_by: Some(larger.grows_by),
            events: Some(larger.events as u64),
            needs: None,
            bytes_per_step: self.has_steps().then_some(Quantity(larger.bytes_per_step)),
            holders: None,
            finding: None,
        }
    }

    fn describe(&self, site: Site, members: &[Candidate]) -> Leak {
        let main = &members[0];
        let mut held = BlockTotals::default();
        let mut bytes_per_step = GrowthRate::default();
        for member in members {
            held.bytes = held.bytes.saturating_add(member.leaked.bytes);
            held.blocks += member.leaked.blocks;
            bytes_per_step += member.bytes_per_step();
        }
        let mut leak = self.leak(LeakFacts {
            site,
            held,
            growth: main.growth(),
            stride: main.stride,
            first_step: members.iter().map(Candidate::first_step).min().unwrap_or(0),
            last_step: main.last_step,
            blocks_per_step: members.iter().map(Candidate::blocks_per_step).sum(),
            bytes_per_step,
            after_warm_up: GrowthAfterWarmUp {
                step: main.after_warm_up.step,
                bytes: saturating_sum(members.iter().map(|member| member.after_warm_up.bytes)),
            },
            total: self.live_set.series(),
        });
        leak.grows_by = GrowsBy::Blocks;
        self.describe_outcomes(&mut leak, members);
        leak.host_cache_sites = self.host_cache_sites(main.grown[0].0);
        leak.stacks = stacks_of(members);
        leak.by_stack = totals_of_stacks(members);
        if let Some((holders, coverage)) = self.find_holders(&leak.stacks) {
            leak.holders = Some(holders);
            leak.holder_coverage = Some(coverage);
        }
        leak
    }

    /// If PyTorch's cache of pinned memory (`CachingHostAllocator`) requested the blocks of
    /// `grown`: the sites of all its requests. The cache reuses blocks without a call of the
    /// driver, so the line that holds them may never have made one.
    fn host_cache_sites(&self, grown: StackId) -> Vec<Site> {
        let symbols = &self.analysis.symbols;
        let is_cached = |stack: StackId| {
            let owner = owning_module(symbols.stack_info(stack).native, symbols.definitions());
            owner.is_some_and(|owner| owner.starts_with(HOST_CACHE))
        };
        if self.kind != LeakKind::PinnedHost || !is_cached(grown) {
            return Vec::new();
        }
        let sites = self.live_set.sites().filter(|(site, _)| self.live_set.stacks_of(*site).any(is_cached));
        let mut cached: Vec<_> = sites.map(|(site, stats)| (stats.outcomes.allocated, site)).collect();
        cached.sort_by_key(|(requests, site)| (std::cmp::Reverse(*requests), *site));
        cached.into_iter().take(MAX_MEMBERS).map(|(_, site)| symbols.site(site, None)).collect()
    }

    /// What holds the blocks of these stacks; `None` if no scan tells.
    fn find_holders(&self, stacks: &[(StackId, Option<u32>)]) -> Option<(Vec<Holder>, HolderCoverage)> {
        let scans =
            self.analysis.analyses.find::<HolderScans>().filter(|_| self.kind == LeakKind::Tensors)?;
        scans.holders_of_stacks(self.ordinal, stacks.iter().map(|(stack, _)| *stack))
    }

    fn describe_outcomes(&self, leak: &mut Leak, members: &[Candidate]) {
        let symbols = &self.analysis.symbols;
        let main = &members[0];
        let all = |of: fn(&Candidate) -> u64| saturating_sum(members.iter().map(of));
        let (allocated, freed) = (all(|one| one.outcomes.allocated), all(|one| one.outcomes.freed));
        let free_site = members.iter().max_by_key(|one| one.outcomes.freed).and_then(|one| one.free_site);
        leak.freed_siblings = FreedSiblings {
            share: if allocated == 0 { 0.0 } else { freed as f64 / allocated as f64 },
            site: free_site.map(|site| symbols.site(site, None)),
        };
        leak.survivors = Some(all(|one| one.counts.survivors));
        leak.generations = self.has_steps().then_some(main.counts.generations);
        if self.has_steps() {
            let survival = main.survival.iter();
            leak.cohort_survival = survival
                .map(|(after_steps, share)| Survival { after_steps: *after_steps, share: *share })
                .collect();
        }
        if members.iter().any(|one| symbols.is_backward_site(one.site)) {
            let mut seen = SeededSet::default();
            let calls = self.analysis.backward_calls.iter().filter_map(|call| symbols.user_site(*call));
            leak.backward_calls = calls
                .filter(|site: &SiteId| seen.insert(*site))
                .map(|site| symbols.site(site, None))
                .collect();
        }
        leak.evidence.slope_unit = AmountUnit::Blocks;
        leak.evidence.blocks_allocated = Some(allocated);
        leak.evidence.blocks_freed = Some(freed);
        leak.evidence.blocks_freed_in_later_step = Some(all(|one| one.freed_after_step));
    }

    /// The parts that all leaks have.
    pub(super) fn leak(&self, facts: LeakFacts<'_>) -> Leak {
        let LeakFacts { growth, held, stride, blocks_per_step, .. } = facts;
        let GrowthRate { expected: rate, least, most } = facts.bytes_per_step;
        let has_steps = self.has_steps();
        let per_step = |rate: f64| has_steps.then_some(Quantity(rate));
        let period = growth.period.filter(|_| has_steps).and_then(|period| match (period, stride) {
            (period, 1) => Some(period as u64),
            (1, _) if blocks_per_step >= 1.0 => Some(1),
            _ => None,
        });
        let last = facts.last_step;
        let GrowthAfterWarmUp { step: settled, bytes: own } = facts.after_warm_up;
        let grown = facts.total.at(last).bytes.saturating_sub(facts.total.at(settled).bytes);
        let share = (grown > 0).then(|| (own as f64 / grown as f64).min(1.0));
        let alone = self.room.filter(|_| has_steps).and_then(|room| {
            room.for_block_size(held.bytes / held.blocks.max(1)).steps_until_full(facts.bytes_per_step)
        });
        let pace = self.analysis.step_times.pace(facts.first_step, u64::from(last));
        Leak {
            trace: self.trace,
            kind: self.kind,
            site: facts.site,
            leaf: None,
            device: u32::from(self.ordinal),
            shape: LeakShape::Linear,
            confidence: Some(confidence_in(growth)),
            blocks: held.blocks,
            bytes: held.bytes,
            blocks_per_step: per_step(blocks_per_step),
            bytes_per_step: per_step(rate),
            bytes_per_step_interval: has_steps.then_some([Quantity(least), Quantity(most)]),
            bytes_per_second: pace.map(|pace| Quantity(pace.per_second(rate))),
            period_steps: period,
            first_step: has_steps.then_some(facts.first_step),
            last_step: has_steps.then_some(u64::from(last)),
            grows_by: GrowsBy::Size,
            is_regular: growth.period.is_some(),
            share_of_growth: share,
            steps_to_oom: alone.map(|steps| steps.expected),
            oom_step: None,
            oom_elapsed_ns: None,
            survivors: None,
            generations: None,
            cohort_survival: Vec::new(),
            freed_siblings: FreedSiblings { share: 0.0, site: None },
            backward_calls: Vec::new(),
            members: Vec::new(),
            host_cache_sites: Vec::new(),
            holders: None,
            holder_coverage: None,
            stacks: Vec::new(),
            by_stack: Vec::new(),
            rate: [rate, least, most],
            judged: (facts.first_step, u64::from(last)),
            evidence: series_evidence(growth, stride, has_steps.then_some(self.live_set.steps_ended())),
        }
    }
}

/// Confidence in a growth, from 0 to 1: it is regular, was repeated, and was not undone.
fn confidence_in(growth: &Growth) -> f64 {
    let (certainty, highest) = match growth.period {
        Some(_) => (growth.regularity, MAX_REGULAR_CONFIDENCE),
        None => (growth.tau, MAX_IRREGULAR_CONFIDENCE),
    };
    let repeated = 1.0 - 0.5f64.powi(growth.rising_steps.min(60) as i32 - 1);
    let kept = 1.0 - growth.undone as f64 / growth.rise.max(1) as f64;
    let confidence = (certainty * repeated * kept * 1000.0).round() / 1000.0;
    confidence.clamp(0.0, highest)
}

/// The evidence of a series of which each `stride`-th step is kept.
fn series_evidence(growth: &Growth, stride: u32, judged_at_step: Option<u32>) -> LeakEvidence {
    LeakEvidence {
        judged_at_step,
        growth_steps: growth.rising_steps,
        regularity: growth.regularity,
        kendall_tau: growth.tau,
        theil_sen_slope: growth.slope.per_value / f64::from(stride),
        theil_sen_interval: growth.slope.interval.map(|bound| bound / f64::from(stride)),
        slope_unit: AmountUnit::Bytes,
        largest_drawdown: growth.undone,
        blocks_allocated: None,
        blocks_freed: None,
        blocks_freed_in_later_step: None,
        stream: None,
        pool: None,
    }
}

/// A finding that is not called a leak.
pub(super) fn growth_of(leak: Leak, class: GrowthClass) -> GrowingSite {
    GrowingSite {
        site: leak.site.clone(),
        device: leak.device,
        memory: leak.kind,
        bytes: leak.bytes,
        blocks: leak.blocks,
        class,
        grows_by: (class == GrowthClass::GrowingSizes).then_some(leak.grows_by),
        events: Some(leak.evidence.growth_steps as u64),
        needs: None,
        bytes_per_step: leak.bytes_per_step,
        holders: leak.holders.clone(),
        finding: (class != GrowthClass::GrowingSizes).then(|| Box::new(leak)),
    }
}

/// The growing stacks, each with the last step before it grew.
fn stacks_of(members: &[Candidate]) -> Vec<(StackId, Option<u32>)> {
    let of_member = |member: &Candidate| {
        let base = member.base_step();
        member.grown.iter().map(move |(stack, _)| (*stack, base)).collect::<Vec<_>>()
    };
    members.iter().flat_map(of_member).collect()
}

/// Settled survivors by stack: its number, bytes and blocks. Most bytes first.
fn totals_of_stacks(members: &[Candidate]) -> Vec<(u32, u64, u64)> {
    let mut totals: BTreeMap<StackId, BlockTotals> = BTreeMap::new();
    for (stack, grown) in members.iter().flat_map(|member| &member.grown) {
        let total = totals.entry(*stack).or_default();
        total.bytes = total.bytes.saturating_add(grown.bytes);
        total.blocks += grown.blocks;
    }
    let mut rows: Vec<_> = totals.iter().map(|(stack, total)| (stack.0, total.bytes, total.blocks)).collect();
    rows.sort_unstable_by_key(|(stack, bytes, _)| (std::cmp::Reverse(*bytes), *stack));
    rows
}
