//! Measures a run for a new budget file that this run keeps to.
//!
//! Below the totals, the file limits functions instead of lines, because lines move with every
//! edit. The command writes the file.

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_format::source_path::with_slashes;

use super::BudgetQuantity;
use super::check::possible_leaks;
use super::measure::{BudgetMeasurer, MeasureResult};
use super::outcome::{UnknownValue, ValueShare};
use super::pattern::SitePattern;
use crate::compare::{Profile, TotalQuantity};
use crate::report::Site;

/// Most functions with a limit.
const MAX_SITES: usize = 10;
/// A function gets a limit if it has more than one part in so many of the peak, or of the bytes
/// allocated in a step.
const MIN_PART: u64 = 100;

/// The values for a new budget file.
#[derive(Clone, Debug)]
pub struct BudgetDraft {
    /// True for a trace of Metal instead of CUDA.
    pub is_metal: bool,
    /// Each quantity and its value, in the order of the file.
    pub values: Vec<(BudgetQuantity, Result<u64, UnknownValue>)>,
    /// The functions with the largest shares, largest first.
    pub sites: Vec<SiteDraft>,
    /// The leaks of the run, and what may be one, in bytes: the limits include them.
    pub leaks: Vec<ValueShare>,
}

/// The values of one function.
#[derive(Clone, Debug)]
pub struct SiteDraft {
    /// The pattern that matches the function.
    pub pattern: String,
    /// Bytes at the peak.
    pub peak_bytes: u64,
    /// Bytes allocated in the median step; `None` without steps.
    pub bytes_per_step: Option<u64>,
}

/// Measures a run for a new budget file.
pub fn draft_budget(profile: &Profile<'_>) -> BudgetDraft {
    use BudgetQuantity as Q;
    let measure = BudgetMeasurer::new(profile);
    let values = [
        (Q::PeakLive, measure.peak_live()),
        (Q::PeakReserved, measure.peak_reserved()),
        (Q::PeakDevice, measure.peak_device()),
        (Q::GapBytes, measure.gap()),
        (Q::LeaksCount, measure.leak_count()),
        (Q::LeaksBytesPerStep, measure.leak_rate()),
        (Q::StepPeak, measure.step_peak()),
        (Q::StepBytes, measure.step_allocated(|held| held.bytes)),
        (Q::StepAllocations, measure.step_allocated(|held| held.blocks)),
    ];
    let certain = profile.leaks.iter().map(|leak| {
        let site = Site { stack: Vec::new(), ..leak.site.clone() };
        ValueShare { site: Some(site), name: None, amount: leak.bytes }
    });
    BudgetDraft {
        is_metal: profile.analysis.is_metal(),
        values: values.map(|(quantity, result)| (quantity, result.map(|measured| measured.value))).into(),
        sites: site_drafts(profile, &measure),
        leaks: certain.chain(possible_leaks(profile)).collect(),
    }
}

fn site_drafts(profile: &Profile<'_>, measure: &BudgetMeasurer<'_>) -> Vec<SiteDraft> {
    let value = |result: MeasureResult| result.map_or(0, |measured| measured.value);
    let peak = profile.devices.values().filter_map(|device| device.totals.get(&TotalQuantity::PeakLive));
    let peak = peak.copied().max().unwrap_or_else(|| value(measure.peak_device()));
    let in_a_step = value(measure.step_allocated(|held| held.bytes));
    let mut found = Vec::new();
    for text in patterns(profile) {
        let pattern = SitePattern::new(&text);
        let held = value(measure.site_at_peak(&pattern));
        let allocated = value(measure.site_allocated(&pattern, |held| held.bytes));
        if held > peak / MIN_PART || allocated > in_a_step / MIN_PART {
            let bytes_per_step = profile.steps.map(|_| allocated);
            found.push(SiteDraft { pattern: text, peak_bytes: held, bytes_per_step });
        }
    }
    found.sort_by(|a, b| {
        let key = |site: &SiteDraft| (site.peak_bytes, site.bytes_per_step);
        key(b).cmp(&key(a)).then_with(|| a.pattern.cmp(&b.pattern))
    });
    found.truncate(MAX_SITES);
    found
}

/// A pattern for each function that allocated.
fn patterns(profile: &Profile<'_>) -> BTreeSet<String> {
    let sites = || profile.lines.iter().filter(|line| !line.devices.is_empty()).map(|line| &line.site);
    let file_of = |site: &Site| {
        let file = site.module.as_deref().or(site.file.as_deref())?;
        Some(with_slashes(file).into_owned())
    };
    let files: BTreeSet<String> = sites().filter_map(file_of).collect();
    let short = short_names(&files);
    let pattern = |site: &Site| {
        let file = short.get(&file_of(site)?)?.clone();
        let text =
            site.function.as_ref().map_or_else(|| file.clone(), |function| format!("{file}:{function}"));
        // The budget file is text: names with control characters get no limit.
        (!text.chars().any(char::is_control)).then_some(text)
    };
    sites().filter_map(pattern).collect()
}

/// For each path, the shortest tail of components that is the tail of no other path.
fn short_names(files: &BTreeSet<String>) -> BTreeMap<String, String> {
    let tail = |path: &str, components: usize| {
        let begin = path.rmatch_indices('/').nth(components - 1).map_or(0, |(at, _)| at + 1);
        path[begin..].to_owned()
    };
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for path in files {
        for components in 1..=path.matches('/').count() + 1 {
            *ends.entry(tail(path, components)).or_default() += 1;
        }
    }
    let short = |path: &String| {
        let tails = (1..=path.matches('/').count() + 1).map(|components| tail(path, components));
        let own = tails.into_iter().find(|tail| ends.get(tail) == Some(&1) && !tail.is_empty());
        (path.clone(), own.unwrap_or_else(|| path.clone()))
    };
    files.iter().map(short).collect()
}
