//! The functions of a version, their bytes, and which lines and functions are the same in another
//! version.
//!
//! Lines move with every edit above them, so a line is matched by its text (`source_id`) within its
//! function. Where the text is unknown, a line that has as many bytes as one of the other version
//! is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use gpumemtrace_replay::{Spread, lower_median};
use schemars::JsonSchema;
use serde::Serialize;

use crate::trace_summary::{DeviceSummary, SitePeak};
use crate::versions::Gpus;

/// Which bytes of several GPUs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuChoice {
    /// The median over the GPUs of a run; of an even number, the lower middle value.
    Median,
    /// The most on any GPU of a run, because the median did not grow.
    Most,
}

/// A function by its call site `train.py:14 in step()`: the texts before and after the line's
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FunctionRef<'a> {
    file: &'a str,
    name: &'a str,
}

impl fmt::Display for FunctionRef<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.file, self.name)
    }
}

impl<'a> FunctionRef<'a> {
    fn from_site(site: &'a str) -> Self {
        let mut from = 0;
        while let Some(at) = site[from..].find(':').map(|at| from + at) {
            let digits = site[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
            let rest = &site[at + 1 + digits..];
            if digits > 0 && (rest.is_empty() || rest.starts_with(' ')) {
                return Self { file: &site[..at], name: rest };
            }
            from = at + 1;
        }
        Self { file: site, name: "" }
    }
}

/// The functions of one version, over the GPUs that are compared.
pub(crate) struct Functions<'a> {
    runs: &'a [Gpus<'a>],
    /// The most bytes of each line on any GPU.
    lines: BTreeMap<FunctionRef<'a>, BTreeMap<&'a str, Line<'a>>>,
}

#[derive(Clone, Copy)]
struct Line<'a> {
    text: &'a str,
    source_id: Option<&'a str>,
    bytes: u64,
}

impl<'a> Functions<'a> {
    /// `runs` has the GPUs of each run.
    pub(crate) fn new(runs: &'a [Gpus<'a>]) -> Self {
        let mut lines: BTreeMap<FunctionRef<'a>, BTreeMap<&'a str, Line<'a>>> = BTreeMap::new();
        for SitePeak { site, bytes } in runs.iter().flatten().flat_map(|device| &device.peak_sites) {
            let line = Line { text: &site.text, source_id: site.source_id.as_deref(), bytes: *bytes };
            let of_function = lines.entry(FunctionRef::from_site(&site.text)).or_default();
            let most = of_function.entry(&site.text).or_insert(line);
            most.bytes = most.bytes.max(*bytes);
            // A run may lack the text of a line, or have another one: any order gives the same.
            most.source_id = most.source_id.max(line.source_id);
        }
        Self { runs, lines }
    }

    /// All functions with listed bytes.
    pub(crate) fn names(&self) -> impl Iterator<Item = FunctionRef<'a>> + '_ {
        self.lines.keys().copied()
    }

    /// The most bytes that these functions can have together in any usual run.
    pub(crate) fn most(&self, names: &[FunctionRef<'_>], choice: GpuChoice) -> u64 {
        let on_gpu =
            |device: &DeviceSummary| listed_bytes(device, names).saturating_add(most_unlisted_bytes(device));
        usual_runs(self.runs.iter().map(|gpus| of_gpus(gpus, choice, on_gpu))).max().unwrap_or(0)
    }

    /// The least bytes that a function can have in any usual run.
    pub(crate) fn least(&self, name: FunctionRef<'_>, choice: GpuChoice) -> u64 {
        let on_gpu = |device: &DeviceSummary| listed_bytes(device, &[name]);
        usual_runs(self.runs.iter().map(|gpus| of_gpus(gpus, choice, on_gpu))).min().unwrap_or(0)
    }

    /// True if a trace has more call sites than its summary lists.
    pub(crate) fn has_unlisted(&self) -> bool {
        self.runs.iter().flatten().any(|device| device.more_peak_sites > 0)
    }

    /// The functions of the other version that this one was before it was renamed or moved to
    /// another file. They are not in this version, and the function is not in the other one.
    pub(crate) fn origins(&self, name: FunctionRef<'a>, other: &Functions<'a>) -> Vec<FunctionRef<'a>> {
        if other.lines.contains_key(&name) {
            return Vec::new();
        }
        let gone = other.lines.iter().filter(|(function, _)| !self.lines.contains_key(function));
        gone.filter(|(_, lines)| is_moved(lines, &self.lines[&name])).map(|(function, _)| *function).collect()
    }

    /// The line of a function that grew most since the other version, where the function had
    /// `names`. All lines with the same growth. If no line grew by itself, the largest line.
    pub(crate) fn lines_to_name(
        &self,
        function: FunctionRef<'a>,
        other: &Functions<'a>,
        names: &[FunctionRef<'a>],
    ) -> Vec<String> {
        let before: Vec<&Line<'a>> =
            names.iter().filter_map(|name| other.lines.get(name)).flat_map(BTreeMap::values).collect();
        let lines = self.lines[&function].values();
        let grown = lines.map(|line| (line.bytes.saturating_sub(bytes_before(line, &before)), line));
        let grown: Vec<(u64, &Line<'a>)> = grown.collect();
        let most = grown.iter().map(|(growth, _)| *growth).max().unwrap_or(0);
        let largest = grown.iter().map(|(_, line)| line.bytes).max().unwrap_or(0);
        let is_named = |(growth, line): &&(u64, &Line<'a>)| {
            if most > 0 { *growth == most } else { line.bytes == largest }
        };
        grown.iter().filter(is_named).map(|(_, line)| line.text.to_owned()).collect()
    }
}

/// The bytes that a line had before. Lines without a known text are the same if their bytes are.
fn bytes_before(line: &Line<'_>, before: &[&Line<'_>]) -> u64 {
    let has_text = line.source_id.is_some() && before.iter().any(|old| old.source_id.is_some());
    let is_same = |old: &&&Line<'_>| {
        if has_text { old.source_id == line.source_id } else { old.bytes == line.bytes }
    };
    before.iter().filter(is_same).map(|old| old.bytes).max().unwrap_or(0)
}

/// True if lines with at least half of the bytes of a function are lines of the other one. Where no
/// text is known, the functions have as many lines and bytes.
fn is_moved(old: &BTreeMap<&str, Line<'_>>, new: &BTreeMap<&str, Line<'_>>) -> bool {
    let sum = |lines: &mut dyn Iterator<Item = &Line<'_>>| {
        lines.fold(0_u64, |sum, line| sum.saturating_add(line.bytes))
    };
    let texts: BTreeSet<&str> = old.values().filter_map(|line| line.source_id).collect();
    if texts.is_empty() || new.values().all(|line| line.source_id.is_none()) {
        let total = |lines: &BTreeMap<&str, Line<'_>>| sum(&mut lines.values());
        return (old.len(), total(old)) == (new.len(), total(new));
    }
    let common = sum(&mut new.values().filter(|line| line.source_id.is_some_and(|id| texts.contains(id))));
    common >= sum(&mut new.values()).div_ceil(2)
}

/// The amounts of runs without those that differ from the other runs, of at least three. So one
/// run with a leak neither hides growth nor is growth.
fn usual_runs(amounts: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let amounts: Vec<u64> = amounts.collect();
    let spread = Spread::from_values(amounts.clone()).filter(|spread| spread.count > 2);
    let is_usual = move |bytes: &u64| spread.as_ref().is_none_or(|spread| !spread.is_outlier(*bytes));
    amounts.into_iter().filter(is_usual)
}

/// The bytes that count of the GPUs of one run.
fn of_gpus(gpus: &Gpus<'_>, choice: GpuChoice, on_gpu: impl Fn(&DeviceSummary) -> u64) -> u64 {
    let mut bytes: Vec<u64> = gpus.iter().map(|device| on_gpu(device)).collect();
    bytes.sort_unstable();
    let chosen = match choice {
        GpuChoice::Median => lower_median(&bytes),
        GpuChoice::Most => bytes.last().copied(),
    };
    chosen.unwrap_or(0)
}

/// The bytes of functions at the peak, in the call sites that the summary keeps.
fn listed_bytes(device: &DeviceSummary, names: &[FunctionRef<'_>]) -> u64 {
    let listed = device.peak_sites.iter();
    let of_function = listed.filter(|site| names.contains(&FunctionRef::from_site(&site.site.text)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_split_at_the_number_of_the_line() {
        let split = |site| {
            let FunctionRef { file, name } = FunctionRef::from_site(site);
            (file, name)
        };
        assert_eq!(split("a/t.py:14 in step()"), ("a/t.py", " in step()"));
        assert_eq!(split("t.py:14"), ("t.py", ""));
        assert_eq!(split("C:x:y"), ("C:x:y", ""));
        assert_eq!(split("libc.so.6 in std::f(int)"), ("libc.so.6 in std::f(int)", ""));
    }
}
