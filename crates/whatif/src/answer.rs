//! The answer to "what if": one row for each combination of settings, version and card.

use std::collections::BTreeMap;

use gpumemtrace_caching_allocator::UnusedBytes;
use gpumemtrace_replay::report::{ReservedCurve, Site};
use schemars::JsonSchema;
use serde::Serialize;

/// The name of the document that `gpumemtrace whatif --json` prints.
pub const SCHEMA: &str = "gpumemtrace.whatif";
/// The version of the document. Keys may be added without a new one.
pub const VERSION: u32 = 1;

/// What a run would have done with other settings of PyTorch's allocator.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "gpumemtrace whatif", extend("$id" = "urn:gpumemtrace:whatif:1"))]
pub struct WhatIfAnswer {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.whatif"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The path of the trace as given.
    pub path: String,
    /// The ordinal of the device.
    pub device: u8,
    /// The recorded run: its own settings, version and card.
    pub base: WhatIfRow,
    /// The other runs, the best first.
    pub rows: Vec<WhatIfRow>,
    /// The releases of PyTorch that may have written a snapshot, by the keys in it: the oldest and
    /// the newest. `null` if the release is known.
    pub torch_releases: Option<[String; 2]>,
    /// The number of steps of the recorded run; `null` if no step boundaries were found.
    pub steps: Option<u64>,
    /// Whether the model reserves what the run reserved with the recorded settings, at every
    /// request.
    pub is_reproduced: bool,
    /// What existed before the first recorded request; `null` if nothing did.
    pub start: Option<RecordedStart>,
    /// The most memory of tensors at a time, as recorded: no smaller card holds the run. `null` if
    /// unknown.
    pub least_card_bytes: Option<u64>,
    /// Why the run may need a larger card than the rows say; empty if it does not.
    pub may_need_more: Vec<MoreNeeded>,
}

/// The state of PyTorch's allocator before the first recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordedStart {
    /// Number of live blocks.
    pub blocks: u64,
    /// Bytes of live blocks.
    pub allocated_bytes: u64,
    /// Bytes of segments, `memory_reserved()` at that moment.
    pub reserved_bytes: u64,
}

/// Memory that a run may need beyond a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoreNeeded {
    /// The recording shows no request.
    NoHistory,
    /// The recording begins while the run has memory. What it needed before is unknown.
    StartedLate,
    /// Events are missing: PyTorch overwrote the oldest, or the recording lost some.
    Incomplete,
    /// The recording does not show how much of the card is used outside PyTorch.
    OutsideUnknown,
}

/// How far a row can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PredictionStatus {
    /// The model reproduces the recorded run to the byte, and nothing in the program reacted to
    /// memory.
    Exact,
    /// The numbers show a tendency. `reason` says why they may differ.
    Indicative,
    /// There is no prediction. `reason` says why.
    Refused,
}

/// A combination of settings, version and card, and what would have happened.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WhatIfRow {
    /// The value of `PYTORCH_ALLOC_CONF`; empty for the defaults.
    pub setting: String,
    /// The version of PyTorch.
    pub torch: Option<String>,
    /// Bytes of the card's memory; `null` if unknown, and then not limited.
    pub card_bytes: Option<u64>,
    /// How far the row can be relied on.
    pub status: PredictionStatus,
    /// Why the row is not exact, in words; `null` if it is.
    pub reason: Option<String>,
    /// The peak of reserved memory, `reserved_bytes.all.peak` of `memory_stats()`.
    pub peak_reserved_bytes: Option<u64>,
    /// The peak of reserved memory over several orders of the addresses that the driver gives to
    /// segments; `null` if only one was tried (`--address-orders`), or if no address can decide.
    pub peak_reserved_range: Option<ReservedRange>,
    /// The part of `peak_reserved_bytes` that the program had not requested, by cause.
    pub peak_unused: Option<UnusedByCause>,
    /// The peak of allocated memory, `allocated_bytes.all.peak` of `memory_stats()`.
    pub peak_allocated_bytes: Option<u64>,
    /// Bytes of segments at the end.
    pub end_reserved_bytes: Option<u64>,
    /// Bytes of segments over time, up to the first failure or the end.
    pub reserved_curve: Option<ReservedCurve>,
    /// The number of requests that fail for lack of memory, also those that
    /// `throw_on_cudamalloc_oom` rejects. The prediction stops at the first that the recorded run
    /// did not have.
    pub ooms: u64,
    /// Requests that got memory at the second attempt, after the cache was released.
    pub retries: u64,
    /// Segments that were made.
    pub segments_made: u64,
    /// The number of calls of the driver by function.
    pub driver_calls: BTreeMap<String, u64>,
    /// Bytes that these calls moved, by function.
    pub driver_bytes: BTreeMap<String, u64>,
    /// The first request that fails; `null` if none does.
    pub first_failure: Option<FailedRequest>,
}

/// Reserved bytes beyond those that the program requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnusedByCause {
    /// Bytes by which live blocks are larger than requested.
    pub rounding_bytes: u64,
    /// Freed blocks that another stream still uses (`record_stream`).
    pub pending_free_bytes: u64,
    /// Free bytes beside the blocks of a segment, or of a page of an expandable segment.
    pub pinned_bytes: u64,
    /// Segments, or pages of expandable segments, that are free as a whole.
    pub cached_bytes: u64,
}

impl UnusedByCause {
    /// All bytes that the program did not request.
    #[must_use]
    pub fn sum(self) -> u64 {
        self.rounding_bytes + self.pending_free_bytes + self.pinned_bytes + self.cached_bytes
    }
}

impl From<UnusedBytes> for UnusedByCause {
    fn from(unused: UnusedBytes) -> Self {
        let UnusedBytes { rounding_bytes, pending_free_bytes, cached_bytes, pinned_bytes } = unused;
        Self { rounding_bytes, pending_free_bytes, pinned_bytes, cached_bytes }
    }
}

/// What gets no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedWhat {
    /// A request to PyTorch's allocator.
    Block,
    /// A call of the driver by a library such as cuBLAS, or by the program itself.
    Library,
    /// What PyTorch had reserved before the first recorded request.
    Start,
}

impl FailedWhat {
    /// Whether a line of the program asked for it.
    pub(crate) fn has_site(self) -> bool {
        self != Self::Start
    }
}

/// A request that gets no memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FailedRequest {
    /// What asked for memory.
    pub what: FailedWhat,
    /// Bytes that the program asked for.
    pub request_bytes: u64,
    /// The line that asked for them.
    pub site: Option<Site>,
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
}

/// The peak of reserved memory over several orders of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReservedRange {
    /// The lowest peak of all orders, in bytes.
    pub least_bytes: u64,
    /// The highest peak of all orders, in bytes.
    pub most_bytes: u64,
    /// Number of orders that were tried, including that of the row itself.
    pub orders: u32,
    /// Orders with which a request fails that the recorded run was served.
    pub failing_orders: u32,
}
