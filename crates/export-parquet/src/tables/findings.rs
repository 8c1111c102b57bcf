//! The table of findings.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// A finding of the report.
    "findings", FindingRow, FindingBuffer {
        /// Place in the report, from 0: most severe first.
        rank_in_report: i64,
        /// `info`, `warning` or `critical`.
        severity: Text,
        /// The kind, as in `verdicts` of the JSON report: `leak`, `oom`, `cache_pressure`...
        kind: Text,
        /// Ordinal of the GPU. Null for findings of the whole process.
        device: Option<i64>,
        /// The finding in one sentence.
        summary: Text,
        /// The id of the call site. Null for findings without one.
        site_id: Option<Text>,
        /// The numbers behind the finding: `evidence` of the JSON report.
        evidence_json: Text,
    }
}
