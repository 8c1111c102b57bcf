//! Budgets: what a run may need at most, and whether it kept to it.
//!
//! Definition. A budget is a limit on one quantity of [`crate::compare::Profile`], which the same program has again in each run. It is
//! kept if what was measured is at most the limit and its tolerance. Of several devices the one that needs most counts. A
//! quantity that the trace does not tell is *unknown*: its budget fails, unless it says `if_unknown = "pass"`.
//!
//! Constraint: people write the file by hand, and a misspelt key must not be a check that never fails. Consequence: what is not known
//! is refused, in one sentence with the line.

pub(crate) mod check;
pub(crate) mod measure;
pub(crate) mod pattern;
pub(crate) mod size;
pub(crate) mod write;

use serde::Deserialize;

pub use check::{BudgetCheck, CheckState, CheckedLimit, ValueShare, check};
pub use pattern::SitePattern;
pub use size::{BytesLimit, CountLimit, Tolerance};
pub use write::budget_of;

/// What to do where a quantity is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IfUnknown {
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
    pub tolerance: Option<Tolerance>,
    /// Of every budget that does not say.
    pub if_unknown: Option<IfUnknown>,
    /// The most at any moment.
    pub peak: PeakBudget,
    /// Reserved and not asked for.
    pub gap: GapBudget,
    /// Findings.
    pub leaks: LeakBudget,
    /// The usual step.
    pub step: StepBudget,
    /// Lines and functions.
    pub site: Vec<SiteBudget>,
}

/// Peaks, each of its own series.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeakBudget {
    /// Held by tensors.
    pub live: Option<BytesLimit>,
    /// Held by PyTorch.
    pub reserved: Option<BytesLimit>,
    /// Handed out by the driver.
    pub device: Option<BytesLimit>,
}

/// The gap.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GapBudget {
    /// When most was reserved.
    pub bytes: Option<BytesLimit>,
}

/// Findings of the leak analysis.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeakBudget {
    /// How many.
    pub count: Option<CountLimit>,
    /// Of all together.
    pub bytes_per_step: Option<BytesLimit>,
}

/// Medians over the steps that count ([`mod@crate::compare`]).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepBudget {
    /// The most that was live in it.
    pub peak: Option<BytesLimit>,
    /// Allocated in it.
    pub bytes: Option<BytesLimit>,
    /// How often.
    pub allocations: Option<CountLimit>,
}

/// The lines that fit a pattern, all together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteBudget {
    /// Which.
    #[serde(rename = "match")]
    pub pattern: SitePattern,
    /// Held at the peak of the device.
    pub peak: Option<BytesLimit>,
    /// Live at the end of the last step, or at the end where there are none.
    pub retained: Option<BytesLimit>,
    /// Allocated in a step.
    pub bytes_per_step: Option<BytesLimit>,
    /// How often in a step.
    pub allocations_per_step: Option<CountLimit>,
    /// For all of these.
    pub tolerance: Option<Tolerance>,
    /// For all of these.
    pub if_unknown: Option<IfUnknown>,
}

impl Budget {
    /// Reads the file. What is wrong with it is one sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
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

    fn is_empty(&self) -> bool {
        let whole = Self { tolerance: self.tolerance, if_unknown: self.if_unknown, ..Self::default() };
        *self == whole
    }
}

#[cfg(test)]
mod tests;
