//! From one trace to thousands: what is kept of a trace, and what all of them say together.
//!
//! A [`Summary`] keeps about a kilobyte of each trace. Summaries merge in any order and grouping
//! ([`Summary::merge`]), so they can be made where the traces are, and merged elsewhere. A
//! [`JobReport`] compares the ranks of a summary: which differ from the others, which line grew, and
//! where growth began first. [`BudgetChecks`] are the checks of many traces against one budget,
//! and a [`RankComparison`] compares two runs rank by rank.

#![forbid(unsafe_code)]

mod archive;
mod attempts;
mod checks;
mod growth;
mod job;
mod rank_comparison;
mod regressions;
mod spread;
mod summary;
mod trace_summary;

pub use archive::{ArchivedRun, RunArchive};
pub use checks::{BudgetChecks, CheckDocument, merge_drafts};
pub use growth::{FirstGrowth, GrowingLine};
pub use job::{HostRow, IncompleteTrace, JobReport, RankOom};
pub use rank_comparison::{
    ChangeSpread, ComparisonDocument, LeakOfRanks, LineOfRanks, NoteOfRanks, RankComparison, RankMerger,
    RankPair, TotalOfRanks, UnpairedTrace,
};
pub use regressions::{ArchiveGrowth, GpuChoice, PairOutcome, Regression, VersionPair, regressions};
pub use spread::{Outlier, Spread};
pub use summary::{Summary, SummaryError, UnreadableTrace};
pub use trace_summary::{
    CallSite, Completeness, DeviceSummary, LeakSummary, OomSummary, Process, SitePeak, TraceSummary,
    WorstFinding,
};
