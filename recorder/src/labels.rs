//! The labels of a trace: those of the user, then those of the scheduler and the launcher.
//!
//! Only documented variables are read: of [sbatch], PBS (User's Guide, "PBS Environment
//! Variables"), [LSF] and [torchrun]. Kubernetes has none; its downward API can set
//! `GPUMEMTRACE_LABELS`.
//!
//! [sbatch]: https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
//! [LSF]: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-set-job-execution
//! [torchrun]: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables

use std::collections::BTreeSet;

use gpumemtrace_format::labels::{Label, MAX_LABELS, parse_label, parse_labels};

use crate::diagnostics::print_diagnostic;

/// The variables of schedulers and launchers, by key. The first variable with a value counts.
const VARIABLES: [(&str, &[&str]); 5] = [
    ("user", &["SLURM_JOB_USER", "PBS_O_LOGNAME"]),
    ("account", &["SLURM_JOB_ACCOUNT"]),
    ("partition", &["SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"]),
    ("job_name", &["SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME"]),
    ("torchrun", &["TORCHELASTIC_RUN_ID"]),
];
/// The run id of torchrun if the user gives none.
const NO_RUN_ID: &str = "none";

/// Reads the labels by `lookup`. A key that the user sets wins.
pub(crate) fn labels_from_lookup(lookup: &impl Fn(&str) -> Option<String>, job: Option<&str>) -> Vec<Label> {
    let given = lookup("GPUMEMTRACE_LABELS").filter(|text| !text.is_empty());
    let mut labels = given.map_or_else(Vec::new, |text| {
        parse_labels(&text).unwrap_or_else(|why| {
            print_diagnostic(&["GPUMEMTRACE_LABELS: ", &why, "; none of its labels is recorded."]);
            Vec::new()
        })
    });
    // Of two values of a key, the first one counts: `run --label` puts its own before others.
    let mut keys = BTreeSet::new();
    labels.retain(|(key, _)| keys.insert(key.clone()));
    let scheduled = VARIABLES.iter().filter_map(|(key, names)| {
        let value = names.iter().find_map(|name| lookup(name).filter(|value| !value.is_empty()))?;
        (value != NO_RUN_ID).then_some((*key, value))
    });
    // What a variable of another program has is no mistake of the user, so it is left out.
    for (key, value) in scheduled.chain(job.map(|job| ("job", job.to_owned()))) {
        let is_known = labels.iter().any(|(known, _)| known == key);
        if let Ok(label) = parse_label(&format!("{key}={value}"))
            && !is_known
            && labels.len() < MAX_LABELS
        {
            labels.push(label);
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)], job: Option<&str>) -> Vec<String> {
        let lookup =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        labels_from_lookup(&lookup, job).into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn the_user_wins_over_the_scheduler() {
        let slurm = [("SLURM_JOB_USER", "ana"), ("SLURM_JOB_NAME", "train"), ("TORCHELASTIC_RUN_ID", "none")];
        assert_eq!(labels(&slurm, Some("41")), ["user=ana", "job_name=train", "job=41"]);
        let given = [("GPUMEMTRACE_LABELS", "team=nlp,user=team-account"), ("SLURM_JOB_USER", "ana")];
        assert_eq!(labels(&given, None), ["team=nlp", "user=team-account"]);
        assert_eq!(labels(&[("TORCHELASTIC_RUN_ID", "r7")], None), ["torchrun=r7"]);
        assert_eq!(labels(&[("GPUMEMTRACE_LABELS", "a=1,b=2,a=3")], None), ["a=1", "b=2"]);
    }

    #[test]
    fn wrong_labels_are_left_out() {
        assert_eq!(labels(&[("GPUMEMTRACE_LABELS", "team"), ("SLURM_JOB_USER", "ana")], None), ["user=ana"]);
        assert_eq!(labels(&[("SLURM_JOB_NAME", "a,b")], None), [""; 0]);
    }
}
