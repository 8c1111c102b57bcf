//! What filled a device when it was fullest.

use serde::Serialize;

use super::{Omitted, Site};

/// What filled a device at its peak.
#[derive(Clone, Debug, Serialize)]
pub struct Peak {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// `torch` (blocks of its allocator), or `device` (driver allocations) for a program without PyTorch.
    pub layer: &'static str,
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// The peak.
    pub live_bytes: u64,
    /// What it was for; they sum to `live_bytes` exactly. Largest first.
    pub categories: Vec<CategoryShare>,
    /// By the pass in which the blocks came: `forward`, `backward`, ...; they sum to `live_bytes`. Largest first.
    pub passes: Vec<PassBytes>,
    /// By the parts of the run that the program named, in which the blocks came: they sum to `live_bytes`. Left out where it
    /// named none, and where they were not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<PhaseBytes>>,
    /// They sum to `live_bytes` exactly.
    pub sites: Vec<SiteShare>,
    /// Those that a filter left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<Omitted>,
    /// Against the peak of the step before; `null` where there is none, and where it was not asked for.
    pub since_previous_step: Option<SincePreviousStep>,
    /// Each block, in the order in which they came, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<PeakBlockRow>>,
}

/// A site's share in bytes and blocks.
#[derive(Clone, Debug, Serialize)]
pub struct SiteShare {
    /// Whose.
    pub site: Site,
    /// How much.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// What for; they sum to `bytes`. Only at the peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub categories: Option<Vec<CategoryBytes>>,
    /// As `phases` of the peak; they sum to `bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<PhaseBytes>>,
}

/// What all blocks of a category hold.
#[derive(Clone, Debug, Serialize)]
pub struct CategoryShare {
    /// `parameters`, `gradients`, ..., `unknown`.
    pub category: &'static str,
    /// How much.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// `high`, `medium`, `low`: the lowest of all that told at least a tenth of the bytes; `null` of what is unknown.
    pub confidence: Option<&'static str>,
    /// What told it, most bytes first; they sum to `bytes`.
    pub rules: Vec<RuleShare>,
}

/// What a rule told.
#[derive(Clone, Debug, Serialize)]
pub struct RuleShare {
    /// `docs/analyses.md` has the list.
    pub rule: &'static str,
    /// How sure it is of these.
    pub confidence: Option<&'static str>,
    /// How much.
    pub bytes: u64,
}

/// A category's share of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CategoryBytes {
    /// What for.
    pub category: &'static str,
    /// How much.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
}

/// What came in a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassBytes {
    /// Which.
    pub pass: &'static str,
    /// How much.
    pub bytes: u64,
}

/// What came in a part of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseBytes {
    /// Its name; `null` outside of all, or where the trace does not have the name.
    pub phase: Option<String>,
    /// How much.
    pub bytes: u64,
}

/// The peak against that of the step before.
#[derive(Clone, Debug, Serialize)]
pub struct SincePreviousStep {
    /// That step.
    pub step: u64,
    /// When its peak was.
    pub time_ns: u64,
    /// Its peak.
    pub live_bytes: u64,
    /// The peak minus that.
    pub rise_bytes: i64,
    /// What was not the same, largest rise first; their rises sum to `rise_bytes`.
    pub changes: Vec<RiseOfSite>,
}

/// What a line held more, or less, of a category.
#[derive(Clone, Debug, Serialize)]
pub struct RiseOfSite {
    /// Whose.
    pub site: Site,
    /// What for.
    pub category: &'static str,
    /// At the peak.
    pub bytes: u64,
    /// At that of the step before.
    pub before_bytes: u64,
    /// The one minus the other.
    pub rise_bytes: i64,
}

/// A block that was there at the peak.
#[derive(Clone, Debug, Serialize)]
pub struct PeakBlockRow {
    /// Where it begins.
    pub addr: u64,
    /// How large it is.
    pub bytes: u64,
    /// What was asked for, where that is known.
    pub requested_bytes: Option<u64>,
    /// Steps begun when it was allocated.
    pub step: Option<u64>,
    /// Which event of the allocator on this device brought it, counted from 1.
    pub born: u64,
    /// In which pass it came.
    pub pass: &'static str,
    /// What for.
    pub category: &'static str,
    /// How sure that is.
    pub confidence: Option<&'static str>,
    /// What told it.
    pub rule: &'static str,
    /// `id` of its site.
    pub site: String,
}
