//! Finds the lines of user code that retain more memory after every step.
//!
//! [`find_leaks`] judges four kinds of memory, all by the rules of [`candidates`]:
//! * [`LeakKind::Tensors`]: live blocks of PyTorch's allocator, by allocating line.
//! * [`LeakKind::Device`]: driver memory, by requesting line. Requests by PyTorch's own allocator
//!   or for it (pluggable allocators, pools) do not count: tensors lie inside. Memory of an unknown
//!   owner counts only if driver memory outside PyTorch grows as a whole. On Metal, heaps do not
//!   count.
//! * [`LeakKind::PinnedHost`]: pinned host memory, by requesting line.
//! * [`LeakKind::Reserved`]: unused reserved memory, by stream and pool ([`reserved_growth`]).
//!
//! [`merge`] makes findings of candidates. Growth that is not known to be a leak is listed as a
//! [`GrowingSite`], with its class; [`assessment`] says what could be judged.
//!
//! The cost is O(sites x step ends), once at the end of the trace. `tests/leaks/accuracy.rs`
//! bounds false positives and misses over 600 generated streams; `tests/leaks/cases.rs` checks
//! single cases.

pub(crate) mod assessment;
pub(crate) mod benign;
pub(crate) mod blame;
pub(crate) mod blocks;
pub(crate) mod candidate;
pub(crate) mod candidates;
pub(crate) mod growth;
pub(crate) mod merge;
pub(crate) mod oom_forecast;
pub(crate) mod opaque_pools;
pub(crate) mod rate;
pub(crate) mod remainder;
pub(crate) mod report;
pub(crate) mod reserved_growth;
pub(crate) mod retained_graph;
pub(crate) mod statistics;
pub(crate) mod survivors;

use crate::device::DeviceState;
use crate::leak::candidate::{BenignCandidate, Candidates};
use crate::leak::candidates::find_candidates;
use crate::leak::growth::{GrowthJudgement, judge_series};
use crate::leak::merge::merge_candidates;
use crate::leak::oom_forecast::Headroom;
use crate::leak::rate::GrowthRate;
use crate::leak::remainder::find_remainder;
use crate::pass::Analysis;
use crate::report::{BenignGrowth, GrowingSite, GrowthClass, Leak, LeakKind};
use crate::util::block_totals::saturating_sum;
use crate::util::ids::StackId;
use report::{LeakReporter, growth_of};

/// Findings reported per trace; those with the fewest bytes are dropped.
const MAX_FINDINGS: usize = 200;

/// Growing sites reported per trace that are not known to leak.
const MAX_GROWING: usize = 50;

/// Result of the leak analysis of one trace.
#[derive(Default)]
pub(crate) struct LeakFindings {
    /// Findings, most bytes first.
    pub(crate) leaks: Vec<Leak>,
    /// Sites that grow and are not known to leak, most bytes first.
    pub(crate) growth: Vec<GrowingSite>,
    /// Sites that hold more at the end than before and are not leaks.
    pub(crate) benign: Vec<BenignGrowth>,
}

impl LeakFindings {
    /// Adds what was found in one live set.
    fn add(&mut self, reporter: &LeakReporter<'_>, candidates: Candidates) {
        let symbols = &reporter.analysis.symbols;
        let listed = candidates.explained_sites();
        let Candidates { growing, larger, mut benign } = candidates;
        let (harmless, growing): (Vec<_>, Vec<_>) = growing
            .into_iter()
            .map(|candidate| (reporter.harmless_rule(&candidate), candidate))
            .partition(|(rule, _)| rule.is_some());
        let harmless = harmless.iter().filter_map(|(rule, candidate)| Some((rule.as_ref()?, candidate)));
        benign.extend(harmless.map(|(rule, candidate)| BenignCandidate::of_candidate(candidate, *rule)));
        let growing = growing.into_iter().map(|(_, candidate)| candidate).collect();
        self.benign.extend(benign::report_benign(reporter, &benign));
        let merged = merge_candidates(reporter.live_set, symbols, growing);
        for finding in &merged.leaks {
            let leak = reporter.leak_of(finding);
            if has_limit(&leak) {
                self.growth.push(growth_of(leak, GrowthClass::Filling));
            } else if reporter.is_doubtful(finding) {
                let possible = Leak { confidence: None, ..leak };
                self.growth.push(growth_of(possible, GrowthClass::PossibleLeak));
            } else {
                self.leaks.push(leak);
            }
        }
        self.growth.extend(merged.possible.iter().map(|finding| reporter.possible_leak(finding)));
        self.growth.extend(larger.iter().map(|larger| reporter.growing_sizes(larger)));
        if !reporter.is_in_part {
            self.growth.extend(find_remainder(reporter, &listed));
        }
    }
}

/// Finds the leaks of all devices and of pinned host memory. `trace` is the trace's index in the
/// report.
pub(crate) fn find_leaks(trace: usize, analysis: &Analysis) -> LeakFindings {
    let mut found = LeakFindings::default();
    for (ordinal, device) in &analysis.devices {
        let begin = (found.leaks.len(), found.growth.len());
        find_device_leaks(trace, analysis, (*ordinal, device), &mut found);
        let possible =
            found.growth[begin.1..].iter_mut().filter(|one| one.class == GrowthClass::PossibleLeak);
        let possible = possible.filter_map(|one| one.finding.as_deref_mut()).collect();
        let headroom = Headroom::of_device(analysis, *ordinal, device);
        forecast_oom(&mut found.leaks[begin.0..], possible, (analysis, headroom));
    }
    let reporter = LeakReporter {
        trace,
        analysis,
        ordinal: 0,
        live_set: &analysis.host,
        kind: LeakKind::PinnedHost,
        room: None,
        is_in_part: false,
    };
    found.add(&reporter, find_candidates(&analysis.host, analysis.ends_in_teardown(), &|_| true));
    found.leaks.sort_by_key(|leak: &Leak| std::cmp::Reverse(leak.bytes));
    found.leaks.truncate(MAX_FINDINGS);
    found.growth.sort_by_key(|growth| std::cmp::Reverse(growth.bytes));
    found.growth.truncate(MAX_GROWING);
    found
}

fn find_device_leaks(
    trace: usize,
    analysis: &Analysis,
    (ordinal, device): (u8, &DeviceState),
    found: &mut LeakFindings,
) {
    let room = Headroom::of_device(analysis, ordinal, device);
    let has_torch = device.has_torch();
    let kind = if has_torch { LeakKind::Tensors } else { LeakKind::Device };
    let reporter =
        LeakReporter { trace, analysis, ordinal, live_set: device.main(), kind, room, is_in_part: false };
    let begin = (found.leaks.len(), found.growth.len());
    found.add(&reporter, find_candidates(reporter.live_set, analysis.ends_in_teardown(), &|_| true));
    if !has_torch {
        return;
    }
    let leaked = found.leaks[begin.0..].iter().map(|leak| leak.bytes);
    let tensor_bytes = saturating_sum(leaked.chain(found.growth[begin.1..].iter().map(|one| one.bytes)));
    let non_torch =
        LeakReporter { live_set: &device.driver, kind: LeakKind::Device, is_in_part: true, ..reporter };
    found.add(&non_torch, find_non_torch_candidates(analysis, device));
    if analysis.knows_reserved() {
        let reserved = LeakReporter { kind: LeakKind::Reserved, ..reporter };
        let leak = reserved_growth::find_reserved_leak(&reserved, device, tensor_bytes);
        // Without a period, requests that get larger leave segments behind that fit none of them.
        match leak {
            Some(leak) if leak.is_regular => found.leaks.push(leak),
            leak => found.growth.extend(leak.map(|leak| growth_of(leak, GrowthClass::GrowingSizes))),
        }
    }
}

/// True if most of the leak's blocks are in a container with a limit that is not reached yet.
fn has_limit(leak: &Leak) -> bool {
    let main = leak.holders.iter().flatten().next();
    main.is_some_and(|holder| holder.limit_items > holder.items && holder.items.is_some())
}

/// Candidates in driver memory that PyTorch's allocator did not request.
fn find_non_torch_candidates(analysis: &Analysis, device: &DeviceState) -> Candidates {
    let live_set = &device.driver;
    let (_, _, non_torch) =
        device.unused.non_torch().values_from(live_set.first_step, live_set.steps_ended());
    let bytes: Vec<u64> = non_torch.iter().map(|held| held.bytes).collect();
    let non_torch_grows = match judge_series(&bytes) {
        GrowthJudgement::Grows(_) => true,
        GrowthJudgement::Settled(settled) => settled.goes_on,
        GrowthJudgement::Quiet => false,
    };
    // Metal's heaps are recorded as segments and excluded as such, whatever their owner.
    let is_metal = analysis.is_metal();
    let owner = |stack: StackId| {
        let native = analysis.symbols.stack_info(stack).native;
        analysis.owners.name(analysis.owners.known(native))
    };
    let is_judged = |stack: StackId| match owner(stack) {
        _ if is_metal => non_torch_grows && !device.requested_segments(stack),
        name if name.starts_with(crate::state::attribution::TORCH_ALLOCATOR) => false,
        crate::callsite::module_owner::UNKNOWN => non_torch_grows && !device.requested_segments(stack),
        // Another library requested it for PyTorch's allocator: a pluggable allocator or a MemPool.
        _ => !device.requested_segments(stack),
    };
    find_candidates(live_set, analysis.ends_in_teardown(), &is_judged)
}

/// Sets when the device is full if all `leaks` on it go on together, and for the `possible` ones,
/// if these go on too.
fn forecast_oom(
    leaks: &mut [Leak],
    possible: Vec<&mut Leak>,
    (analysis, headroom): (&Analysis, Option<Headroom>),
) {
    let Some(headroom) = headroom else { return };
    let mut total = GrowthRate::default();
    for together in [leaks.iter_mut().collect(), possible] {
        for leak in &together {
            let [expected, least, most] = leak.rate;
            total += GrowthRate { expected, least, most };
        }
        let largest = together.iter().max_by_key(|leak| leak.bytes);
        let block_bytes = largest.map_or(0, |leak| leak.bytes / leak.blocks.max(1));
        for leak in together {
            let (first, last) = leak.judged;
            let forecast = headroom.for_block_size(block_bytes).forecast(total, last);
            leak.oom_step = forecast.filter(|_| leak.last_step.is_some());
            leak.oom_elapsed_ns = forecast.and_then(|forecast| {
                let pace = analysis.step_times.pace(first, last)?;
                pace.start_of(forecast.expected).checked_sub(analysis.start_ns)
            });
        }
    }
}
