//! Budgets: what a run may need at most, and whether it kept to it.
//!
//! Definition. A budget is a limit on one quantity of [`crate::compare::Profile`], which the same
//! program has again in each run. It is kept if what was measured is at most the limit and its
//! tolerance. Of several devices the one that needs most counts. A quantity that the trace does not
//! tell is *unknown*: its budget fails, unless it says `if_unknown = "pass"`.
//!
//! Constraint: people write the file by hand, and a misspelt key must not be a check that never
//! fails. Consequence: what is not known is refused, in one sentence with the line.

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

/// What to do where a quantity is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IfUnknown {
    /// The budget fails if it is unknown.
    #[default]
    Fail,
    /// An unknown quantity counts as kept.
    Pass,
}

/// The limits of one budget file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Tolerance of the budgets in bytes that set none; budgets for leaks do not use it.
    pub(crate) tolerance: Option<Tolerance>,
    /// Rule for an unknown quantity, for the budgets that set none.
    pub(crate) if_unknown: Option<IfUnknown>,
    /// Limits on the peaks of a device.
    pub(crate) peak: PeakBudget,
    /// Limit on unused reserved memory.
    pub(crate) gap: GapBudget,
    /// Limits on leaks.
    pub(crate) leaks: LeakBudget,
    /// Limits on the median step.
    pub(crate) step: StepBudget,
    /// Limits on call sites.
    pub(crate) site: Vec<SiteBudget>,
}

/// Limits on the peaks of a device, each at its own moment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeakBudget {
    /// Peak of the allocated bytes.
    pub(crate) live: Option<BytesLimit>,
    /// Peak of the bytes PyTorch reserved.
    pub(crate) reserved: Option<BytesLimit>,
    /// Peak of the bytes allocated from the driver.
    pub(crate) device: Option<BytesLimit>,
}

/// Limit on unused reserved memory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GapBudget {
    /// Unused reserved bytes at the peak of reserved bytes.
    pub(crate) bytes: Option<BytesLimit>,
}

/// Limits on the findings of the leak analysis.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LeakBudget {
    /// The number of leaks.
    pub(crate) count: Option<CountLimit>,
    /// Growth of all leaks together in bytes per step.
    pub(crate) bytes_per_step: Option<BytesLimit>,
}

/// Medians over the steps that count ([`mod@crate::compare`]).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StepBudget {
    /// Most allocated bytes at any moment of the step.
    pub(crate) peak: Option<BytesLimit>,
    /// Bytes allocated during the step.
    pub(crate) bytes: Option<BytesLimit>,
    /// Number of allocations during the step.
    pub(crate) allocations: Option<CountLimit>,
}

/// Limits on all call sites that match a pattern, taken together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SiteBudget {
    /// The pattern that the sites match.
    #[serde(rename = "match")]
    pub(crate) pattern: SitePattern,
    /// Bytes allocated at the peak of the device.
    pub(crate) peak: Option<BytesLimit>,
    /// Bytes still allocated at the end of the last step; without steps at the end of the run.
    pub(crate) retained: Option<BytesLimit>,
    /// Bytes allocated in a step.
    pub(crate) bytes_per_step: Option<BytesLimit>,
    /// Number of allocations in a step.
    pub(crate) allocations_per_step: Option<CountLimit>,
    /// Tolerance of these limits where they set none.
    pub(crate) tolerance: Option<Tolerance>,
    /// For all of these.
    pub(crate) if_unknown: Option<IfUnknown>,
}

impl FromStr for Budget {
    /// What is wrong with the file, in one sentence with the line.
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
                "it has no budget; `gpumemtrace check TRACE --budget FILE --write` makes one".to_owned()
            );
        }
        Ok(budget)
    }
}

impl Budget {
    fn is_empty(&self) -> bool {
        let whole = Self { tolerance: self.tolerance, if_unknown: self.if_unknown, ..Self::default() };
        *self == whole
    }
}

#[cfg(test)]
mod tests;
