//! What to know before anything else, as `--json` prints it: see [`crate::verdicts`].

use serde::Serialize;
use serde_json::Value;

/// A finding in one sentence.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Index in `traces`.
    pub trace: usize,
    /// `leak`, `oom`, `incomplete`, `total_mismatch`, ...
    pub kind: &'static str,
    /// How bad.
    pub severity: Severity,
    /// One sentence.
    pub summary: String,
    /// The numbers behind it.
    pub evidence: Value,
}

/// How bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Look at it.
    Warning,
    /// It will end or has ended the run.
    Critical,
}
