//! Which lines leave something behind at every step.
//!
//! Four kinds of memory are judged, each by the same rules (`crate::leak::candidates`):
//! * *tensors*: blocks of PyTorch's allocator by the line that allocated them;
//! * *device*: driver memory by the line that asked for it; where there is PyTorch, without what its allocator asked for. Where
//!   it is not known who asked, it counts only if all driver memory beside PyTorch's grows. Of Metal, without heaps;
//! * *pinned_host*: pinned host memory by the line that asked for it;
//! * *reserved*: what PyTorch has reserved and no tensor uses, by stream and pool, else of the device ([`crate::state::unused_reserved`]); not
//!   where tensors leak more, whose segments are never filled to the last byte.
//!
//! Sites that grow in the very same steps and whose stacks meet in one user line are one finding, a retained graph, under that
//! line (see `crate::leak::retained_graph`); so are sites that stand under the same line (see `crate::leak::blame`) and grow in the same steps.
//! Everything else is a finding of its own. A graph is plain after four growth steps, as are three sites under one line;
//! anything else must have left something behind six times.

pub(crate) mod benign;
pub(crate) mod blame;
pub(crate) mod blocks;
pub(crate) mod candidates;
pub(crate) mod cohorts;
pub(crate) mod growth;
pub(crate) mod oom_forecast;
pub(crate) mod report;
pub(crate) mod reserved_growth;
pub(crate) mod retained_graph;
pub(crate) mod statistics;

use std::borrow::Cow;

use crate::callsite::symbols::StackId;
use crate::leak::blame::{BlamedLine, blame};
use crate::leak::candidates::{Candidate, Candidates, candidates_of_all_sites, find_candidates};
use crate::leak::growth::{SurvivorEvidence, judge};
use crate::leak::oom_forecast::Headroom;
use crate::pass::Analysis;
use crate::report::{BenignGrowth, Leak};
use crate::state::device::DeviceState;
use crate::timeline::step_series::StepSeries;
use report::LeakReporter;

/// Most findings.
const MAX_FINDINGS: usize = 200;

/// Fewest times that a site must have left something behind, unless it is a graph or so many sites do.
const MIN_RISES: usize = 6;
const PLAIN_SITES: usize = 3;

/// The kind of a finding in blocks of PyTorch's allocator.
pub(crate) const TENSORS: &str = "tensors";
/// In driver memory.
pub(crate) const DEVICE: &str = "device";
/// In pinned host memory.
pub(crate) const PINNED_HOST: &str = "pinned_host";
/// In what PyTorch has reserved and does not use.
pub(crate) const RESERVED: &str = "reserved";

/// All findings, worst first, and what has grown and is none.
pub(crate) fn leaks(trace: usize, analysis: &Analysis) -> (Vec<Leak>, Vec<BenignGrowth>) {
    let (mut leaks, mut silent) = (Vec::new(), Vec::new());
    for (ordinal, device) in &analysis.devices {
        let mut found = device_leaks(trace, analysis, (*ordinal, device), &mut silent);
        together(&mut found, Headroom::of(analysis, *ordinal, device));
        leaks.extend(found);
    }
    let host = candidates_of_all_sites(&analysis.host);
    silent.extend(benign::report((trace, 0, PINNED_HOST), analysis, &analysis.host, &host.silent));
    let reporter =
        LeakReporter { trace, analysis, ordinal: 0, live_set: &analysis.host, kind: PINNED_HOST, room: None };
    leaks.extend(findings(&reporter, host.findings));
    leaks.sort_by_key(|leak: &Leak| std::cmp::Reverse(leak.bytes));
    leaks.truncate(MAX_FINDINGS);
    (leaks, silent)
}

fn device_leaks(
    trace: usize,
    analysis: &Analysis,
    (ordinal, device): (u8, &DeviceState),
    silent: &mut Vec<BenignGrowth>,
) -> Vec<Leak> {
    let room = Headroom::of(analysis, ordinal, device);
    let has_torch = device.has_torch();
    let kind = if has_torch { TENSORS } else { DEVICE };
    let reporter = LeakReporter { trace, analysis, ordinal, live_set: device.main(), kind, room };
    let found = candidates_of_all_sites(reporter.live_set);
    silent.extend(benign::report((trace, ordinal, kind), analysis, reporter.live_set, &found.silent));
    let mut leaks = findings(&reporter, found.findings);
    if has_torch {
        let tensors = leaks.iter().fold(0u64, |all, leak| all.saturating_add(leak.bytes));
        let non_torch = LeakReporter { live_set: &device.driver, kind: DEVICE, ..reporter };
        let found = non_torch_candidates(analysis, device);
        silent.extend(benign::report((trace, ordinal, DEVICE), analysis, non_torch.live_set, &found.silent));
        leaks.extend(findings(&non_torch, found.findings));
        if analysis.knows_reserved() {
            leaks.extend(reserved_growth::leak(
                &LeakReporter { kind: RESERVED, ..reporter },
                device,
                tensors,
            ));
        }
    }
    leaks
}

/// Driver memory that PyTorch's allocator did not ask for.
fn non_torch_candidates(analysis: &Analysis, device: &DeviceState) -> Candidates {
    let live_set = &device.driver;
    let (_, _, non_torch) =
        device.unused.non_torch().values_from(live_set.first_step, live_set.steps_ended());
    let bytes: Vec<u64> = non_torch.iter().map(|held| held.bytes).collect();
    let grows = judge(&bytes, SurvivorEvidence::KEPT).growth().is_some();
    // A heap has the owner of whoever asked for it, which tells PyTorch's from nobody's; but it is told to be a segment.
    let is_metal = analysis.vocabulary().is_metal;
    let owner = |stack: StackId| {
        let native = analysis.symbols.stack_info(stack).native;
        analysis.owners.name(analysis.owners.known(native))
    };
    let counts = |stack: &StackId| match owner(*stack) {
        _ if is_metal => grows && !device.requested_segments(*stack),
        name if name.starts_with(crate::state::attribution::TORCH_ALLOCATOR) => false,
        crate::callsite::module_owner::UNKNOWN => grows,
        _ => true,
    };
    let sites = live_set.sites().filter_map(|(site, entry)| {
        let own: Vec<StackId> = live_set.stacks_of(site).filter(counts).collect();
        let series = match own.len() {
            0 => return None,
            len if len == live_set.stacks_of(site).count() => Cow::Borrowed(entry.series()),
            _ => Cow::Owned(StepSeries::sum(
                own.iter().map(|stack| live_set.series_of(*stack)),
                live_set.steps_ended(),
            )),
        };
        Some((site, entry, series))
    });
    find_candidates(live_set, sites)
}

/// The report's form of findings: graphs and what stands under one line are put together.
fn findings(reporter: &LeakReporter<'_>, mut findings: Vec<Candidate>) -> Vec<Leak> {
    let (live_set, symbols) = (reporter.live_set, &reporter.analysis.symbols);
    let mut leaks = Vec::new();
    while !findings.is_empty() {
        let (graph, rest) = retained_graph::split(live_set, symbols, findings);
        findings = rest;
        let Some(graph) = graph else { break };
        leaks.push(reporter.graph(&graph));
    }
    let mut placed: Vec<(BlamedLine, Vec<Candidate>)> = Vec::new();
    for finding in findings {
        let at = blame(live_set, symbols, &finding);
        let same = placed
            .iter_mut()
            .find(|(place, members)| place.line == at.line && members[0].lockstep() == finding.lockstep());
        match same {
            Some((_, members)) => members.push(finding),
            None => placed.push((at, vec![finding])),
        }
    }
    // Of many sites in the same steps four times are plain; a single one may be a queue that happens to fill.
    placed.retain(|(_, members)| members.len() >= PLAIN_SITES || members[0].rises() >= MIN_RISES);
    leaks.extend(placed.iter().map(|(blame, members)| reporter.sites(*blame, members)));
    leaks
}

/// When the device is full if all that leaks on it goes on.
fn together(leaks: &mut [Leak], room: Option<Headroom>) {
    let mut rates = [0.0; 3];
    for leak in leaks.iter() {
        let Some(rate) = leak.bytes_per_step else { return };
        let [least, most] = leak.bytes_per_step_interval.map_or([rate.0; 2], |bounds| bounds.map(|b| b.0));
        for (sum, one) in rates.iter_mut().zip([rate.0, least, most]) {
            *sum += one;
        }
    }
    let main = leaks.iter().max_by_key(|leak| leak.bytes);
    let block = main.map_or(0, |leak| leak.bytes / leak.blocks.max(1));
    let room = room.map(|room| room.for_blocks(block));
    for leak in leaks {
        leak.oom_step = room.zip(leak.last_step).and_then(|(room, last)| room.step(rates, last));
    }
}
