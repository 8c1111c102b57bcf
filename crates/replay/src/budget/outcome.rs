//! The result of a check. `gpumemtrace schema check` prints its JSON Schema.

use std::fmt;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::report::json_enum::json_enum;
use crate::report::{AmountUnit, CauseKind, Site, TraceLoss, Worded};

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
    /// The number of ranks of the job.
    pub world_size: Option<u64>,
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
    /// Growth that may be a leak and that no limit of leaks counts, in bytes, largest first.
    pub possible_leaks: Vec<ValueShare>,
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
