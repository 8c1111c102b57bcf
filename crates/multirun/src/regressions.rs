//! What grew from one version of a program to the next.
//!
//! A summary keeps the largest call sites of a trace, so growth is what is certain: the least that
//! a function can have now, minus the most that it can have had before. A recording that was cut,
//! or of a program that failed, bounds nothing from above, so others are never compared with it.

use std::collections::{BTreeMap, BTreeSet};

use crate::archive::ArchivedRun;
use crate::spread::median;
use crate::trace_summary::{DeviceSummary, SitePeak, TraceSummary};

/// Least growth that is reported, in bytes, and as a part of the bytes before.
const LEAST_GROWTH_BYTES: u64 = 1 << 20;
const LEAST_GROWTH_SHARE: f64 = 0.05;

/// What grew between consecutive versions of each program, and what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveGrowth {
    /// Functions that grew, the latest version first and then the largest growth.
    pub regressions: Vec<Regression>,
    /// Each two consecutive versions of a program, the latest first.
    pub pairs: Vec<VersionPair>,
    /// Indices of runs that are in no version: their program or their start is unknown.
    pub unplaced: Vec<usize>,
}

/// Two consecutive versions of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionPair {
    /// Index of the last run of the version before.
    pub before: usize,
    /// Index of the first run of the version.
    pub after: usize,
    /// How much of both was compared, or why nothing was.
    pub outcome: PairOutcome,
}

/// How much of two versions was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PairOutcome {
    /// Nothing: no trace of the version before is complete and ended normally.
    NoWholeTrace,
    /// Nothing: the versions have no rank in common, of those with a complete trace before.
    NoCommonRank,
    /// Nothing: no rank has a known peak of a GPU in both.
    NoKnownPeak,
    /// Some ranks. The others are in one version only, or have no complete trace before that ended
    /// normally.
    SomeRanks,
    /// All ranks of both versions.
    AllRanks,
}

impl PairOutcome {
    /// False if nothing was compared.
    #[must_use]
    pub fn is_compared(self) -> bool {
        matches!(self, Self::SomeRanks | Self::AllRanks)
    }
}

/// Which bytes of several GPUs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    /// The median over all GPUs.
    Median,
    /// The most on any GPU, because the median did not grow.
    Most,
}

/// A function that has more memory at the peak in one version of a program than in the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// The program, by its command line.
    pub program: String,
    /// Index of the last run of the version before.
    pub before: usize,
    /// Index of the first run of the version.
    pub after: usize,
    /// The line of the function that changed, such as `train.py:14 in step()`: of several, the one
    /// with the most bytes.
    pub line: String,
    /// Which bytes these are, of several GPUs.
    pub chosen: GpuChoice,
    /// The median over GPUs before, at most; or the most bytes.
    pub before_bytes: u64,
    /// True if the bytes before may be fewer: a trace keeps only its largest lines.
    pub before_is_bound: bool,
    /// The median over GPUs, at least; or the most bytes.
    pub after_bytes: u64,
    /// True if the bytes may be more.
    pub after_is_bound: bool,
    /// False if a trace of the version is incomplete, or did not end normally.
    pub after_is_whole: bool,
}

impl Regression {
    /// The growth, at least.
    #[must_use]
    pub fn growth_bytes(&self) -> u64 {
        self.after_bytes.saturating_sub(self.before_bytes)
    }
}

/// Consecutive runs of one program at one commit. A run without a commit is a version of its own.
struct Version<'a> {
    runs: Vec<(usize, &'a ArchivedRun)>,
}

/// What grew between consecutive versions of each program. Runs are in the order of
/// their start, as in a [`RunArchive`](crate::RunArchive).
///
/// Memory is compared by function, because lines move between commits, and over the ranks that both
/// versions have.
#[must_use]
pub fn regressions(runs: &[ArchivedRun]) -> ArchiveGrowth {
    let mut growth = ArchiveGrowth::default();
    let mut versions: BTreeMap<String, Vec<Version<'_>>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        let Some(program) = run.program().filter(|_| run.started_unix_ns().is_some()) else {
            growth.unplaced.push(index);
            continue;
        };
        let of_program = versions.entry(program).or_default();
        let is_same = |version: &Version<'_>| {
            let commit = version.runs[0].1.git_commit();
            commit.is_some() && commit == run.git_commit()
        };
        match of_program.last_mut().filter(|version| is_same(version)) {
            Some(version) => version.runs.push((index, run)),
            None => of_program.push(Version { runs: vec![(index, run)] }),
        }
    }
    for (program, of_program) in &versions {
        for pair in of_program.windows(2) {
            let [before, after] = pair else { continue };
            let (Some((last, _)), Some((first, _))) = (before.runs.last(), after.runs.first()) else {
                continue;
            };
            let measured = CommonRanks::of(before, after);
            let outcome = measured.as_ref().map_or_else(|why| *why, |ranks| ranks.outcome);
            growth.pairs.push(VersionPair { before: *last, after: *first, outcome });
            if let Ok(ranks) = measured {
                growth.regressions.extend(ranks.grown(program, *last, *first));
            }
        }
    }
    growth.pairs.sort_by_key(|pair| std::cmp::Reverse((pair.after, pair.before)));
    growth.regressions.sort_by(|one, other| {
        let order = |regression: &Regression| (regression.after, regression.growth_bytes());
        order(other).cmp(&order(one)).then_with(|| one.line.cmp(&other.line))
    });
    growth
}

/// Traces of a version by rank, those without a rank together.
type TracesOfRanks<'a> = BTreeMap<Option<u64>, Vec<&'a TraceSummary>>;

impl<'a> Version<'a> {
    fn ranks(&self) -> TracesOfRanks<'a> {
        let mut ranks = TracesOfRanks::new();
        for trace in self.runs.iter().flat_map(|(_, run)| run.summary.traces()) {
            ranks.entry(trace.rank).or_default().push(trace);
        }
        ranks
    }
}

/// The GPUs of the ranks that two versions have in common.
struct CommonRanks<'a> {
    /// Of complete traces that ended normally.
    before: Vec<&'a DeviceSummary>,
    after: Vec<&'a DeviceSummary>,
    after_is_whole: bool,
    outcome: PairOutcome,
}

impl<'a> CommonRanks<'a> {
    /// `Err` if nothing can be compared, with the reason.
    fn of(before: &Version<'a>, after: &Version<'a>) -> Result<Self, PairOutcome> {
        let (mut old, mut new) = (before.ranks(), after.ranks());
        let all: BTreeSet<Option<u64>> = old.keys().chain(new.keys()).copied().collect();
        for traces in old.values_mut() {
            traces.retain(|trace| trace.is_whole());
        }
        old.retain(|_, traces| !traces.is_empty());
        if old.is_empty() {
            return Err(PairOutcome::NoWholeTrace);
        }
        old.retain(|rank, _| new.contains_key(rank));
        new.retain(|rank, _| old.contains_key(rank));
        if old.is_empty() {
            return Err(PairOutcome::NoCommonRank);
        }
        let mut common = Self {
            before: Vec::new(),
            after: Vec::new(),
            after_is_whole: true,
            outcome: PairOutcome::AllRanks,
        };
        let mut compared = 0;
        for (old, new) in old.values().zip(new.values_mut()) {
            if new.iter().any(|trace| trace.is_whole()) {
                new.retain(|trace| trace.is_whole());
            }
            let (old_devices, new_devices) = (devices_of(old), devices_of(new));
            if old_devices.is_empty() || new_devices.is_empty() {
                continue;
            }
            compared += 1;
            common.before.extend(old_devices);
            common.after.extend(new_devices);
            common.after_is_whole &= new.iter().all(|trace| trace.is_whole());
        }
        if compared == 0 {
            return Err(PairOutcome::NoKnownPeak);
        }
        if compared < all.len() {
            common.outcome = PairOutcome::SomeRanks;
        }
        Ok(common)
    }

    fn grown(&self, program: &str, before: usize, after: usize) -> Vec<Regression> {
        let listed = self.after.iter().flat_map(|device| &device.peak_sites);
        let functions: BTreeSet<(&str, &str)> = listed.map(|site| function_of(&site.site.text)).collect();
        let has_unlisted =
            |devices: &[&DeviceSummary]| devices.iter().any(|device| device.more_peak_sites > 0);
        let mut found = Vec::new();
        for function in functions {
            let at_most = |device: &&DeviceSummary| {
                listed_bytes(device, function).saturating_add(most_unlisted_bytes(device))
            };
            let at_least = |device: &&DeviceSummary| listed_bytes(device, function);
            let bytes_before = FunctionBytes::of(self.before.iter().map(at_most));
            let bytes_after = FunctionBytes::of(self.after.iter().map(at_least));
            let (Some(old), Some(new)) = (bytes_before, bytes_after) else { continue };
            let grows = |before_bytes: u64, after_bytes: u64| {
                let growth_bytes = after_bytes.saturating_sub(before_bytes);
                growth_bytes >= LEAST_GROWTH_BYTES
                    && growth_bytes as f64 >= LEAST_GROWTH_SHARE * before_bytes as f64
            };
            let (before_bytes, after_bytes, chosen) = if grows(old.median, new.median) {
                (old.median, new.median, GpuChoice::Median)
            } else if grows(old.most, new.most) {
                (old.most, new.most, GpuChoice::Most)
            } else {
                continue;
            };
            let Some(line) = self.line_to_name(function) else { continue };
            found.push(Regression {
                program: program.to_owned(),
                before,
                after,
                line: line.site.text.clone(),
                chosen,
                before_bytes,
                before_is_bound: has_unlisted(&self.before),
                after_bytes,
                after_is_bound: has_unlisted(&self.after),
                after_is_whole: self.after_is_whole,
            });
        }
        found
    }

    /// The largest line of a function of those with bytes that no line of it had before; the
    /// numbers of lines change. If all had, the largest line.
    fn line_to_name(&self, function: (&str, &str)) -> Option<&'a SitePeak> {
        let lines_on = |devices: &[&'a DeviceSummary]| {
            let all: Vec<&SitePeak> = devices.iter().flat_map(|device| &device.peak_sites).collect();
            all.into_iter().filter(move |site| function_of(&site.site.text) == function)
        };
        let known: BTreeSet<u64> = lines_on(&self.before).map(|site| site.bytes).collect();
        let changed = lines_on(&self.after).filter(|site| !known.contains(&site.bytes));
        changed.max_by_key(|site| site.bytes).or_else(|| lines_on(&self.after).max_by_key(|site| site.bytes))
    }
}

/// The bytes of a function over GPUs.
struct FunctionBytes {
    median: u64,
    most: u64,
}

impl FunctionBytes {
    /// `None` without any GPU.
    fn of(bytes: impl Iterator<Item = u64>) -> Option<Self> {
        let mut bytes: Vec<u64> = bytes.collect();
        bytes.sort_unstable();
        Some(Self { median: median(&bytes)?, most: *bytes.last()? })
    }
}

/// The GPUs with a known peak.
fn devices_of<'a>(traces: &[&'a TraceSummary]) -> Vec<&'a DeviceSummary> {
    let devices = traces.iter().flat_map(|trace| &trace.devices);
    devices.filter(|device| device.peak_live_bytes.is_some() && !device.peak_sites.is_empty()).collect()
}

/// The bytes of a function at the peak, in the call sites that the summary keeps.
fn listed_bytes(device: &DeviceSummary, function: (&str, &str)) -> u64 {
    let of_function = device.peak_sites.iter().filter(|site| function_of(&site.site.text) == function);
    of_function.fold(0, |sum, site| sum.saturating_add(site.bytes))
}

/// The most bytes that all call sites beyond those of the summary can have together: each at most
/// those of the smallest one kept, and all at most the rest of the peak.
fn most_unlisted_bytes(device: &DeviceSummary) -> u64 {
    let smallest = device.peak_sites.iter().map(|site| site.bytes).min().unwrap_or(u64::MAX);
    let listed = device.peak_sites.iter().fold(0, |sum: u64, site| sum.saturating_add(site.bytes));
    // Of a damaged trace, the sites may have more than the peak.
    let rest = device.peak_live_bytes.and_then(|peak| peak.checked_sub(listed));
    device.more_peak_sites.saturating_mul(smallest).min(rest.unwrap_or(u64::MAX))
}

/// `train.py:14 in step()` as the texts before and after the number of the line.
fn function_of(site: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(at) = site[from..].find(':').map(|at| from + at) {
        let digits = site[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let rest = &site[at + 1 + digits..];
        if digits > 0 && (rest.is_empty() || rest.starts_with(' ')) {
            return (&site[..at], rest);
        }
        from = at + 1;
    }
    (site, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_split_at_the_number_of_the_line() {
        assert_eq!(function_of("a/t.py:14 in step()"), ("a/t.py", " in step()"));
        assert_eq!(function_of("t.py:14"), ("t.py", ""));
        assert_eq!(function_of("C:x:y"), ("C:x:y", ""));
        assert_eq!(function_of("libc.so.6 in std::f(int)"), ("libc.so.6 in std::f(int)", ""));
    }
}
