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
pub(crate) mod pattern;
pub(crate) mod size;
pub(crate) mod write;

use std::str::FromStr;

use serde::Deserialize;

use crate::report::json_enum::json_enum;

pub use self::{
    check::{BudgetCheck, CheckState, CheckedLimit, ContributorName, UnknownValue, ValueShare, check},
    write::{BudgetDraft, SiteDraft, draft_budget},
};
pub(crate) use pattern::SitePattern;
pub(crate) use size::{BytesLimit, CountLimit, Tolerance};

json_enum! {
    /// A quantity of the whole run that a budget can limit, by its place in the file.
    enum BudgetQuantity {
        /// Peak allocated bytes.
        PeakLive = "peak.live",
        /// Peak reserved bytes.
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
    /// The budget fails.
    #[default]
    Fail,
    /// It does not.
    Pass,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Of every budget in bytes that has none of its own, but not of those for leaks.
    pub(crate) tolerance: Option<Tolerance>,
    /// Of every budget that does not say.
    pub(crate) if_unknown: Option<IfUnknown>,
    /// The most at any moment.
    pub(crate) peak: PeakBudget,
    /// Reserved and not asked for.
    pub(crate) gap: GapBudget,
    /// Findings.
    pub(crate) leaks: LeakBudget,
    /// The usual step.
    pub(crate) step: StepBudget,
    /// Lines and functions.
    pub(crate) site: Vec<SiteBudget>,
}

/// Peaks, each of its own series.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeakBudget {
    /// Held by tensors.
    pub(crate) live: Option<BytesLimit>,
    /// Held by PyTorch.
    pub(crate) reserved: Option<BytesLimit>,
    /// Handed out by the driver.
    pub(crate) device: Option<BytesLimit>,
}

/// The gap.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GapBudget {
    /// When most was reserved.
    pub(crate) bytes: Option<BytesLimit>,
}

/// Findings of the leak analysis.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LeakBudget {
    /// How many.
    pub(crate) count: Option<CountLimit>,
    /// Of all together.
    pub(crate) bytes_per_step: Option<BytesLimit>,
}

/// Medians over the steps that count ([`mod@crate::compare`]).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StepBudget {
    /// The most that was live in it.
    pub(crate) peak: Option<BytesLimit>,
    /// Allocated in it.
    pub(crate) bytes: Option<BytesLimit>,
    /// How often.
    pub(crate) allocations: Option<CountLimit>,
}

/// The lines that fit a pattern, all together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SiteBudget {
    /// Which.
    #[serde(rename = "match")]
    pub(crate) pattern: SitePattern,
    /// Held at the peak of the device.
    pub(crate) peak: Option<BytesLimit>,
    /// Live at the end of the last step, or at the end where there are none.
    pub(crate) retained: Option<BytesLimit>,
    /// Allocated in a step.
    pub(crate) bytes_per_step: Option<BytesLimit>,
    /// How often in a step.
    pub(crate) allocations_per_step: Option<CountLimit>,
    /// For all of these.
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
