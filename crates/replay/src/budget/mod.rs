//! Memory budgets: limits on what a run may need, and the check of a trace against them.
//!
//! A [`Budget`] is read from a TOML file with `str::parse`. Each limit is on one quantity of
//! [`crate::compare::Profile`], which is reproducible from run to run. [`check()`] compares the
//! measured values with the limits and their tolerances; of several devices, the one that needs
//! most counts. A limit on a quantity that is unknown for the trace fails, unless it has
//! `if_unknown = "pass"`. [`draft_budget`] measures a run for a new budget.
//!
//! The file is written by hand, and a misspelt key must not become a check that never fails.
//! Unknown keys are therefore errors, reported in one sentence with the line. `budget::tests`
//! checks the format, and `tests/budget.rs` the check.

pub(crate) mod check;
pub(crate) mod measure;
pub(crate) mod outcome;
pub(crate) mod pattern;
pub(crate) mod size;
pub(crate) mod write;

use std::str::FromStr;

use serde::Deserialize;

use crate::report::json_enum::json_enum;

pub use self::{
    check::check,
    outcome::{BudgetCheck, CheckState, CheckedLimit, ContributorName, UnknownValue, ValueShare},
    write::{BudgetDraft, SiteDraft, draft_budget},
};
pub(crate) use pattern::SitePattern;
pub(crate) use size::{BytesLimit, CountLimit, Tolerance};

json_enum! {
    /// A quantity of the whole run that a budget can limit, by its place in the file.
    enum BudgetQuantity {
        /// Peak of the allocated bytes.
        PeakLive = "peak.live",
        /// Peak of the reserved bytes.
        PeakReserved = "peak.reserved",
        /// Peak bytes of the driver.
        PeakDevice = "peak.device",
        /// Unused reserved bytes at the peak of reserved bytes.
        GapBytes = "gap.bytes",
        /// The number of leaks.
        LeaksCount = "leaks.count",
        /// The growth of all leaks.
        LeaksBytesPerStep = "leaks.bytes_per_step",
        /// The peak of the median step.
        StepPeak = "step.peak",
        /// Bytes allocated in the median step.
        StepBytes = "step.bytes",
        /// Allocations in the median step.
        StepAllocations = "step.allocations",
    }
}

/// What a limit does if its quantity is unknown for the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IfUnknown {
    /// The check of this limit fails.
    #[default]
    Fail,
    /// The limit is skipped.
    Pass,
}

/// The contents of a budget file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Default for all limits in bytes, except those of leaks.
    pub(crate) tolerance: Option<Tolerance>,
    /// Default for all limits.
    pub(crate) if_unknown: Option<IfUnknown>,
    pub(crate) peak: PeakBudget,
    pub(crate) gap: GapBudget,
    pub(crate) leaks: LeakBudget,
    pub(crate) step: StepBudget,
    pub(crate) site: Vec<SiteBudget>,
}

/// Limits on peaks. Each is the maximum of its own series.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeakBudget {
    /// Bytes allocated by tensors.
    pub(crate) live: Option<BytesLimit>,
    /// Bytes reserved by PyTorch.
    pub(crate) reserved: Option<BytesLimit>,
    /// Bytes allocated from the driver.
    pub(crate) device: Option<BytesLimit>,
}

/// A limit on the fragmentation gap.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GapBudget {
    /// The gap at the peak of reserved bytes.
    pub(crate) bytes: Option<BytesLimit>,
}

/// Limits on findings of the leak analysis.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LeakBudget {
    /// Number of findings on all devices.
    pub(crate) count: Option<CountLimit>,
    /// Sum of the rates of all findings.
    pub(crate) bytes_per_step: Option<BytesLimit>,
}

/// Limits on medians over the steps after warm-up ([`mod@crate::compare`]).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StepBudget {
    /// Most live bytes at any moment of a step.
    pub(crate) peak: Option<BytesLimit>,
    /// Bytes allocated in a step.
    pub(crate) bytes: Option<BytesLimit>,
    /// Number of allocations in a step.
    pub(crate) allocations: Option<CountLimit>,
}

/// Limits on the sum of all lines that match a pattern.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SiteBudget {
    #[serde(rename = "match")]
    pub(crate) pattern: SitePattern,
    /// Live bytes at the peak of the device.
    pub(crate) peak: Option<BytesLimit>,
    /// Live bytes at the end of the last step, or of the run if it has no steps.
    pub(crate) retained: Option<BytesLimit>,
    /// Bytes allocated in a step.
    pub(crate) bytes_per_step: Option<BytesLimit>,
    /// Number of allocations in a step.
    pub(crate) allocations_per_step: Option<CountLimit>,
    /// Default for the limits of this table.
    pub(crate) tolerance: Option<Tolerance>,
    /// Default for the limits of this table.
    pub(crate) if_unknown: Option<IfUnknown>,
}

impl FromStr for Budget {
    /// One sentence that names the line and the problem.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let budget: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let at = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{at}{}", error.message().replace('\n', "; "))
        })?;
        for site in &budget.site {
            let limits = [&site.peak, &site.retained, &site.bytes_per_step];
            if limits.iter().all(|limit| limit.is_none()) && site.allocations_per_step.is_none() {
                return Err(format!(
                    "the site `{}` has no limit; give it peak, retained, bytes_per_step or allocations_per_step",
                    site.pattern
                ));
            }
        }
        if budget.is_empty() {
            return Err(
                "it has no budget; `gpumemtrace check TRACE --budget FILE --write` writes one".to_owned()
            );
        }
        Ok(budget)
    }
}

impl Budget {
    fn is_empty(&self) -> bool {
        let without_limits =
            Self { tolerance: self.tolerance, if_unknown: self.if_unknown, ..Self::default() };
        *self == without_limits
    }
}

#[cfg(test)]
mod tests;
