//! From one trace to thousands: what is kept of a trace, and what all of them say together.
//!
//! A [`Summary`] keeps about a kilobyte of each trace. Summaries merge in any order and grouping
//! ([`Summary::merge`]), so they can be made where the traces are, and merged elsewhere. A
//! [`JobReport`] compares the ranks of a summary: which differ from the others, which line grew,
//! and where growth began first. [`BudgetChecks`] are the checks of many traces against one budget,
//! and a [`RankComparison`] compares two runs rank by rank.

#![forbid(unsafe_code)]

mod archive;
pub mod archive_layout;
mod attempts;
mod checks;
mod functions;
mod growth;
mod growth_between_versions;
mod history_report;
mod job;
mod outcome;
mod rank_comparison;
mod summary;
mod trace_summary;
mod versions;

pub use archive::{ArchivedRun, RunArchive};
pub use checks::{BudgetChecks, CheckDocument, merge_drafts};
pub use functions::GpuChoice;
pub use growth::{FirstGrowth, GrowingLine};
pub use growth_between_versions::{ArchiveGrowth, Regression, VersionPair, growth_between_versions};
pub use history_report::{ComparedVersions, FunctionGrowth, HistoryReport, HistoryRun, Versions};
pub use job::{HostRow, IncompleteTrace, JobReport, Outlier, RankOom};
pub use outcome::Outcome;
pub use rank_comparison::{
    ChangeSpread, ComparisonDocument, LeakOfRanks, LineOfRanks, NoteOfRanks, RankComparison, RankMerger,
    RankPair, TotalOfRanks, UnpairedTrace,
};
pub use summary::{Summary, SummaryError, UnreadableTrace};
pub use trace_summary::{
    CallSite, Completeness, DeviceSummary, LeakSummary, OomSummary, Process, SitePeak, TraceSummary,
    WorstFinding,
};
pub use versions::PairOutcome;
