//! Many runs in the order of time, and what grew from one version of a program to the next.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::spread::median;
use crate::summary::Summary;
use crate::trace_summary::{DeviceSummary, SitePeak, TraceSummary};

/// Least growth that is reported, in bytes, and as a part of the bytes before.
const LEAST_GROWTH_BYTES: u64 = 1 << 20;
const LEAST_GROWTH_SHARE: f64 = 0.05;

/// A run of a lake: the summaries of its ranks under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct LakeRun {
    /// The name of the run.
    pub name: String,
    /// The summaries of its ranks.
    pub summary: Summary,
}

impl LakeRun {
    /// The start of the first rank, in nanoseconds since the Unix epoch; `None` if unknown.
    #[must_use]
    pub fn started_unix_ns(&self) -> Option<u64> {
        self.summary.traces().iter().filter_map(|trace| trace.process.started_unix_ns).min()
    }

    /// The commit of the program; `None` if it is unknown, or if ranks differ.
    #[must_use]
    pub fn git_commit(&self) -> Option<&str> {
        self.common(|trace| trace.git_commit.as_deref())
    }

    /// The command line of the lowest rank, with spaces; `None` if it is unknown.
    #[must_use]
    pub fn program(&self) -> Option<String> {
        let command = self.summary.traces().first()?.command.as_ref()?;
        Some(command.join(" "))
    }

    /// The value that all ranks have; `None` if it is unknown for all, or if ranks differ.
    pub fn common<'a>(&'a self, value: impl Fn(&'a TraceSummary) -> Option<&'a str>) -> Option<&'a str> {
        let mut values = self.summary.traces().iter().filter_map(value);
        let first = values.next()?;
        values.all(|other| other == first).then_some(first)
    }
}

/// Sorts runs by their start, those with an unknown one first.
pub fn sort_runs(runs: &mut [LakeRun]) {
    runs.sort_by(|one, other| {
        one.started_unix_ns().cmp(&other.started_unix_ns()).then_with(|| one.name.cmp(&other.name))
    });
}

/// A function that has more memory at the peak in one version of a program than in the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Regression {
    /// The program, by its command line.
    pub program: String,
    /// Index of the last run of the version before.
    pub before: usize,
    /// Index of the first run of the version.
    pub after: usize,
    /// The line of the function with the most bytes, such as `train.py:14 in step()`.
    pub line: String,
    /// The median over GPUs before. At most that: a trace keeps only its largest lines.
    pub before_bytes: u64,
    /// The median over GPUs. At least that.
    pub after_bytes: u64,
}

impl Regression {
    /// The growth of the median, at least.
    #[must_use]
    pub fn growth_bytes(&self) -> u64 {
        self.after_bytes.saturating_sub(self.before_bytes)
    }
}

/// Consecutive runs of one program at one commit. A run without a commit is a version of its own.
struct Version<'a> {
    runs: Vec<(usize, &'a LakeRun)>,
}

/// What grew between consecutive versions of each program, the latest version first and then the
/// largest growth. Runs must be sorted by [`sort_runs`].
///
/// Memory is compared by function, because lines move between commits.
#[must_use]
pub fn regressions(runs: &[LakeRun]) -> Vec<Regression> {
    let mut versions: BTreeMap<String, Vec<Version<'_>>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        let Some(program) = run.program() else { continue };
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
    let mut found = Vec::new();
    for (program, of_program) in &versions {
        for pair in of_program.windows(2) {
            found.extend(grown(program, &pair[0], &pair[1]));
        }
    }
    found.sort_by(|one, other| {
        let order = |regression: &Regression| (regression.after, regression.growth_bytes());
        order(other).cmp(&order(one)).then_with(|| one.line.cmp(&other.line))
    });
    found
}

fn grown(program: &str, before: &Version<'_>, after: &Version<'_>) -> Vec<Regression> {
    let (devices_before, devices_after) = (before.devices(), after.devices());
    let (Some((last, _)), Some((first, _))) = (before.runs.last(), after.runs.first()) else {
        return Vec::new();
    };
    let mut functions: BTreeMap<(&str, &str), &SitePeak> = BTreeMap::new();
    for site in devices_after.iter().flat_map(|device| &device.peak_sites) {
        let largest = functions.entry(function_of(&site.site.text)).or_insert(site);
        if site.bytes > largest.bytes {
            *largest = site;
        }
    }
    let mut found = Vec::new();
    for (function, largest) in functions {
        let Some(before_bytes) = median_bytes(&devices_before, function, Absent::AtMost) else { continue };
        let Some(after_bytes) = median_bytes(&devices_after, function, Absent::AtLeast) else { continue };
        let regression = Regression {
            program: program.to_owned(),
            before: *last,
            after: *first,
            line: largest.site.text.clone(),
            before_bytes,
            after_bytes,
        };
        let growth_bytes = regression.growth_bytes();
        let is_large = growth_bytes as f64 >= LEAST_GROWTH_SHARE * before_bytes as f64;
        if growth_bytes >= LEAST_GROWTH_BYTES && is_large {
            found.push(regression);
        }
    }
    found
}

impl<'a> Version<'a> {
    /// The GPUs of all ranks of all runs that have a peak.
    fn devices(&self) -> Vec<&'a DeviceSummary> {
        let traces = self.runs.iter().flat_map(|(_, run)| run.summary.traces());
        let devices = traces.flat_map(|trace| &trace.devices);
        devices.filter(|device| device.peak_live_bytes.is_some() && !device.peak_sites.is_empty()).collect()
    }
}

/// The bytes of a function that a list of the largest lines lacks.
#[derive(Clone, Copy)]
enum Absent {
    /// Those of the smallest line in the list, if lines were left out.
    AtMost,
    /// No bytes, which is a lower bound.
    AtLeast,
}

/// The median of a function's bytes over GPUs; `None` without any.
fn median_bytes(devices: &[&DeviceSummary], function: (&str, &str), absent: Absent) -> Option<u64> {
    let bytes_on = |device: &&DeviceSummary| {
        let of_function = |site: &&SitePeak| function_of(&site.site.text) == function;
        let listed: u64 =
            device.peak_sites.iter().filter(of_function).fold(0, |sum, site| sum.saturating_add(site.bytes));
        let smallest = device.peak_sites.last().map_or(0, |site| site.bytes);
        let unlisted = match absent {
            Absent::AtMost if device.more_peak_sites > 0 => smallest,
            _ => 0,
        };
        listed.max(unlisted)
    };
    let mut bytes: Vec<u64> = devices.iter().map(bytes_on).collect();
    bytes.sort_unstable();
    median(&bytes)
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
    use crate::trace_summary::{CallSite, Process};

    fn run(name: &str, start: u64, commit: Option<&str>, sites: &[(&str, u64)], more: u64) -> LakeRun {
        let site = |(text, mib): &(&str, u64)| SitePeak {
            site: CallSite { id: (*text).to_owned(), text: (*text).to_owned() },
            bytes: mib << 20,
        };
        let device = DeviceSummary {
            device: 0,
            name: None,
            total_bytes: None,
            peak_live_bytes: Some(1),
            peak_reserved_bytes: None,
            end_live_bytes: None,
            live_bytes_over_time: Vec::new(),
            peak_sites: sites.iter().map(site).collect(),
            more_peak_sites: more,
        };
        let trace = |rank| TraceSummary {
            process: Process { host: None, pid: Some(rank), started_unix_ns: Some(start) },
            path: format!("{name}.{rank}.trace"),
            rank: Some(rank),
            world_size: None,
            command: Some(vec!["python".to_owned(), "train.py".to_owned()]),
            torch: None,
            allocator_conf: None,
            git_commit: commit.map(str::to_owned),
            events: 1,
            duration_ns: None,
            end: "exit".to_owned(),
            missing: Vec::new(),
            steps: None,
            step_source: None,
            leak_assessment: "assessed".to_owned(),
            worst_finding: None,
            devices: vec![device.clone()],
            leaks: Vec::new(),
            more_leaks: 0,
            ooms: Vec::new(),
            more_ooms: 0,
        };
        let ranks = [trace(0), trace(1)].map(Summary::of_trace);
        LakeRun { name: name.to_owned(), summary: Summary::merge_all(ranks) }
    }

    fn found(mut runs: Vec<LakeRun>) -> Vec<(String, u64, u64)> {
        sort_runs(&mut runs);
        let found = regressions(&runs).into_iter();
        found.map(|one| (one.line, one.before_bytes >> 20, one.after_bytes >> 20)).collect()
    }

    #[test]
    fn growth_is_found_although_lines_moved_and_runs_came_in_any_order() {
        let after = run("b", 2, Some("2"), &[("t.py:20 in step()", 30), ("t.py:9 in load()", 10)], 0);
        let before = run("a", 1, Some("1"), &[("t.py:14 in step()", 20), ("t.py:3 in load()", 10)], 0);
        assert_eq!(found(vec![after, before]), [("t.py:20 in step()".to_owned(), 20, 30)]);
    }

    #[test]
    fn runs_of_one_commit_are_one_version() {
        let of = |start, commit, mib| run("r", start, commit, &[("t.py:1", mib)], 0);
        assert_eq!(found(vec![of(1, Some("1"), 10), of(2, Some("1"), 20), of(3, Some("1"), 90)]), []);
        // The median of 10 and 20 is 15.
        let three = vec![of(1, Some("1"), 10), of(2, Some("1"), 20), of(3, Some("2"), 30)];
        assert_eq!(found(three), [("t.py:1".to_owned(), 15, 30)]);
        assert_eq!(found(vec![of(1, None, 10), of(2, None, 20)]), [("t.py:1".to_owned(), 10, 20)]);
    }

    #[test]
    fn a_line_that_was_not_kept_has_at_most_the_smallest_bytes() {
        let after = || run("b", 2, Some("2"), &[("t.py:1 in new()", 30)], 0);
        let before = |more| run("a", 1, Some("1"), &[("t.py:2 in old()", 40), ("t.py:3 in f()", 25)], more);
        assert_eq!(found(vec![before(0), after()]), [("t.py:1 in new()".to_owned(), 0, 30)]);
        assert_eq!(found(vec![before(3), after()]), [("t.py:1 in new()".to_owned(), 25, 30)]);
    }

    #[test]
    fn sites_are_split_at_the_number_of_the_line() {
        assert_eq!(function_of("a/t.py:14 in step()"), ("a/t.py", " in step()"));
        assert_eq!(function_of("t.py:14"), ("t.py", ""));
        assert_eq!(function_of("C:x:y"), ("C:x:y", ""));
        assert_eq!(function_of("libc.so.6 in std::f(int)"), ("libc.so.6 in std::f(int)", ""));
    }
}
