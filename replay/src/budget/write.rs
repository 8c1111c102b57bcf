//! A budget file made from a run: its own needs, as limits.
//!
//! Constraint: whoever reads the file may never have seen the tool, and lines move with every edit. Consequence: each value has a
//! comment that says what it is, and what is limited below the whole are functions, not lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::measure::{BudgetMeasurer, MeasureResult};
use super::pattern::SitePattern;
use crate::compare::Profile;
use crate::report::Site;
use crate::report::display::format_bytes;

/// Most functions that get a budget.
const MAX_SITES: usize = 10;
/// A function gets one that holds one part in so many of the peak, or allocates one in so many of a step's bytes.
const MIN_PART: u64 = 100;

const HEAD: &str = "\
# What a run may need at most; `gpumemtrace check TRACE --budget FILE` holds a trace against it, and ends with code 4 where it needs more.
# Sizes are bytes, or text such as \"1.5 GiB\". A limit may have a tolerance of its own, and may say what to do where the trace does not
# tell the quantity: live = { limit = \"1.5 GiB\", tolerance = \"2 %\", if_unknown = \"pass\" }. Without that, what is unknown fails.
";

const SITES: &str = "
# Lines, all that fit `match` together: FILE, FILE:LINE, FILE:FIRST-LAST, FILE:FUNCTION or FUNCTION; * stands for anything.
# peak: what they held at the peak of the device. bytes_per_step: what they allocate in the usual step, freed or not.
# Also: retained (live at the end of the last step), allocations_per_step, tolerance and if_unknown (of all these).
";

/// The text of a budget file that this run keeps to.
pub fn budget_of(profile: &Profile<'_>) -> String {
    let measure = BudgetMeasurer::new(profile);
    let is_metal = profile.analysis.vocabulary().is_metal;
    let mut out = HEAD.to_owned();
    out.push_str("\n# How far every limit in bytes may be exceeded, but those of leaks: a share of the limit, or bytes.\n");
    out.push_str("tolerance = \"1 %\"\n");
    let mut table = |name: &str, values: &[(&str, MeasureResult, bool, &str)]| {
        let _ = writeln!(out, "\n[{name}]");
        for (key, answer, is_size, what) in values {
            let _ = writeln!(out, "# {what}");
            match answer {
                Ok(measured) if *is_size => {
                    let _ = writeln!(out, "{key} = {}  # {}", measured.value, format_bytes(measured.value));
                }
                Ok(measured) => {
                    let _ = writeln!(out, "{key} = {}", measured.value);
                }
                Err(why) => {
                    let _ = writeln!(out, "# {key} = ...  not known: {why}");
                }
            }
        }
    };
    table(
        "peak",
        &[
            (
                "live",
                measure.peak_live(),
                true,
                if is_metal {
                    "The most that buffers in heaps held."
                } else {
                    "The most that tensors held (torch.cuda.max_memory_allocated)."
                },
            ),
            (
                "reserved",
                measure.peak_reserved(),
                true,
                if is_metal {
                    "The most that Metal heaps took."
                } else {
                    "The most that PyTorch kept (torch.cuda.max_memory_reserved)."
                },
            ),
            (
                "device",
                measure.peak_device(),
                true,
                if is_metal {
                    "The most that Metal had handed out to the process, whoever asked."
                } else {
                    "The most that the driver had handed out to the process, whoever asked."
                },
            ),
        ],
    );
    table(
        "gap",
        &[(
            "bytes",
            measure.gap(),
            true,
            "Reserved and not asked for by any tensor, when most was reserved.",
        )],
    );
    table(
        "leaks",
        &[
            ("count", measure.leak_count(), false, "Lines that leave something behind step after step."),
            ("bytes_per_step", measure.leak_rate(), true, "What they leave behind in a step, all together."),
        ],
    );
    table(
        "step",
        &[
            (
                "peak",
                measure.step_peak(),
                true,
                "The most that was live in a step: of the usual step, the median.",
            ),
            (
                "bytes",
                measure.step_allocated(|held| held.bytes),
                true,
                "Allocated in the usual step, freed or not.",
            ),
        ],
    );
    if let Ok(measured) = measure.step_allocated(|held| held.blocks) {
        out.push_str("# In how many blocks. Counts have no tolerance, so this one is left to you.\n");
        let _ = writeln!(out, "# allocations = {}", measured.value);
    }
    sites(&mut out, profile, &measure);
    out
}

fn sites(out: &mut String, profile: &Profile<'_>, measure: &BudgetMeasurer<'_>) {
    let value = |answer: MeasureResult| answer.map_or(0, |measured| measured.value);
    let peak = profile.devices.values().filter_map(|device| device.totals.get("peak_live_bytes"));
    let peak = peak.copied().max().unwrap_or_else(|| value(measure.peak_device()));
    let in_a_step = value(measure.step_allocated(|held| held.bytes));
    let mut found: Vec<(u64, u64, String)> = Vec::new();
    for text in patterns(profile) {
        let pattern = SitePattern::new(&text);
        let held = value(measure.site_at_peak(&pattern));
        let allocated = value(measure.site_allocated(&pattern, |held| held.bytes));
        if held > peak / MIN_PART || allocated > in_a_step / MIN_PART {
            found.push((held, allocated, text));
        }
    }
    found.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then_with(|| a.2.cmp(&b.2)));
    found.truncate(MAX_SITES);
    out.push_str(SITES);
    for (held, allocated, text) in found {
        // A basic string of TOML has the escapes of JSON.
        let _ = writeln!(out, "\n[[site]]\nmatch = {}", serde_json::Value::from(text));
        let _ = writeln!(out, "peak = {held}  # {}", format_bytes(held));
        if profile.steps.is_some() {
            let _ = writeln!(out, "bytes_per_step = {allocated}  # {}", format_bytes(allocated));
        }
    }
}

/// A pattern for each function that allocated.
fn patterns(profile: &Profile<'_>) -> BTreeSet<String> {
    let sites = || profile.lines.iter().filter(|line| !line.devices.is_empty()).map(|line| &line.site);
    let file_of = |site: &Site| site.module.clone().or_else(|| site.file.clone());
    let files: BTreeSet<String> = sites().filter_map(file_of).collect();
    let short = short_names(&files);
    let pattern = |site: &Site| {
        let file = short.get(&file_of(site)?)?.clone();
        let text =
            site.function.as_ref().map_or_else(|| file.clone(), |function| format!("{file}:{function}"));
        // It goes into a file that people read.
        (!text.chars().any(char::is_control)).then_some(text)
    };
    sites().filter_map(pattern).collect()
}

/// Of each path as many components from its end as no other path ends in.
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
