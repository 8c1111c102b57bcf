//! One program on CUDA and on Metal: what its call sites leak, and what the device reserves because
//! of it.
//!
//! All numbers are growth per step, over the compared steps of each run. *Leaked* is the growth of
//! the call sites of all leaks in PyTorch's blocks. *Pinned* is the growth of reserved bytes
//! (segments on CUDA, heaps on Metal). *Amplification* is pinned divided by leaked. Other growth in
//! the same steps is pinned as well, so it is reported beside it. Memory is reserved in whole
//! segments: the interval adds and removes the largest new segment.
//!
//! The amplification is unknown without steps or leaks, and if nothing new was reserved: the leak
//! may have used memory that was already reserved.
//!
//! The backends number devices, name files and report tensors differently. So leaks are matched by
//! call site, and quantities that cannot be compared are listed.

use schemars::JsonSchema;
use serde::Serialize;

use super::profile::Profile;
use super::{ComparedRange, SharedLineIds};
use crate::device::DeviceState;
use crate::pass::Analysis;
use crate::report::json_enum::json_enum;
use crate::report::{Leak, LeakKind, LeakShape, Quantity, Site, Worded};
use crate::state::live_set::LiveSet;
use crate::state::mps_samples::MpsSamples;
use crate::timeline::step_series::StepSeries;

json_enum! {
    /// The backend of a run.
    enum Backend {
        /// The CUDA backend of PyTorch.
        Cuda = "cuda",
        /// PyTorch's MPS backend on Metal.
        Mps = "mps",
    }
}

impl Backend {
    /// The backend of a trace.
    pub(super) fn of(analysis: &Analysis) -> Self {
        if analysis.is_metal() { Self::Mps } else { Self::Cuda }
    }
}

/// Leaks and reserved memory of two backends.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BackendComparison {
    /// The backends of the first and the second run.
    pub backends: [Backend; 2],
    /// Leaked and pinned memory of each device in both runs; `null` if a run has no such device.
    pub devices: Vec<[Option<PinnedByLeaks>; 2]>,
    /// Pinned bytes of each run per byte that leaked on CUDA, which records every tensor and not
    /// only buffers. Known if each run used one device and both numbers are known.
    pub pinned_per_leaked_tensor_byte: [Option<Quantity>; 2],
    /// Leaks in PyTorch's blocks by call site, worst first.
    pub leaks: Vec<LineOnBoth>,
    /// Quantities that cannot be compared across the backends.
    pub not_comparable: Vec<Worded<Incomparable>>,
}

/// A quantity that cannot be compared across backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Incomparable {
    /// Peaks and retained bytes: CUDA's are of tensors, Metal's of buffers that PyTorch keeps.
    Peaks,
    /// Allocations: Metal records new buffers only, not tensors that reuse one.
    Allocations,
    /// Call sites: a Metal buffer has the call site of its first tensor.
    CallSites,
    /// Rounding: Metal traces do not contain requested sizes.
    Rounding,
    /// Tensor bytes on Metal: PyTorch was never sampled.
    TensorBytes,
}

/// Growth of one device per step.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PinnedByLeaks {
    /// Ordinal of the GPU.
    pub device: u32,
    /// Growth is from the end of this step,
    pub first_step: Option<u64>,
    /// to the end of this one.
    pub last_step: Option<u64>,
    /// Growth of the call sites of leaks.
    pub leaked_bytes_per_step: Option<Quantity>,
    /// Growth of reserved bytes.
    pub pinned_bytes_per_step: Option<Quantity>,
    /// Growth of all memory of the process on the device.
    pub device_bytes_per_step: Option<Quantity>,
    /// Growth of allocated bytes without the leaks.
    pub other_growth_bytes_per_step: Option<Quantity>,
    /// Growth of PyTorch's own counter; known only if it was sampled in every step.
    pub sampled_tensor_bytes_per_step: Option<Quantity>,
    /// Pinned bytes divided by leaked bytes.
    pub amplification: Option<Quantity>,
    /// The amplification with one segment less and one more.
    pub amplification_interval: Option<[Quantity; 2]>,
    /// Why the amplification is unknown; `null` if it is known.
    pub unknown: Option<AmplificationGap>,
}

json_enum! {
    /// Why an amplification is unknown.
    enum AmplificationGap {
        /// No steps were found.
        NoSteps = "no_steps",
        /// There are too few steps.
        TooFewSteps = "too_few_steps",
        /// The reserved bytes are unknown.
        ReservedUnknown = "reserved_unknown",
        /// No leak was found.
        NoLeak = "no_leak",
        /// The leaking call sites did not grow over these steps.
        NoLeakGrowth = "no_leak_growth",
        /// Nothing new was reserved: the leak used memory that was already reserved.
        NothingReserved = "nothing_reserved",
    }
}

/// A call site that leaks in one of the runs, or in both.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LineOnBoth {
    /// The leak in the first run.
    pub before: Option<LeakingLine>,
    /// The leak in the second run.
    pub after: Option<LeakingLine>,
}

/// A leak in one of the runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeakingLine {
    /// The call site that leaks.
    pub site: Site,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The same as in the report.
    pub shape: LeakShape,
    /// Its growth in bytes.
    pub bytes_per_step: Option<Quantity>,
    /// Its growth in blocks.
    pub blocks_per_step: Option<Quantity>,
    /// Bytes at the end of the last complete step.
    pub bytes: u64,
}

impl BackendComparison {
    /// All sites of run 0 or 1.
    pub(super) fn sites_of(&mut self, run: usize) -> impl Iterator<Item = &mut Site> {
        let sides = self.leaks.iter_mut();
        sides
            .filter_map(move |line| if run == 0 { line.before.as_mut() } else { line.after.as_mut() })
            .map(|leaking| &mut leaking.site)
    }
}

/// `None` if both runs use the same backend.
pub(super) fn across(
    before: &Profile<'_>,
    after: &Profile<'_>,
    names: &SharedLineIds<'_>,
) -> Option<BackendComparison> {
    let runs = [before, after];
    let backends = runs.map(|run| Backend::of(run.analysis));
    if backends[0] == backends[1] {
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
    let cuda = usize::from(backends[0] == Backend::Mps);
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
        backends,
        devices: rows,
        leaks: lines(before, after, names),
        not_comparable: not_comparable(runs[1 - cuda]),
    })
}

/// Leaks in PyTorch's blocks; the same call site is one row, whatever its device.
fn lines(before: &Profile<'_>, after: &Profile<'_>, names: &SharedLineIds<'_>) -> Vec<LineOnBoth> {
    let tensors = |profile: &Profile<'_>| -> Vec<Leak> {
        profile.leaks.iter().filter(|leak| leak.kind == LeakKind::Tensors).cloned().collect()
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

/// The series of the call sites that leak tensors on a device.
fn leaking_series<'a>(profile: &Profile<'_>, ordinal: u8, live_set: &'a LiveSet) -> Vec<&'a StepSeries> {
    let findings = profile.leaks.iter();
    let found = findings.filter(|leak| leak.kind == LeakKind::Tensors && leak.device == u32::from(ordinal));
    let mut sites: Vec<_> =
        found.flat_map(|leak| &leak.stacks).map(|(stack, _)| live_set.site_of(*stack)).collect();
    sites.sort_unstable();
    sites.dedup();
    let leaking = live_set.sites().filter(|(site, _)| sites.binary_search(site).is_ok());
    leaking.map(|(_, one)| one.series()).collect()
}

fn of_device(profile: &Profile<'_>, ordinal: u8, state: &DeviceState) -> PinnedByLeaks {
    let mut result = PinnedByLeaks {
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
        unknown: Some(AmplificationGap::NoSteps),
    };
    let Some(steps) = profile.steps.and_then(ComparedRange::of_run) else { return result };
    let live_set = state.main();
    let (live, unused, non_torch) = (live_set.series(), state.unused.unused(), state.unused.non_torch());
    let leaking = leaking_series(profile, ordinal, live_set);
    // Long series keep every n-th step only: compare at steps that all of them have.
    let all = leaking.iter().copied().chain([live, unused, non_torch]);
    let every = all.map(StepSeries::stride).max().unwrap_or(1);
    let (first, last) = (steps.first.next_multiple_of(every), steps.last() / every * every);
    result.unknown = Some(AmplificationGap::TooFewSteps);
    let Some(count) = last.checked_sub(first).filter(|count| *count > 0) else { return result };
    (result.first_step, result.last_step) = (Some(u64::from(first)), Some(u64::from(last)));
    let grown = |of: &dyn Fn(u32) -> u64| of(last) as f64 - of(first) as f64;
    let bytes = |series: &StepSeries, step: u32| series.at(step).bytes;
    let sum = |step: u32| leaking.iter().fold(0u64, |sum, series| sum.saturating_add(bytes(series, step)));
    let reserved = |step: u32| bytes(live, step).saturating_add(bytes(unused, step));
    let device = |step: u32| reserved(step).saturating_add(bytes(non_torch, step));
    let per_step = |grown: f64| Some(Quantity(grown / f64::from(count)));
    let (leaked, all_live) = (grown(&sum), grown(&|step| bytes(live, step)));
    result.leaked_bytes_per_step = per_step(leaked).filter(|_| !leaking.is_empty());
    result.other_growth_bytes_per_step = per_step(all_live - leaked);
    let sampled = profile.analysis.analyses.find::<MpsSamples>();
    let sampled = sampled.and_then(|samples| samples.at_steps(first, last));
    result.sampled_tensor_bytes_per_step =
        sampled.and_then(|[first, last]| per_step(last as f64 - first as f64));
    if !profile.analysis.knows_reserved() {
        result.unknown = Some(AmplificationGap::ReservedUnknown);
        return result;
    }
    let held = grown(&reserved);
    result.pinned_bytes_per_step = per_step(held);
    result.device_bytes_per_step = per_step(grown(&device));
    result.unknown = match (leaking.is_empty(), leaked > 0.0, held > 0.0) {
        (true, ..) => Some(AmplificationGap::NoLeak),
        (_, false, _) => Some(AmplificationGap::NoLeakGrowth),
        (.., false) => Some(AmplificationGap::NothingReserved),
        _ => None,
    };
    if result.unknown.is_none() {
        result.amplification = Some(Quantity(held / leaked));
        let segment = state.unused.largest_since(first).map(|bytes| bytes as f64);
        let bounds =
            |segment: f64| [held - segment, held + segment].map(|held| Quantity(held.max(0.0) / leaked));
        result.amplification_interval = segment.map(bounds);
    }
    result
}

/// The quantities that cannot be compared with those of a Metal run.
fn not_comparable(metal: &Profile<'_>) -> Vec<Worded<Incomparable>> {
    let mut all =
        vec![Incomparable::Peaks, Incomparable::Allocations, Incomparable::CallSites, Incomparable::Rounding];
    if metal.analysis.analyses.find::<MpsSamples>().is_none_or(|samples| samples.samples == 0) {
        all.push(Incomparable::TensorBytes);
    }
    all.into_iter().map(Worded::from).collect()
}
