//! What is said of a file itself: what it is of, and what is missing.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Ending, SinceMoment, StreamPart};
use crate::report::display::Vocabulary;

/// One trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceInfo {
    /// As given.
    pub path: String,
    /// Of the traced process.
    pub pid: Option<u64>,
    /// Where it ran.
    pub host: Option<String>,
    /// In a distributed job.
    pub rank: Option<u64>,
    /// Of a distributed job.
    pub world_size: Option<u64>,
    /// Its command line.
    pub command: Option<Vec<String>>,
    /// Wall clock.
    pub started_unix_ns: Option<u64>,
    /// From the start of recording to the end, or to the last event.
    pub duration_ns: Option<u64>,
    /// What recorded.
    pub mode: Option<Vec<String>>,
    /// How gpumemtrace was PyTorch's pluggable allocator: `caching` and `uncached`, its tensors; `segments`, only the
    /// segments of PyTorch's own. `null` where it was not.
    pub pluggable: Option<String>,
    /// Version.
    pub torch: Option<String>,
    /// How far PyTorch's own tracker was of help: `attached`, or why not. `null` where no PyTorch was met.
    pub torch_tracker: Option<&'static str>,
    /// Version.
    pub python: Option<String>,
    /// Version.
    pub cuda_driver: Option<String>,
    /// Version.
    pub cuda_runtime: Option<String>,
    /// As set in the environment.
    pub allocator_conf: Option<String>,
    /// Where the part begins that the numbers are of; only where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<SinceMoment>,
    /// The stream that the numbers are of; only where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamPart>,
    /// How it ended.
    pub end: Ending,
    /// What is known beyond that: status, signal, why recording stopped.
    pub end_detail: Option<String>,
    /// Recorded events by kind.
    pub events: BTreeMap<String, u64>,
    /// What is missing.
    pub losses: Losses,
    /// How far native addresses have names; only where the report shows some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols: Option<Naming>,
    /// True when nothing is missing.
    pub complete: bool,
    /// What the reader should know: one sentence each.
    pub notes: Vec<String>,
}

impl TraceInfo {
    /// What things are called in a report of it.
    pub fn vocabulary(&self) -> Vocabulary {
        let is_metal = self.mode.iter().flatten().any(|mode| mode == crate::ingest::metal_totals::MODE);
        Vocabulary::of(self.pluggable.as_deref(), is_metal)
    }
}

/// What is missing from a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Not recorded, or lost from the file.
    pub dropped_events: u64,
    /// Places in the file that could not be used.
    pub corrupt_blocks: u64,
    /// Cut at the maximum depth.
    pub truncated_stacks: u64,
    /// Python frames without a name, native frames without a module.
    pub unresolved_frames: u64,
    /// Entry points that allocate and are not watched.
    pub uncovered_calls: u64,
    /// Calls that had not returned when the process died. Not a loss: nobody knows how they ended.
    pub in_flight_calls: u64,
    /// Blocks of which PyTorch's tracker and its report did not say the same; what they asked for is not known.
    pub tracker_mismatches: u64,
}

/// How far the native addresses that a report shows have names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Naming {
    /// Distinct addresses.
    pub addresses: u64,
    /// Those of them without a name; shown as module and offset.
    pub unresolved: u64,
    /// Why, by module; most addresses first. They sum to `unresolved`.
    pub reasons: Vec<NamingReason>,
    /// Stacks in which it is not certain where native frames stand among Python frames.
    pub approximate_stacks: u64,
}

/// Why addresses of a module have no names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamingReason {
    /// Its path; `null` for addresses in no module.
    pub module: Option<String>,
    /// `file_missing`, `other_build`, `no_build_id`, `no_symbols`, `unreadable` or `no_module`.
    pub why: &'static str,
    /// How many.
    pub addresses: u64,
}
