//! What a report was limited to, and what was left out for it.

use serde::Serialize;

/// Rows that are not in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Omitted {
    /// How many.
    pub count: u64,
    /// What they come to; `null` where they have no bytes of their own.
    pub bytes: Option<u64>,
}

/// Rows that are not in the lists of the report itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OmittedLists {
    /// Of `leaks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<Omitted>,
    /// Of `silent_growth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_growth: Option<Omitted>,
    /// Of `oom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<Omitted>,
    /// Of `phases`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Omitted>,
}

/// What the report was limited to, as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filters {
    /// Rows of each list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<u64>,
    /// Lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// From then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
    /// Ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u64>,
    /// The stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u64>,
}

/// Where the part of a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SinceMoment {
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun by then, where steps are known.
    pub step: Option<u64>,
}

/// The stream of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamPart {
    /// As the driver numbers it.
    pub stream: u64,
    /// Blocks of which no stream is known; they are in no stream's report.
    pub unknown_blocks: u64,
    /// Their bytes.
    pub unknown_bytes: u64,
    /// False where the segments that were told are not all that was reserved: then `reserved_bytes` is `null`.
    pub reserved_is_known: bool,
}

impl Filters {
    /// True where events that are counted are not told.
    pub fn leave_events_out(&self) -> bool {
        self.site.is_some() || self.since.is_some() || self.stream.is_some() || !self.devices.is_empty()
    }
}
