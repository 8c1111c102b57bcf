//! The result of a check. `docs/check.schema.json` is generated from these types.

use std::fmt;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::report::json_enum::json_enum;
use crate::report::{AmountUnit, CauseKind, Site, TraceLoss, UnreadableTrace, Worded};

/// The result of `gpumemtrace check --json`: of one trace a check, of several a list of checks.
///
/// Sizes are bytes, unknown values are `null` and never 0. Keys may be added.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "gpumemtrace check", extend("$id" = "urn:gpumemtrace:check:1"))]
pub enum CheckDocument {
    /// Of one trace.
    One(Box<BudgetCheck>),
    /// Of several traces.
    Several(BudgetChecks),
}

/// The checks of several traces.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BudgetChecks {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.checks"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The path of the budget file as given.
    pub budget: String,
    /// True if no limit fails in any trace that could be read.
    pub passed: bool,
    /// True if all traces could be read and nothing is missing from them.
    pub complete: bool,
    /// The check of each trace, by rank. Limits that do not fail have no contributors.
    pub checks: Vec<BudgetCheck>,
    /// Traces that could not be read.
    pub unreadable: Vec<UnreadableTrace>,
}

impl BudgetChecks {
    /// Puts the checks in order of their ranks, those without a rank last.
    #[must_use]
    pub fn new(budget: String, mut checks: Vec<BudgetCheck>, unreadable: Vec<UnreadableTrace>) -> Self {
        checks.sort_by_key(|check| check.rank.unwrap_or(u64::MAX));
        Self {
            schema: "gpumemtrace.checks",
            version: 1,
            budget,
            passed: checks.iter().all(|check| check.passed),
            complete: unreadable.is_empty() && checks.iter().all(|check| check.complete),
            checks,
            unreadable,
        }
    }
}

/// The check of one trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BudgetCheck {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.check"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The path of the trace as given.
    pub trace: String,
    /// The rank of the process in a distributed job.
    pub rank: Option<u64>,
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

impl BudgetCheck {
    /// Removes the contributors of limits that do not fail. Many checks then fit into memory.
    #[must_use]
    pub fn without_kept_details(mut self) -> Self {
        for limit in self.budgets.iter_mut().filter(|limit| !limit.fails) {
            limit.contributors = Vec::new();
        }
        self
    }
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
    /// The outcome of the check.
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
