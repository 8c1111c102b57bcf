//! The table of runs.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// What a trace is of, and how complete it is.
    "runs", RunRow, RunBuffer {
        /// The path of the trace as given.
        trace: Text,
        /// The id of the trace.
        trace_id: Option<Text>,
        /// Name of the host.
        host: Option<Text>,
        /// Id of the process on its host.
        pid: Option<i64>,
        /// Rank that the process reported. If it is unknown, the folder has another number.
        reported_rank: Option<i64>,
        /// Number of ranks of the job.
        world_size: Option<i64>,
        /// Command line: a list in JSON.
        command_json: Option<Text>,
        /// Start of recording by the wall clock, in nanoseconds since 1970. Other times count from
        /// here.
        started_unix_ns: Option<i64>,
        /// Duration of the recording.
        duration_ns: Option<i64>,
        /// Start of the exported window, in nanoseconds since the start of recording.
        since_ns: i64,
        /// End of the exported window.
        until_ns: i64,
        /// True if the window is the whole run.
        is_whole: bool,
        /// Number of events in the window.
        events: i64,
        /// What begins a step: `marks`, `nvtx`, `optimizer` or `period`. Null without steps.
        step_source: Option<Text>,
        /// Number of steps begun in the whole run. Null without steps.
        steps: Option<i64>,
        /// Version of PyTorch. Null without PyTorch.
        torch: Option<Text>,
        /// Version of Python. Null without Python.
        python: Option<Text>,
        /// Version of the CUDA driver.
        cuda_driver: Option<Text>,
        /// Version of the CUDA runtime.
        cuda_runtime: Option<Text>,
        /// `PYTORCH_ALLOC_CONF` of the environment.
        allocator_conf: Option<Text>,
        /// How the process ended: `exit`, `killed`, `crashed` or `running`. Null if it is unknown:
        /// the trace was cut, or lacks its ring file.
        ending: Option<Text>,
        /// Exit code of the process. Null unless it exited by itself and the trace has the code.
        exit_code: Option<i64>,
        /// False if events are missing.
        is_complete: bool,
        /// What is missing, one sentence each: a list in JSON.
        incomplete_json: Text,
        /// Commit of the program's checkout. Null outside of one.
        git_commit: Option<Text>,
        /// The labels of the run: an object in JSON, with keys in order. Null if it has none.
        labels_json: Option<Text>,
        /// Name of the first GPU.
        card: Option<Text>,
        /// Memory of the first GPU. Null if it is unknown.
        card_bytes: Option<i64>,
        /// Peak of PyTorch's `memory_allocated()` in the whole run, of the GPU with the highest.
        peak_live_bytes: Option<i64>,
        /// Peak of PyTorch's `memory_reserved()`, likewise.
        peak_reserved_bytes: Option<i64>,
        /// Most memory that the driver gave to the process, likewise.
        peak_device_bytes: Option<i64>,
        /// Most memory of the process on a GPU: what the driver gave, and what no call shows
        /// (context, code, rounding). Null if the latter was not measured on each GPU that the
        /// process used.
        peak_used_bytes: Option<i64>,
        /// The part of `peak_used_bytes` that no driver call shows.
        peak_unaccounted_bytes: Option<i64>,
        /// What measured it: `nvml` for this process alone; `driver` or `program` (the driver's
        /// number, queried by the recorder or by the program) for all processes on the GPU.
        unaccounted_source: Option<Text>,
        /// Number of leaks. Null if they could not be judged.
        leaks: Option<i64>,
        /// Number of out-of-memory errors.
        ooms: i64,
        /// `info`, `warning` or `critical`: the most severe finding. Null without findings.
        worst_severity: Option<Text>,
        /// That finding in one sentence.
        worst_finding: Option<Text>,
        /// Devices of the whole run with names, peaks and totals: `devices` of the JSON report.
        devices_json: Text,
        /// Version of gpumemtrace that wrote this file.
        gpumemtrace: Text,
    }
}
