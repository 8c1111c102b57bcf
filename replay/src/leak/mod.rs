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
//! Candidates that grow in the same steps become one finding if they are one autograd graph
//! ([`retained_graph`]) or are reported under the same line ([`blame`]). A graph needs four growth
//! steps, and so do [`MIN_LOCKSTEP_SITES`] sites under one line. Other findings need [`MIN_RISES`].
//!
//! The cost is O(sites x step ends), once at the end of the trace. `tests/leak_population.rs`
//! bounds false positives and misses over 1,600 generated runs; `tests/leaks.rs` checks single
//! cases.

pub(crate) mod benign;
pub(crate) mod blame;
pub(crate) mod blocks;
pub(crate) mod candidates;
pub(crate) mod cohorts;
pub(crate) mod growth;
pub(crate) mod oom_forecast;
pub(crate) mod opaque_pools;
pub(crate) mod rate;
pub(crate) mod report;
pub(crate) mod reserved_growth;
pub(crate) mod retained_graph;
pub(crate) mod statistics;

use std::borrow::Cow;

use crate::device::DeviceState;
use crate::leak::blame::{BlamedLine, blame_candidate};
use crate::leak::candidates::{Candidate, Candidates, find_candidates, find_candidates_of_all_sites};
use crate::leak::growth::{SurvivorEvidence, judge_series};
use crate::leak::oom_forecast::Headroom;
use crate::leak::rate::GrowthRate;
use crate::pass::Analysis;
use crate::report::{BenignGrowth, Leak, LeakKind};
use crate::timeline::step_series::StepSeries;
use crate::util::ids::StackId;
use report::LeakReporter;

/// Findings reported per trace; those with the fewest bytes are dropped.
const MAX_FINDINGS: usize = 200;

/// Growth steps that a finding of fewer than [`MIN_LOCKSTEP_SITES`] sites needs: a single site may
/// be a queue that happens to fill up. At 9, `leak_population.rs` misses planted leaks.
const MIN_RISES: usize = 6;
/// Sites under one line that grow in the same steps and need no more than four growth steps.
const MIN_LOCKSTEP_SITES: usize = 3;

/// Result of the leak analysis of one trace.
#[derive(Default)]
pub(crate) struct LeakFindings {
    /// Findings, most bytes first.
    pub(crate) leaks: Vec<Leak>,
    /// Sites that hold more at the end than before and are not leaks.
    pub(crate) benign: Vec<BenignGrowth>,
}

/// Finds the leaks of all devices and of pinned host memory. `trace` is the trace's index in the
/// report.
pub(crate) fn find_leaks(trace: usize, analysis: &Analysis) -> LeakFindings {
    let mut found = LeakFindings::default();
    for (ordinal, device) in &analysis.devices {
        let mut leaks = find_device_leaks(trace, analysis, (*ordinal, device), &mut found.benign);
        forecast_oom(&mut leaks, Headroom::of_device(analysis, *ordinal, device));
        found.leaks.extend(leaks);
    }
    let host = find_candidates_of_all_sites(&analysis.host);
    let reporter = LeakReporter {
        trace,
        analysis,
        ordinal: 0,
        live_set: &analysis.host,
        kind: LeakKind::PinnedHost,
        room: None,
    };
    found.benign.extend(benign::report_benign(&reporter, &host.benign));
    found.leaks.extend(report_candidates(&reporter, host.growing));
    found.leaks.sort_by_key(|leak: &Leak| std::cmp::Reverse(leak.bytes));
    found.leaks.truncate(MAX_FINDINGS);
    found
}

fn find_device_leaks(
    trace: usize,
    analysis: &Analysis,
    (ordinal, device): (u8, &DeviceState),
    benign_growth: &mut Vec<BenignGrowth>,
) -> Vec<Leak> {
    let room = Headroom::of_device(analysis, ordinal, device);
    let has_torch = device.has_torch();
    let kind = if has_torch { LeakKind::Tensors } else { LeakKind::Device };
    let reporter = LeakReporter { trace, analysis, ordinal, live_set: device.main(), kind, room };
    let candidates = find_candidates_of_all_sites(reporter.live_set);
    benign_growth.extend(benign::report_benign(&reporter, &candidates.benign));
    let mut leaks = report_candidates(&reporter, candidates.growing);
    if has_torch {
        let tensor_bytes = leaks.iter().fold(0u64, |sum, leak| sum.saturating_add(leak.bytes));
        let non_torch = LeakReporter { live_set: &device.driver, kind: LeakKind::Device, ..reporter };
        let candidates = find_non_torch_candidates(analysis, device);
        benign_growth.extend(benign::report_benign(&non_torch, &candidates.benign));
        leaks.extend(report_candidates(&non_torch, candidates.growing));
        if analysis.knows_reserved() {
            leaks.extend(reserved_growth::find_reserved_leak(
                &LeakReporter { kind: LeakKind::Reserved, ..reporter },
                device,
                tensor_bytes,
            ));
        }
    }
    leaks
}

/// Candidates in driver memory that PyTorch's allocator did not request.
fn find_non_torch_candidates(analysis: &Analysis, device: &DeviceState) -> Candidates {
    let live_set = &device.driver;
    let (_, _, non_torch) =
        device.unused.non_torch().values_from(live_set.first_step, live_set.steps_ended());
    let bytes: Vec<u64> = non_torch.iter().map(|held| held.bytes).collect();
    let non_torch_grows = judge_series(&bytes, SurvivorEvidence::NOTHING_FREED).growth().is_some();
    // Metal's heaps are recorded as segments and excluded as such, whatever their owner.
    let is_metal = analysis.is_metal();
    let owner = |stack: StackId| {
        let native = analysis.symbols.stack_info(stack).native;
        analysis.owners.name(analysis.owners.known(native))
    };
    let is_judged = |stack: &StackId| match owner(*stack) {
        _ if is_metal => non_torch_grows && !device.requested_segments(*stack),
        name if name.starts_with(crate::state::attribution::TORCH_ALLOCATOR) => false,
        crate::callsite::module_owner::UNKNOWN => non_torch_grows,
        // Another library requested it for PyTorch's allocator: a pluggable allocator or a MemPool.
        _ => !device.requested_segments(*stack),
    };
    let sites = live_set.sites().filter_map(|(site, entry)| {
        let judged: Vec<StackId> = live_set.stacks_of(site).filter(is_judged).collect();
        let series = match judged.len() {
            0 => return None,
            len if len == live_set.stacks_of(site).count() => Cow::Borrowed(entry.series()),
            _ => Cow::Owned(StepSeries::sum(
                judged.iter().map(|stack| live_set.series_of(*stack)),
                live_set.steps_ended(),
            )),
        };
        Some((site, entry, series))
    });
    find_candidates(live_set, sites)
}

/// Merges candidates into findings and turns them into rows of the report.
fn report_candidates(reporter: &LeakReporter<'_>, mut candidates: Vec<Candidate>) -> Vec<Leak> {
    let (live_set, symbols) = (reporter.live_set, &reporter.analysis.symbols);
    let mut leaks = Vec::new();
    while let Some(graph) = retained_graph::take_graph(live_set, symbols, &mut candidates) {
        leaks.push(reporter.graph(&graph));
    }
    let mut by_line: Vec<(BlamedLine, Vec<Candidate>)> = Vec::new();
    for candidate in candidates {
        let blamed = blame_candidate(live_set, symbols, &candidate);
        let group = by_line.iter_mut().find(|(other, members)| {
            other.line == blamed.line && members[0].lockstep_key() == candidate.lockstep_key()
        });
        match group {
            Some((_, members)) => members.push(candidate),
            None => by_line.push((blamed, vec![candidate])),
        }
    }
    by_line
        .retain(|(_, members)| members.len() >= MIN_LOCKSTEP_SITES || members[0].growth_count() >= MIN_RISES);
    leaks.extend(by_line.iter().map(|(blamed, members)| reporter.sites(*blamed, members)));
    leaks
}

/// Sets the step in which the device is full if all `leaks` on it go on together. Sets nothing if
/// the rate of one of them is unknown.
fn forecast_oom(leaks: &mut [Leak], headroom: Option<Headroom>) {
    let mut total = GrowthRate::default();
    for leak in leaks.iter() {
        let Some(rate) = leak.bytes_per_step else { return };
        let interval = leak.bytes_per_step_interval.map_or([rate.0; 2], |bounds| bounds.map(|b| b.0));
        total += GrowthRate { expected: rate.0, least: interval[0], most: interval[1] };
    }
    let largest = leaks.iter().max_by_key(|leak| leak.bytes);
    let block_bytes = largest.map_or(0, |leak| leak.bytes / leak.blocks.max(1));
    let headroom = headroom.map(|headroom| headroom.for_block_size(block_bytes));
    for leak in leaks {
        leak.oom_step =
            headroom.zip(leak.last_step).and_then(|(headroom, last)| headroom.forecast(total, last));
    }
}
