//! A run held against its budgets, as `--json` prints it. `docs/check.schema.json` is the same for other languages.

use serde::Serialize;

use super::measure::{BudgetMeasurer, MeasureResult};
use super::size::{BytesLimit, CountLimit};
use super::{Budget, IfUnknown};
use crate::compare::Profile;
use crate::report::Site;

/// All budgets of a file.
#[derive(Clone, Debug, Serialize)]
pub struct BudgetCheck {
    /// Always `gpumemtrace.check`.
    pub schema: &'static str,
    /// Of this layout.
    pub version: u32,
    /// The trace, as given.
    pub trace: String,
    /// The budget file, as given.
    pub budget: String,
    /// The traced command line.
    pub command: Option<Vec<String>>,
    /// True when nothing is missing from the trace.
    pub complete: bool,
    /// What is, one sentence each.
    pub incomplete: Vec<String>,
    /// True if no budget fails.
    pub passed: bool,
    /// In the order of the file.
    pub budgets: Vec<CheckedLimit>,
}

/// Whether a budget was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// It was.
    Kept,
    /// It was not.
    Exceeded,
    /// Nobody knows.
    Unknown,
}

/// One budget.
#[derive(Clone, Debug, Serialize)]
pub struct CheckedLimit {
    /// Where it stands in the file: `peak.live`, `site[train.py:41].peak`.
    pub name: String,
    /// `bytes` or `count`.
    pub unit: &'static str,
    /// Whether it was kept.
    pub state: CheckState,
    /// Exceeded, or unknown and not allowed to be.
    pub fails: bool,
    /// As the file has it.
    pub limit: u64,
    /// With its tolerance.
    pub allowed: u64,
    /// In this run; `null` where it is not known.
    pub measured: Option<u64>,
    /// Measured minus limit, where the budget was exceeded.
    pub over_by: Option<u64>,
    /// The device that was measured.
    pub device: Option<u32>,
    /// Why it is not known.
    pub why: Option<String>,
    /// What the measured value is made of, largest first, as far as it is told; of leaks all, in bytes per step.
    pub of: Vec<ValueShare>,
}

/// A part of a measured value.
#[derive(Clone, Debug, Serialize)]
pub struct ValueShare {
    /// The line, where it is one's.
    pub site: Option<Site>,
    /// A library, or a cause of the gap.
    pub name: Option<String>,
    /// How much, in the unit of the budget; of leaks always bytes.
    pub amount: u64,
}

/// Holds a run against its budgets. `path` is the file's.
pub fn check(profile: &Profile<'_>, budget: &Budget, path: &str) -> BudgetCheck {
    let measure = BudgetMeasurer::new(profile);
    let mut all = CheckRun { profile, budget, outcomes: Vec::new() };
    all.bytes("peak.live", budget.peak.live, || measure.peak_live());
    all.bytes("peak.reserved", budget.peak.reserved, || measure.peak_reserved());
    all.bytes("peak.device", budget.peak.device, || measure.peak_device());
    all.bytes("gap.bytes", budget.gap.bytes, || measure.gap());
    all.count("leaks.count", budget.leaks.count, || measure.leak_count());
    // A tolerance for sizes that stay is none for what grows in each step.
    let rate = budget.leaks.bytes_per_step.map(|limit| BytesLimit {
        tolerance: limit.tolerance.or(Some(super::size::Tolerance::Bytes(0))),
        ..limit
    });
    all.bytes("leaks.bytes_per_step", rate, || measure.leak_rate());
    all.bytes("step.peak", budget.step.peak, || measure.step_peak());
    all.bytes("step.bytes", budget.step.bytes, || measure.step_allocated(|held| held.bytes));
    all.count("step.allocations", budget.step.allocations, || measure.step_allocated(|held| held.blocks));
    for site in &budget.site {
        let pattern = &site.pattern;
        let name = |what: &str| format!("site[{pattern}].{what}");
        let of_site = |limit: Option<BytesLimit>| {
            limit.map(|limit| BytesLimit {
                tolerance: limit.tolerance.or(site.tolerance),
                if_unknown: limit.if_unknown.or(site.if_unknown),
                ..limit
            })
        };
        all.bytes(&name("peak"), of_site(site.peak), || measure.site_at_peak(pattern));
        all.bytes(&name("retained"), of_site(site.retained), || measure.site_retained(pattern));
        all.bytes(&name("bytes_per_step"), of_site(site.bytes_per_step), || {
            measure.site_allocated(pattern, |held| held.bytes)
        });
        let count = site
            .allocations_per_step
            .map(|count| CountLimit { if_unknown: count.if_unknown.or(site.if_unknown), ..count });
        all.count(&name("allocations_per_step"), count, || {
            measure.site_allocated(pattern, |held| held.blocks)
        });
    }
    let analysis = profile.analysis;
    BudgetCheck {
        schema: "gpumemtrace.check",
        version: 1,
        trace: analysis.path.clone(),
        budget: path.to_owned(),
        command: Some(analysis.meta.list("command").to_vec()).filter(|command| !command.is_empty()),
        complete: analysis.incomplete.is_empty(),
        incomplete: analysis.incomplete.clone(),
        passed: all.outcomes.iter().all(|outcome| !outcome.fails),
        budgets: all.outcomes,
    }
}

struct CheckRun<'a> {
    profile: &'a Profile<'a>,
    budget: &'a Budget,
    outcomes: Vec<CheckedLimit>,
}

impl CheckRun<'_> {
    fn bytes(&mut self, name: &str, limit: Option<BytesLimit>, measure: impl FnOnce() -> MeasureResult) {
        let Some(limit) = limit else { return };
        let tolerance = limit
            .tolerance
            .or(self.budget.tolerance)
            .map_or(0, |tolerance| tolerance.bytes_for_limit(limit.bytes));
        let allowed = limit.bytes.saturating_add(tolerance);
        self.add((name, "bytes"), (limit.bytes, allowed), limit.if_unknown, measure());
    }

    fn count(&mut self, name: &str, count: Option<CountLimit>, measure: impl FnOnce() -> MeasureResult) {
        let Some(count) = count else { return };
        self.add((name, "count"), (count.limit, count.limit), count.if_unknown, measure());
    }

    fn add(
        &mut self,
        (name, unit): (&str, &'static str),
        (limit, allowed): (u64, u64),
        if_unknown: Option<IfUnknown>,
        answer: MeasureResult,
    ) {
        let mut outcome = CheckedLimit {
            name: name.to_owned(),
            unit,
            state: CheckState::Unknown,
            fails: if_unknown.or(self.budget.if_unknown).unwrap_or_default() == IfUnknown::Fail,
            limit,
            allowed,
            measured: None,
            over_by: None,
            device: None,
            why: None,
            of: Vec::new(),
        };
        match answer {
            Err(why) => outcome.why = Some(why),
            Ok(measured) => {
                let is_exceeded = measured.value > allowed;
                outcome.state = if is_exceeded { CheckState::Exceeded } else { CheckState::Kept };
                outcome.fails = is_exceeded;
                outcome.measured = Some(measured.value);
                outcome.over_by = is_exceeded.then(|| measured.value - limit);
                outcome.device = measured.device.map(u32::from);
                let part = |(what, amount): (Result<usize, String>, u64)| match what {
                    Ok(line) => {
                        ValueShare { site: Some(self.profile.lines[line].site.clone()), name: None, amount }
                    }
                    Err(name) => ValueShare { site: None, name: Some(name), amount },
                };
                outcome.of = measured.of.into_iter().map(part).collect();
            }
        }
        self.outcomes.push(outcome);
    }
}
