//! Checks a run against a budget. `docs/check.schema.json` is generated from these types.

use std::fmt;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, Serializer};

use super::measure::{BudgetMeasurer, ContributorSource, MeasureResult};
use super::size::{BytesLimit, CountLimit, Tolerance};
use super::{Budget, BudgetQuantity, IfUnknown};
use crate::compare::Profile;
use crate::report::json_enum::json_enum;
use crate::report::{AmountUnit, CauseKind, Site, TraceLoss, Worded};

/// The result of `gpumemtrace check --json`.
///
/// Sizes are bytes, unknown values are `null` and never 0. Keys may be added.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "gpumemtrace check", extend("$id" = "urn:gpumemtrace:check:1"))]
pub struct BudgetCheck {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.check"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The path of the trace as given.
    pub trace: String,
    /// The path of the budget file as given.
    pub budget: String,
    /// The command line of the traced program.
    pub command: Option<Vec<String>>,
    /// True if nothing is missing from the trace.
    pub complete: bool,
    /// What is missing from the trace.
    pub incomplete: Vec<Worded<TraceLoss>>,
    /// True if no limit fails.
    pub passed: bool,
    /// The limits, in the order of the file.
    pub budgets: Vec<CheckedLimit>,
}

json_enum! {
    /// The outcome of a limit.
    enum CheckState {
        /// The measured value is within the limit.
        Kept = "kept",
        /// The measured value is above the limit.
        Exceeded = "exceeded",
        /// The trace does not contain the value.
        Unknown = "unknown",
    }
}

/// One limit of the budget.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CheckedLimit {
    /// Its place in the file: `peak.live`, `site[train.py:41].peak`.
    pub name: String,
    /// The unit of the limit: `bytes` or `count`.
    pub unit: AmountUnit,
    /// The outcome.
    pub state: CheckState,
    /// True if it was exceeded, or is unknown and must be known.
    pub fails: bool,
    /// The limit in the file.
    pub limit: u64,
    /// The limit plus its tolerance.
    pub allowed: u64,
    /// The measured value; `null` if it is unknown.
    pub measured: Option<u64>,
    /// The measured value minus the limit, if it was exceeded.
    pub over_by: Option<u64>,
    /// Ordinal of the measured GPU.
    pub device: Option<u32>,
    /// Why the value is unknown.
    pub why: Option<Worded<UnknownValue>>,
    /// The parts of the measured value, largest first: at most three, of leaks all.
    pub contributors: Vec<ValueShare>,
    /// The unit of `contributors`.
    pub contributor_unit: AmountUnit,
}

/// Why a trace does not contain a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UnknownValue {
    /// No steps were found.
    NoSteps,
    /// Steps were found, and none ended.
    NoStepEnded,
    /// There are too few steps to judge growth.
    TooFewSteps {
        /// The number of steps.
        steps: u32,
    },
    /// The trace has no blocks of PyTorch's allocator.
    NoTorch,
    /// The trace has no memory of the driver.
    NoDriverMemory,
    /// No call site that allocated matches the pattern.
    NoMatchingSite,
}

/// A part of a measured value.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ValueShare {
    /// The call site, if the part has one.
    pub site: Option<Site>,
    /// What the part is otherwise.
    pub name: Option<ContributorName>,
    /// Its amount, in `contributor_unit`.
    pub amount: u64,
}

/// A part of a measured value without a call site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContributorName {
    /// Memory of a library, as in `devices[].ledger`.
    Owner(String),
    /// Memory that was requested.
    Requested,
    /// Memory that was reserved and not requested.
    Unused,
    /// Unused reserved memory of one cause.
    Cause(CauseKind),
}

impl fmt::Display for ContributorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner(owner) => owner,
            Self::Requested => "requested",
            Self::Unused => "unused",
            Self::Cause(cause) => cause.name(),
        })
    }
}

impl Serialize for ContributorName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for ContributorName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ContributorName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "`requested`, `unused`, a cause as in `fragmentation`, or the name of a library."
        })
    }
}

/// Checks a run against a budget. `path` is that of the budget file.
pub fn check(profile: &Profile<'_>, budget: &Budget, path: &str) -> BudgetCheck {
    use BudgetQuantity as Q;
    let measure = BudgetMeasurer::new(profile);
    let mut run = CheckRun { profile, budget, limits: Vec::new() };
    run.bytes(Q::PeakLive.name(), budget.peak.live, || measure.peak_live());
    run.bytes(Q::PeakReserved.name(), budget.peak.reserved, || measure.peak_reserved());
    run.bytes(Q::PeakDevice.name(), budget.peak.device, || measure.peak_device());
    run.bytes(Q::GapBytes.name(), budget.gap.bytes, || measure.gap());
    run.count(Q::LeaksCount.name(), budget.leaks.count, || measure.leak_count());
    // The general tolerance is for constant sizes, not for growth in each step.
    let rate = budget
        .leaks
        .bytes_per_step
        .map(|limit| BytesLimit { tolerance: limit.tolerance.or(Some(Tolerance::Bytes(0))), ..limit });
    run.bytes(Q::LeaksBytesPerStep.name(), rate, || measure.leak_rate());
    run.bytes(Q::StepPeak.name(), budget.step.peak, || measure.step_peak());
    run.bytes(Q::StepBytes.name(), budget.step.bytes, || measure.step_allocated(|held| held.bytes));
    run.count(Q::StepAllocations.name(), budget.step.allocations, || {
        measure.step_allocated(|held| held.blocks)
    });
    for site in &budget.site {
        let pattern = &site.pattern;
        let name = |quantity: &str| format!("site[{pattern}].{quantity}");
        let of_site = |limit: Option<BytesLimit>| {
            limit.map(|limit| BytesLimit {
                tolerance: limit.tolerance.or(site.tolerance),
                if_unknown: limit.if_unknown.or(site.if_unknown),
                ..limit
            })
        };
        run.bytes(&name("peak"), of_site(site.peak), || measure.site_at_peak(pattern));
        run.bytes(&name("retained"), of_site(site.retained), || measure.site_retained(pattern));
        run.bytes(&name("bytes_per_step"), of_site(site.bytes_per_step), || {
            measure.site_allocated(pattern, |held| held.bytes)
        });
        let count = site
            .allocations_per_step
            .map(|count| CountLimit { if_unknown: count.if_unknown.or(site.if_unknown), ..count });
        run.count(&name("allocations_per_step"), count, || {
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
        incomplete: analysis.incomplete.iter().cloned().map(Worded::from).collect(),
        passed: run.limits.iter().all(|limit| !limit.fails),
        budgets: run.limits,
    }
}

struct CheckRun<'a> {
    profile: &'a Profile<'a>,
    budget: &'a Budget,
    limits: Vec<CheckedLimit>,
}

impl CheckRun<'_> {
    fn bytes(&mut self, name: &str, limit: Option<BytesLimit>, measure: impl FnOnce() -> MeasureResult) {
        let Some(limit) = limit else { return };
        let tolerance = limit
            .tolerance
            .or(self.budget.tolerance)
            .map_or(0, |tolerance| tolerance.bytes_for_limit(limit.bytes));
        let allowed = limit.bytes.saturating_add(tolerance);
        self.add((name, AmountUnit::Bytes), (limit.bytes, allowed), limit.if_unknown, measure());
    }

    fn count(&mut self, name: &str, count: Option<CountLimit>, measure: impl FnOnce() -> MeasureResult) {
        let Some(count) = count else { return };
        self.add((name, AmountUnit::Count), (count.limit, count.limit), count.if_unknown, measure());
    }

    fn add(
        &mut self,
        (name, unit): (&str, AmountUnit),
        (limit, allowed): (u64, u64),
        if_unknown: Option<IfUnknown>,
        result: MeasureResult,
    ) {
        let mut checked = CheckedLimit {
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
            contributors: Vec::new(),
            contributor_unit: unit,
        };
        match result {
            Err(why) => checked.why = Some(why.into()),
            Ok(measured) => {
                let is_exceeded = measured.value > allowed;
                checked.state = if is_exceeded { CheckState::Exceeded } else { CheckState::Kept };
                checked.fails = is_exceeded;
                checked.measured = Some(measured.value);
                checked.over_by = is_exceeded.then(|| measured.value - limit);
                checked.device = measured.device.map(u32::from);
                checked.contributor_unit = measured.contributor_unit.unwrap_or(unit);
                let share = |(source, amount): (ContributorSource, u64)| match source {
                    ContributorSource::Line(line) => {
                        let site = Some(self.profile.lines[line].site.clone());
                        ValueShare { site, name: None, amount }
                    }
                    ContributorSource::Site(site) => ValueShare { site: Some(*site), name: None, amount },
                    ContributorSource::Named(name) => ValueShare { site: None, name: Some(name), amount },
                };
                checked.contributors = measured.contributors.into_iter().map(share).collect();
            }
        }
        self.limits.push(checked);
    }
}
