//! Unknown values and parts of measured values, as phrases.

use gpumemtrace_replay::budget::{ContributorName, UnknownValue};

use super::Vocabulary;
use super::fragmentation::name_cause;
use crate::terminal::format::format_count;

/// Why a value is unknown.
pub(super) fn explain_unknown(value: UnknownValue) -> String {
    match value {
        UnknownValue::NoSteps => "no steps were found in this run".to_owned(),
        UnknownValue::NoStepEnded => "no step ended in this run".to_owned(),
        UnknownValue::TooFewSteps { steps } => {
            format!("{} are too few to judge growth", format_count(u64::from(steps), "step"))
        }
        UnknownValue::NoTorch => "the trace has no memory of PyTorch's allocator".to_owned(),
        UnknownValue::NoDriverMemory => "the trace has no driver memory".to_owned(),
        UnknownValue::NoMatchingSite => "no call site that allocated matches the pattern".to_owned(),
    }
}

/// The name of a part without a call site.
pub(crate) fn contributor_name(name: &ContributorName) -> String {
    match name {
        ContributorName::Owner(owner) => owner.clone(),
        ContributorName::Requested => "requested".to_owned(),
        ContributorName::Unused => "unused reserved".to_owned(),
        ContributorName::Cause(cause) => name_cause(*cause, &Vocabulary::CUDA),
    }
}
