//! What a trace is of, and what it lacks.

use std::collections::BTreeMap;

use gpumemtrace_format::TrackerState;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{
    Ending, PluggableMode, SinceMoment, StreamPart, TraceLoss, TraceNote, TraceOrigin, UnnamedReason, Worded,
};

/// One trace of the report.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TraceInfo {
    /// The path as given.
    pub path: String,
    /// The process id of the traced program.
    pub pid: Option<u64>,
    /// The name of the host.
    pub host: Option<String>,
    /// Decides which source files may be shown.
    #[serde(skip)]
    pub origin: TraceOrigin,
    /// The rank of the process in a distributed job.
    pub rank: Option<u64>,
    /// The number of ranks of the distributed job.
    pub world_size: Option<u64>,
    /// The command line of the traced program.
    pub command: Option<Vec<String>>,
    /// The start of the recording by the wall clock, in nanoseconds since the Unix epoch.
    pub started_unix_ns: Option<u64>,
    /// Time from the start of the recording to its end, or to the last event.
    pub duration_ns: Option<u64>,
    /// How the program was recorded: `preload`, `started`, `pluggable`, `metal`,
    /// `snapshot`, ...
    pub mode: Option<Vec<String>>,
    /// How gpumemtrace's pluggable allocator was used; `null` if it was not.
    pub pluggable: Option<PluggableMode>,
    /// The version of PyTorch.
    pub torch: Option<String>,
    /// Whether PyTorch's trace tracker was attached, or why not; `null` without PyTorch.
    #[serde(serialize_with = "tracker_word")]
    #[schemars(schema_with = "tracker_schema")]
    pub torch_tracker: Option<TrackerState>,
    /// The version of Python.
    pub python: Option<String>,
    /// The version of the CUDA driver.
    pub cuda_driver: Option<String>,
    /// The version of the CUDA runtime.
    pub cuda_runtime: Option<String>,
    /// The value of `PYTORCH_ALLOC_CONF` in the environment.
    pub allocator_conf: Option<String>,
    /// The git commit of the program; `null` if it was started outside a checkout.
    pub git_commit: Option<String>,
    /// The labels of the run: those of `GPUMEMTRACE_LABELS`, and of the scheduler.
    pub labels: BTreeMap<String, String>,
    /// True if `gpumemtrace run --holders` started the program.
    pub searches_holders: bool,
    /// The start of the analysed part; absent for a whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<SinceMoment>,
    /// The analysed stream; absent for all streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamPart>,
    /// How the process ended, as far as the file shows.
    pub end: Ending,
    /// Details of the end: `exit 0`, `signal 9`, `_exit(3)`, or `stopped: ` and the reason.
    pub end_detail: Option<String>,
    /// False if nothing shows how the process ended: the trace was cut, or lacks its ring file.
    /// `end` is `killed` then.
    pub end_is_known: bool,
    /// The number of recorded events by kind.
    pub events: BTreeMap<String, u64>,
    /// The number of losses by kind.
    pub losses: Losses,
    /// Native addresses with and without names; absent if the report shows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols: Option<Naming>,
    /// For a snapshot of PyTorch, the releases that may have written it; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch_releases: Option<TorchReleases>,
    /// True if nothing is missing.
    pub complete: bool,
    /// What is missing; empty if `complete` is true.
    pub incomplete: Vec<Worded<TraceLoss>>,
    /// Caveats and other facts about the recording.
    pub notes: Vec<Worded<TraceNote>>,
}

/// A range of releases of PyTorch, by the keys in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TorchReleases {
    /// The oldest release, such as `2.5`.
    pub oldest: String,
    /// The newest release, such as `2.7`; equal to `oldest` if only one is left.
    pub newest: String,
}

/// The entry of `mode` in traces of Metal.
pub(crate) const METAL_MODE: &str = "metal";

/// The entry of `mode` in traces that were made of a snapshot of PyTorch.
pub(crate) const SNAPSHOT_MODE: &str = "snapshot";

impl TraceInfo {
    /// The exit code that the parent process saw, 0 to 255. `None` unless the process exited by
    /// itself and the trace has the code.
    pub fn exit_code(&self) -> Option<u8> {
        self.end_detail.as_deref().filter(|_| self.end == Ending::Exit).and_then(parse_exit_code)
    }

    /// True if the trace was made of a snapshot of PyTorch.
    pub fn is_torch_snapshot(&self) -> bool {
        self.mode.iter().flatten().any(|mode| mode == SNAPSHOT_MODE)
    }

    /// True for a trace of Metal instead of CUDA.
    pub fn is_metal(&self) -> bool {
        self.mode.iter().flatten().any(|mode| mode == METAL_MODE)
    }
}

/// The code in `exit 1` (from the parent process) or `_exit(1)` (from the process itself).
fn parse_exit_code(detail: &str) -> Option<u8> {
    let own = || detail.strip_prefix("_exit(")?.strip_suffix(')');
    let status: i32 = detail.strip_prefix("exit ").or_else(own)?.parse().ok()?;
    // The kernel keeps the lowest byte of what the process gave to `_exit`.
    Some(status.to_le_bytes()[0])
}

/// The exit code that a shell shows for a process that ended like `detail`: that of `exit 1` or
/// `_exit(1)`, or 128 plus the number of `signal 9`. `None` for other texts.
pub fn shell_exit_code(detail: &str) -> Option<u8> {
    let of_signal = || 128u8.checked_add(detail.strip_prefix("signal ")?.parse().ok()?);
    parse_exit_code(detail).or_else(of_signal)
}

#[allow(clippy::trivially_copy_pass_by_ref, clippy::ref_option, reason = "serde passes references")]
fn tracker_word<S: Serializer>(state: &Option<TrackerState>, serializer: S) -> Result<S::Ok, S::Error> {
    state.map(TrackerState::name).serialize(serializer)
}

fn tracker_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut words: Vec<Option<&str>> =
        (0..=16).filter_map(TrackerState::from_number).map(|state| Some(state.name())).collect();
    words.push(None);
    schemars::json_schema!({ "enum": words })
}

/// The number of losses by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Losses {
    /// Events that were not recorded, or lost from the file.
    pub dropped_events: u64,
    /// Damaged regions of the file.
    pub corrupt_blocks: u64,
    /// Stacks that were cut at the maximum depth.
    pub truncated_stacks: u64,
    /// Python frames without a name, and native frames without a module.
    pub unresolved_frames: u64,
    /// Calls of allocation functions that are not intercepted.
    pub uncovered_calls: u64,
    /// Calls in flight when the process died. Their outcome is unknown; they are no loss.
    pub in_flight_calls: u64,
    /// Blocks for which PyTorch's trace tracker and its allocator disagreed. Their requested size
    /// is unknown.
    pub tracker_mismatches: u64,
}

/// Native addresses in a report, with and without names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Naming {
    /// Number of distinct native addresses.
    pub addresses: u64,
    /// Addresses without a name; they are shown as module and offset.
    pub unresolved: u64,
    /// Reasons by module, most addresses first. They sum to `unresolved`.
    pub reasons: Vec<NamingReason>,
    /// Stacks in which the order of native and Python frames is uncertain.
    pub approximate_stacks: u64,
}

/// Why addresses of a module have no names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NamingReason {
    /// The path of the module; `null` for addresses in no module.
    pub module: Option<String>,
    /// Why they have no names.
    pub why: UnnamedReason,
    /// The number of addresses.
    pub addresses: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_what_the_parent_sees() {
        for (detail, code) in [
            ("exit 0", Some(0)),
            ("exit 3", Some(3)),
            ("_exit(7)", Some(7)),
            ("_exit(-1)", Some(255)),
            ("_exit(256)", Some(0)),
            ("signal 9", None),
            ("stopped: the disk is full", None),
            ("exit", None),
        ] {
            assert_eq!(parse_exit_code(detail), code, "{detail}");
        }
        for (detail, code) in [
            ("exit 3", Some(3)),
            ("_exit(-1)", Some(255)),
            ("signal 9", Some(137)),
            ("signal 200", None),
            ("signal", None),
            ("stopped", None),
        ] {
            assert_eq!(shell_exit_code(detail), code, "{detail}");
        }
    }
}
