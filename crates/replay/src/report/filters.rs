//! The filters of a report, and the rows that they removed.

use schemars::JsonSchema;
use serde::Serialize;

/// Rows that a filter removed from a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Omitted {
    /// The number of rows.
    pub count: u64,
    /// Their bytes; `null` if the rows have no bytes that could be summed.
    pub bytes: Option<u64>,
}

/// Rows that a filter removed from the lists at the top level of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OmittedLists {
    /// Rows removed from `leaks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<Omitted>,
    /// Rows removed from `benign_growth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub benign_growth: Option<Omitted>,
    /// Rows removed from `oom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<Omitted>,
    /// Rows removed from `phases`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Omitted>,
}

/// The filters, as the user gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Filters {
    /// The maximum number of rows of each list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<u64>,
    /// The pattern of call sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The moment from which events count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The ordinals of the GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
    /// Ranks of the distributed job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u64>,
    /// The handle of the CUDA stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u64>,
}

impl Filters {
    /// True if the report leaves out events that `traces[].events` counts.
    pub fn leave_events_out(&self) -> bool {
        self.site.is_some() || self.since.is_some() || self.stream.is_some() || !self.devices.is_empty()
    }
}

/// The start of the analysed part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SinceMoment {
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
}

/// The stream that a report is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StreamPart {
    /// The handle of the CUDA stream.
    pub stream: u64,
    /// Blocks of unknown streams. They are in no stream's report.
    pub unknown_blocks: u64,
    /// The bytes of these blocks.
    pub unknown_bytes: u64,
    /// False if the recorded segments are not all that was reserved: then `reserved_bytes` is
    /// `null`.
    pub is_reserved_known: bool,
}
