//! One program on two backends: what its lines leak, and what the device holds because of it.
//!
//! Definitions, of a device over the steps of its own run that count (from the end of the first to that of the last, both runs each for
//! itself). *Leaked*: growth of what the lines of all findings in tensors hold. *Pinned*: growth of what is reserved (segments on CUDA,
//! heaps on Metal). *Amplification*: pinned over leaked. Whatever else grew in these steps is in what is pinned as well, so
//! *other growth*, that of all live bytes less what leaked, is told beside it. Reserved bytes come in whole segments: the interval is one
//! segment, the largest that came, to both sides.
//!
//! Unknown where there are no steps, no finding, or nothing new was reserved: what leaks may have gone into memory that was there.
//!
//! Constraint: backends number devices, name files and tell tensors in ways of their own. Consequence: findings are matched by their line,
//! the device's number is that of each run, and what cannot be held against each other is said in words.

use serde::Serialize;

use super::profile::Profile;
use super::{ComparedRange, SharedLineIds};
use crate::leak::TENSORS;
use crate::report::{Leak, Quantity, Site};
use crate::state::device::DeviceState;
use crate::timeline::step_series::StepSeries;

/// Two backends side by side.
#[derive(Clone, Debug, Serialize)]
pub struct BackendComparison {
    /// `cuda` or `mps`, of the first run and of the second.
    pub backends: [&'static str; 2],
    /// What leaked and what was pinned, by device: of the first run, of the second. `null` where a run has no such device.
    pub devices: Vec<[Option<PinnedByLeaks>; 2]>,
    /// What is pinned on each of them over what leaked on CUDA, which tells each tensor and not only buffers: how much of a device one
    /// leaked byte costs. Known where each run used one device, and both numbers are.
    pub pinned_per_leaked_tensor_byte: [Option<Quantity>; 2],
    /// Findings in tensors by line, worst first.
    pub leaks: Vec<LineOnBoth>,
    /// What the two runs do not tell in the same way: one sentence each.
    pub not_comparable: Vec<String>,
}

/// What a device held because of what leaked.
#[derive(Clone, Debug, Serialize)]
pub struct PinnedByLeaks {
    /// Ordinal.
    pub device: u32,
    /// From the end of this step.
    pub first_step: Option<u64>,
    /// To the end of this one.
    pub last_step: Option<u64>,
    /// Growth of what the lines of findings hold, in a step.
    pub leaked_bytes_per_step: Option<Quantity>,
    /// Growth of what is reserved, in a step.
    pub pinned_bytes_per_step: Option<Quantity>,
    /// Growth of all memory of the process on the device, in a step.
    pub device_bytes_per_step: Option<Quantity>,
    /// Growth of live bytes beside what leaked, in a step.
    pub other_growth_bytes_per_step: Option<Quantity>,
    /// Growth of what tensors hold by PyTorch's own account, in a step; known only where it was sampled in every step.
    pub sampled_tensor_bytes_per_step: Option<Quantity>,
    /// Pinned over leaked.
    pub amplification: Option<Quantity>,
    /// One segment less and one more.
    pub amplification_interval: Option<[Quantity; 2]>,
    /// Why it is not known.
    pub unknown: Option<&'static str>,
}

/// A line that leaks on one of them, or on both.
#[derive(Clone, Debug, Serialize)]
pub struct LineOnBoth {
    /// In the first run.
    pub before: Option<LeakingLine>,
    /// In the second run.
    pub after: Option<LeakingLine>,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct LeakingLine {
    /// Whose.
    pub site: Site,
    /// Ordinal.
    pub device: u32,
    /// As in the report.
    pub shape: &'static str,
    /// Growth.
    pub bytes_per_step: Option<Quantity>,
    /// Growth.
    pub blocks_per_step: Option<Quantity>,
    /// At the end of the last complete step.
    pub bytes: u64,
}

impl BackendComparison {
    /// Every site of one of the runs: 0 or 1.
    pub(super) fn sites_of(&mut self, run: usize) -> impl Iterator<Item = &mut Site> {
        let sides = self.leaks.iter_mut();
        sides
            .filter_map(move |line| if run == 0 { line.before.as_mut() } else { line.after.as_mut() })
            .map(|leaking| &mut leaking.site)
    }
}

/// Only where the two runs are of different backends.
pub(super) fn across(
    before: &Profile<'_>,
    after: &Profile<'_>,
    names: &SharedLineIds<'_>,
) -> Option<BackendComparison> {
    let runs = [before, after];
    let is_metal = runs.map(|run| run.analysis.vocabulary().is_metal);
    if is_metal[0] == is_metal[1] {
        return None;
    }
    let mut devices = runs.map(|run| pinned(run).into_iter());
    let mut rows = Vec::new();
    loop {
        let row = [devices[0].next(), devices[1].next()];
        if row.iter().all(Option::is_none) {
            break;
        }
        rows.push(row);
    }
    let cuda = usize::from(is_metal[0]);
    let pinned_per_leaked_tensor_byte = match rows.as_slice() {
        [[Some(one), Some(other)]] => {
            let leaked = [one, other][cuda].leaked_bytes_per_step.filter(|leaked| leaked.0 > 0.0);
            [one, other].map(|run| {
                let pinned = run.pinned_bytes_per_step.filter(|pinned| pinned.0 > 0.0)?;
                Some(Quantity(pinned.0 / leaked?.0))
            })
        }
        _ => [None, None],
    };
    Some(BackendComparison {
        pinned_per_leaked_tensor_byte,
        backends: is_metal.map(|is_metal| if is_metal { "mps" } else { "cuda" }),
        devices: rows,
        leaks: lines(before, after, names),
        not_comparable: not_comparable(runs[usize::from(is_metal[1])]),
    })
}

/// Findings in tensors; the same line is one row, whichever device it is on.
fn lines(before: &Profile<'_>, after: &Profile<'_>, names: &SharedLineIds<'_>) -> Vec<LineOnBoth> {
    let tensors = |profile: &Profile<'_>| -> Vec<Leak> {
        profile.leaks.iter().filter(|leak| leak.kind == TENSORS).cloned().collect()
    };
    let mut new = tensors(after);
    let mut rows = Vec::new();
    for leak in tensors(before) {
        let name = names.number_of_site(0, &leak.site).ok();
        let same = new.iter().position(|other| {
            is_same_line(&leak.site, &other.site)
                || name.is_some() && names.number_of_site(1, &other.site).ok() == name
        });
        let after = same.map(|at| leaking(&new.remove(at)));
        rows.push(LineOnBoth { before: Some(leaking(&leak)), after });
    }
    rows.extend(new.iter().map(|leak| LineOnBoth { before: None, after: Some(leaking(leak)) }));
    let bytes =
        |line: &LineOnBoth| [&line.before, &line.after].into_iter().flatten().map(|one| one.bytes).max();
    rows.sort_by_key(|line| std::cmp::Reverse(bytes(line)));
    rows
}

fn is_same_line(one: &Site, other: &Site) -> bool {
    one.file.is_some()
        && (&one.file, one.line, one.is_backward) == (&other.file, other.line, other.is_backward)
}

fn leaking(leak: &Leak) -> LeakingLine {
    LeakingLine {
        site: leak.site.clone(),
        device: leak.device,
        shape: leak.shape,
        bytes_per_step: leak.bytes_per_step,
        blocks_per_step: leak.blocks_per_step,
        bytes: leak.bytes,
    }
}

fn pinned(profile: &Profile<'_>) -> Vec<PinnedByLeaks> {
    let with_torch = profile.analysis.visible_devices().filter(|(_, state)| state.has_torch());
    with_torch.map(|(ordinal, state)| of_device(profile, ordinal, state)).collect()
}

fn of_device(profile: &Profile<'_>, ordinal: u8, state: &DeviceState) -> PinnedByLeaks {
    let mut told = PinnedByLeaks {
        device: u32::from(ordinal),
        first_step: None,
        last_step: None,
        leaked_bytes_per_step: None,
        pinned_bytes_per_step: None,
        device_bytes_per_step: None,
        other_growth_bytes_per_step: None,
        sampled_tensor_bytes_per_step: None,
        amplification: None,
        amplification_interval: None,
        unknown: Some("no steps were recognised"),
    };
    let Some(steps) = profile.steps.and_then(ComparedRange::of_run) else { return told };
    let live_set = state.main();
    let (live, unused, non_torch) = (live_set.series(), state.unused.unused(), state.unused.non_torch());
    let findings = profile.leaks.iter();
    let found = findings.filter(|leak| leak.kind == TENSORS && leak.device == u32::from(ordinal));
    let mut sites: Vec<_> = found.flat_map(|leak| &leak.sites).map(|(site, _)| *site).collect();
    sites.sort_unstable();
    sites.dedup();
    let leaking: Vec<&StepSeries> = live_set
        .sites()
        .filter(|(site, _)| sites.binary_search(site).is_ok())
        .map(|(_, one)| one.series())
        .collect();
    // Where one of the series has not kept all steps, those that all of them have.
    let all = leaking.iter().copied().chain([live, unused, non_torch]);
    let every = all.map(StepSeries::stride).max().unwrap_or(1);
    let (first, last) = (steps.first.next_multiple_of(every), steps.last() / every * every);
    told.unknown = Some("too few steps");
    let Some(count) = last.checked_sub(first).filter(|count| *count > 0) else { return told };
    (told.first_step, told.last_step) = (Some(u64::from(first)), Some(u64::from(last)));
    let grown = |of: &dyn Fn(u32) -> u64| of(last) as f64 - of(first) as f64;
    let bytes = |series: &StepSeries, step: u32| series.at(step).bytes;
    let sum = |step: u32| leaking.iter().fold(0u64, |sum, series| sum.saturating_add(bytes(series, step)));
    let reserved = |step: u32| bytes(live, step).saturating_add(bytes(unused, step));
    let device = |step: u32| reserved(step).saturating_add(bytes(non_torch, step));
    let per_step = |grown: f64| Some(Quantity(grown / f64::from(count)));
    let (leaked, all_live) = (grown(&sum), grown(&|step| bytes(live, step)));
    told.leaked_bytes_per_step = per_step(leaked).filter(|_| !leaking.is_empty());
    told.other_growth_bytes_per_step = per_step(all_live - leaked);
    let sampled = profile.analysis.mps_samples.at_steps(first, last);
    told.sampled_tensor_bytes_per_step =
        sampled.and_then(|[first, last]| per_step(last as f64 - first as f64));
    if !profile.analysis.knows_reserved() {
        told.unknown = Some("what is reserved is not known");
        return told;
    }
    let held = grown(&reserved);
    told.pinned_bytes_per_step = per_step(held);
    told.device_bytes_per_step = per_step(grown(&device));
    told.unknown = match (leaking.is_empty(), leaked > 0.0, held > 0.0) {
        (true, ..) => Some("no leak was found"),
        (_, false, _) => Some("what the leaking lines hold did not grow over these steps"),
        (.., false) => Some("nothing new was reserved: what leaked went into memory that was there"),
        _ => None,
    };
    if told.unknown.is_none() {
        told.amplification = Some(Quantity(held / leaked));
        let segment = state.unused.largest_since(first).map(|bytes| bytes as f64);
        let bounds =
            |segment: f64| [held - segment, held + segment].map(|held| Quantity(held.max(0.0) / leaked));
        told.amplification_interval = segment.map(bounds);
    }
    told
}

/// What the runs tell in different ways. `metal` is the one on Apple's GPU.
fn not_comparable(metal: &Profile<'_>) -> Vec<String> {
    let mut all = vec![
        "peaks and what is retained: CUDA's are of tensors, Metal's of buffers, which PyTorch keeps when no tensor uses them".to_owned(),
        "allocations and bytes allocated in a step: on Metal only new buffers are told, not tensors that get one that was kept".to_owned(),
        "lines: on Metal a buffer has the line of the tensor that it was made for, also while a later tensor of another line holds it; a leak \
         that takes a kept buffer then shows at the line that needed a new one"
            .to_owned(),
        "rounding: what was asked for is not told on Metal".to_owned(),
    ];
    if metal.analysis.mps_samples.samples == 0 {
        all.push(
            "what tensors held on Metal: PyTorch was never asked (gpumemtrace.step() asks it)".to_owned(),
        );
    }
    all
}
