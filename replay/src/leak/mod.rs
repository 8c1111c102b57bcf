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

pub mod benign;
pub mod blame;
mod blocks;
pub mod candidates;
pub mod cohorts;
pub mod growth;
pub mod oom_forecast;
mod report;
mod reserved_growth;
pub mod retained_graph;
pub mod statistics;

pub use blocks::{BlocksOfLeak, BlocksOfSite, blocks_of_leaks};

use std::borrow::Cow;

use crate::callsite::symbols::StackId;
use crate::leak::blame::{Place, place};
use crate::leak::candidates::{Finding, Suspects, of_all_sites, suspects};
use crate::leak::growth::{Fate, judge};
use crate::leak::oom_forecast::Room;
use crate::pass::Analysis;
use crate::report::{Leak, SilentGrowth};
use crate::state::device::DeviceState;
use crate::timeline::step_series::Series;
use report::Reporter;

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
pub fn leaks(trace: usize, analysis: &Analysis) -> (Vec<Leak>, Vec<SilentGrowth>) {
    let (mut leaks, mut silent) = (Vec::new(), Vec::new());
    for (ordinal, device) in &analysis.devices {
        let mut found = device_leaks(trace, analysis, (*ordinal, device), &mut silent);
        together(&mut found, Room::of(analysis, *ordinal, device));
        leaks.extend(found);
    }
    let host = of_all_sites(&analysis.host);
    silent.extend(benign::report((trace, 0, PINNED_HOST), analysis, &analysis.host, &host.silent));
    let reporter =
        Reporter { trace, analysis, ordinal: 0, book: &analysis.host, kind: PINNED_HOST, room: None };
    leaks.extend(findings(&reporter, host.findings));
    leaks.sort_by_key(|leak: &Leak| std::cmp::Reverse(leak.bytes));
    leaks.truncate(MAX_FINDINGS);
    (leaks, silent)
}

fn device_leaks(
    trace: usize,
    analysis: &Analysis,
    (ordinal, device): (u8, &DeviceState),
    silent: &mut Vec<SilentGrowth>,
) -> Vec<Leak> {
    let room = Room::of(analysis, ordinal, device);
    let has_torch = device.has_torch();
    let kind = if has_torch { TENSORS } else { DEVICE };
    let reporter = Reporter { trace, analysis, ordinal, book: device.main(), kind, room };
    let found = of_all_sites(reporter.book);
    silent.extend(benign::report((trace, ordinal, kind), analysis, reporter.book, &found.silent));
    let mut leaks = findings(&reporter, found.findings);
    if has_torch {
        let tensors = leaks.iter().fold(0u64, |all, leak| all.saturating_add(leak.bytes));
        let beside = Reporter { book: &device.driver, kind: DEVICE, ..reporter };
        let found = beside_torch(analysis, device);
        silent.extend(benign::report((trace, ordinal, DEVICE), analysis, beside.book, &found.silent));
        leaks.extend(findings(&beside, found.findings));
        if analysis.knows_reserved() {
            leaks.extend(reserved_growth::leak(&Reporter { kind: RESERVED, ..reporter }, device, tensors));
        }
    }
    leaks
}

/// Driver memory that PyTorch's allocator did not ask for.
fn beside_torch(analysis: &Analysis, device: &DeviceState) -> Suspects {
    let book = &device.driver;
    let (_, _, beside) = device.unused.beside().values_from(book.first_step, book.steps_ended());
    let bytes: Vec<u64> = beside.iter().map(|held| held.bytes).collect();
    let grows = judge(&bytes, Fate::KEPT).growth().is_some();
    // A heap has the owner of whoever asked for it, which tells PyTorch's from nobody's; but it is told to be a segment.
    let is_metal = analysis.words().is_metal;
    let owner = |stack: StackId| {
        let native = analysis.symbols.facts(stack).native;
        analysis.owners.name(analysis.owners.known(native))
    };
    let counts = |stack: &StackId| match owner(*stack) {
        _ if is_metal => grows && !device.asked_for_segments(*stack),
        name if name.starts_with(crate::state::attribution::TORCH) => false,
        crate::callsite::module_owner::UNKNOWN => grows,
        _ => true,
    };
    let sites = book.sites().filter_map(|(site, entry)| {
        let own: Vec<StackId> = book.stacks_of(site).filter(counts).collect();
        let series = match own.len() {
            0 => return None,
            len if len == book.stacks_of(site).count() => Cow::Borrowed(entry.series()),
            _ => Cow::Owned(Series::sum(own.iter().map(|stack| book.series_of(*stack)), book.steps_ended())),
        };
        Some((site, entry, series))
    });
    suspects(book, sites)
}

/// The report's form of findings: graphs and what stands under one line are put together.
fn findings(reporter: &Reporter<'_>, mut findings: Vec<Finding>) -> Vec<Leak> {
    let (book, symbols) = (reporter.book, &reporter.analysis.symbols);
    let mut leaks = Vec::new();
    while !findings.is_empty() {
        let (graph, rest) = retained_graph::split(book, symbols, findings);
        findings = rest;
        let Some(graph) = graph else { break };
        leaks.push(reporter.graph(&graph));
    }
    let mut placed: Vec<(Place, Vec<Finding>)> = Vec::new();
    for finding in findings {
        let at = place(book, symbols, &finding);
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
    leaks.extend(placed.iter().map(|(place, members)| reporter.sites(*place, members)));
    leaks
}

/// When the device is full if all that leaks on it goes on.
fn together(leaks: &mut [Leak], room: Option<Room>) {
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
