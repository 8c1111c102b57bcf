//! `--fail-on` of `replay` and `ranks`: the findings that give exit code 3.

use clap::ValueEnum;
use gpumemtrace_replay::report::{AssessmentStatus, GrowthClass};
use gpumemtrace_replay::{Analysis, Report};

#[derive(clap::Args)]
pub(crate) struct FailOnArgs {
    /// Exit with code 3 if there is such a finding (repeatable, or comma-separated)
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    fail_on: Vec<FindingKind>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FindingKind {
    /// A leak was found, or memory grew until it ran out
    Leaks,
    /// A leak, or other memory that grows
    Growth,
    /// Leaks could not be judged, or only in part
    Unassessed,
    /// The program ran out of memory
    Oom,
    /// A leak, other growth, or an out-of-memory error
    Any,
}

impl FailOnArgs {
    /// True if a kind was named.
    pub(crate) fn is_given(&self) -> bool {
        !self.fail_on.is_empty()
    }

    /// True if the report has what `--fail-on` names. Errors that the report leaves out are those
    /// of `analyses`; `None` if only those in the report count.
    pub(crate) fn has_finding(&self, report: &Report, analyses: Option<&[Analysis]>) -> bool {
        let leaks = report.leaks.as_ref().is_some_and(|leaks| !leaks.is_empty());
        let shown = report.oom.as_ref().is_some_and(|ooms| !ooms.is_empty());
        let ooms = shown || analyses.is_some_and(|all| all.iter().any(|one| one.oom_count > 0));
        let assessments = || report.leak_assessment.iter().flatten();
        let growth = || assessments().flat_map(|assessment| &assessment.growth);
        let grew = growth().next().is_some();
        let grew_until_oom = growth().any(|one| one.class == GrowthClass::TowardsOom);
        self.fail_on.iter().any(|kind| match kind {
            FindingKind::Leaks => leaks || grew_until_oom,
            FindingKind::Growth => leaks || grew,
            FindingKind::Unassessed => {
                assessments().any(|assessment| assessment.status != AssessmentStatus::Assessed)
            }
            FindingKind::Oom => ooms,
            FindingKind::Any => leaks || grew || ooms,
        })
    }
}
