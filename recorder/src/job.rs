//! Which process of which job this is, by the variables of its launcher and its scheduler.
//!
//! Only documented variables are read: of [torchrun], [Open MPI], [srun], [sbatch], [LSF] and PBS
//! (User's Guide, "PBS Environment Variables"), and of [Kubernetes].
//!
//! [torchrun]: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
//! [Open MPI]: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
//! [srun]: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
//! [sbatch]: https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
//! [LSF]: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-set-job-execution
//! [Kubernetes]: https://kubernetes.io/docs/concepts/containers/container-environment/

/// The place of a process in a job. A value that no variable gives is `None`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct JobPlace {
    pub(crate) rank: Option<u64>,
    pub(crate) local_rank: Option<u64>,
    pub(crate) world_size: Option<u64>,
    /// ID of the scheduler's job, with the index in an array and the number of the restart.
    pub(crate) job: Option<String>,
    /// Processes of the same job, or of other jobs, may run on other hosts and share a folder.
    pub(crate) has_other_hosts: bool,
}

/// Rank, rank on the node, and number of ranks, as other launchers than torchrun name them.
/// `mpirun` comes first: in a Slurm job, its processes also inherit the variables of `srun`.
const LAUNCHERS: [[&str; 3]; 2] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"],
    // A batch script also has `SLURM_PROCID` (0), but is no step, so it has no number of tasks.
    ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"],
];

impl JobPlace {
    /// Reads the variables by `lookup`.
    pub(crate) fn from_lookup(lookup: &impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let number = |name: &str| text(name).and_then(|value| value.parse::<u64>().ok());
        // A worker of Ray inherits the variables of `ray start`, which are those of its node.
        let is_ray_worker = text("RAY_JOB_ID").is_some();
        let launched = LAUNCHERS.map(|names| names.map(number)).into_iter().find(|place| {
            // One task may start the ranks itself, as Ray and torchrun do.
            !is_ray_worker && place[0].is_some() && place[2].is_some_and(|size| size > 1)
        });
        let own = ["RANK", "LOCAL_RANK", "WORLD_SIZE"].map(number);
        let [rank, local_rank, world_size] = match launched {
            Some(place) if own[0].is_none() => place,
            _ => own,
        };
        let job = scheduler_job(&text);
        let has_other_hosts = is_ray_worker || job.is_some() || text("KUBERNETES_SERVICE_HOST").is_some();
        Self { rank, local_rank, world_size, job, has_other_hosts }
    }

    /// Pattern of the trace's name if the user gives none. A scheduler's ranks are unique in a job,
    /// other processes only on their host. Without a scheduler, ranks of several jobs may meet.
    pub(crate) fn default_name(&self) -> String {
        let job = if self.job.is_some() { ".%j" } else { "" };
        let is_unique = self.rank.is_some() && self.job.is_some();
        let host = if self.has_other_hosts && !is_unique { ".%h" } else { "" };
        let rank = if self.rank.is_some() { ".rank%r" } else { "" };
        format!("run{job}{host}{rank}.trace")
    }
}

/// `36_2-restart1` for the second start of task 2 of the job array 36.
fn scheduler_job(text: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let array = text("SLURM_ARRAY_JOB_ID").zip(text("SLURM_ARRAY_TASK_ID"));
    let job = if let Some((job, task)) = array {
        format!("{job}_{task}")
    } else if let Some(job) = text("SLURM_JOB_ID").or_else(|| text("PBS_JOBID")) {
        job
    } else {
        // The index is 0 outside arrays.
        let index = text("LSB_JOBINDEX").filter(|index| index != "0");
        text("LSB_JOBID")? + &index.map_or_else(String::new, |index| format!("_{index}"))
    };
    let restart = text("SLURM_RESTART_COUNT").filter(|count| count != "0");
    let job = job + &restart.map_or_else(String::new, |count| format!("-restart{count}"));
    // A variable may have any content, and a file name has no slash.
    Some(job.replace('/', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(pairs: &[(&str, &str)]) -> JobPlace {
        JobPlace::from_lookup(&|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const TASK: [(&str, &str); 4] = [
        ("SLURM_JOB_ID", "41"),
        ("SLURM_PROCID", "9"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NUM_TASKS", "16"),
    ];

    fn ranks(pairs: &[(&str, &str)]) -> [Option<u64>; 3] {
        let place = place(pairs);
        [place.rank, place.local_rank, place.world_size]
    }

    #[test]
    fn rank_comes_from_the_innermost_launcher() {
        let torchrun = [("RANK", "3"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")];
        let mpirun = [("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "6")];
        assert_eq!(ranks(&[]), [None; 3]);
        assert_eq!(ranks(&torchrun), [Some(3), Some(1), Some(8)]);
        assert_eq!(ranks(&TASK), [Some(9), Some(1), Some(16)]);
        assert_eq!(ranks(&[&TASK[..], &mpirun].concat()), [Some(5), None, Some(6)]);
        assert_eq!(ranks(&[&TASK[..], &mpirun, &torchrun].concat()), [Some(3), Some(1), Some(8)]);
    }

    #[test]
    fn rank_is_unknown_where_a_variable_is_not_about_this_process() {
        let batch_script = [("SLURM_JOB_ID", "41"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16")];
        assert_eq!(ranks(&batch_script), [None; 3]);
        assert_eq!(ranks(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), [None; 3]);
        assert_eq!(ranks(&[&TASK[..], &[("RAY_JOB_ID", "01000000")]].concat()), [None; 3]);
        for wrong in ["", "-1", "../x"] {
            assert_eq!(place(&[("RANK", wrong)]).rank, None, "{wrong}");
        }
    }

    #[test]
    fn job_has_array_index_and_restart() {
        let job = |pairs: &[(&str, &str)]| place(pairs).job;
        assert_eq!(job(&[("LSB_JOBINDEX", "2"), ("SLURM_RESTART_COUNT", "1")]), None);
        assert_eq!(job(&TASK).as_deref(), Some("41"));
        let array = [("SLURM_JOB_ID", "38"), ("SLURM_ARRAY_JOB_ID", "36"), ("SLURM_ARRAY_TASK_ID", "2")];
        assert_eq!(job(&array).as_deref(), Some("36_2"));
        let requeued = [&array[..], &[("SLURM_RESTART_COUNT", "1")]].concat();
        assert_eq!(job(&requeued).as_deref(), Some("36_2-restart1"));
        assert_eq!(job(&[("PBS_JOBID", "12[3].head")]).as_deref(), Some("12[3].head"));
        assert_eq!(job(&[("LSB_JOBID", "7"), ("LSB_JOBINDEX", "0")]).as_deref(), Some("7"));
        assert_eq!(job(&[("LSB_JOBID", "7"), ("LSB_JOBINDEX", "4")]).as_deref(), Some("7_4"));
        assert_eq!(job(&[("PBS_JOBID", "../../x")]).as_deref(), Some(".._.._x"));
    }

    #[test]
    fn default_name_tells_jobs_hosts_and_ranks_apart() {
        let pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        let ray = ("RAY_JOB_ID", "01000000");
        let rank = ("RANK", "3");
        for (pairs, name) in [
            (&[][..], "run.trace"),
            (&[("RANK", "")], "run.trace"),
            (&[rank], "run.rank%r.trace"),
            (&TASK, "run.%j.rank%r.trace"),
            (&TASK[..1], "run.%j.%h.trace"),
            (&[pod], "run.%h.trace"),
            (&[pod, rank], "run.%h.rank%r.trace"),
            (&[ray], "run.%h.trace"),
            (&[ray, rank], "run.%h.rank%r.trace"),
            (&[pod, TASK[0], rank], "run.%j.rank%r.trace"),
        ] {
            assert_eq!(place(pairs).default_name(), name, "{pairs:?}");
        }
    }
}
