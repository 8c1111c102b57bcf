//! Summaries of traces, and how they merge.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trace_summary::{Completeness, Process, TraceSummary};

const SCHEMA: &str = "gpumemtrace.summary";
const VERSION: u32 = 1;

/// A trace that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct UnreadableTrace {
    /// The path as given.
    pub path: String,
    /// Why, in one sentence.
    pub why: String,
}

/// Summaries of traces: the file that `gpumemtrace ranks -o` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The name of this format.
    schema: String,
    /// The version of this format.
    version: u32,
    /// One entry for each process, by rank, host, process id and start.
    traces: Vec<TraceSummary>,
    /// Traces that could not be read, by path.
    unreadable: Vec<UnreadableTrace>,
}

/// Why a file is not a summary.
#[derive(Debug)]
pub enum SummaryError {
    /// It is not JSON, or has other keys.
    Malformed(serde_json::Error),
    /// Another version of the format, or another document.
    Unknown,
}

impl std::fmt::Display for SummaryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "is damaged: {error}"),
            Self::Unknown => {
                write!(f, "is not a summary of version {VERSION}; write it again with this version")
            }
        }
    }
}

impl std::error::Error for SummaryError {}

/// What makes two entries the same process. Without its facts, the path has to do.
type Key = (u64, Process, String);

fn key_of(trace: &TraceSummary) -> Key {
    let process = &trace.process;
    let is_known = process.host.is_some() && process.pid.is_some() && process.started_unix_ns.is_some();
    let path = if is_known { String::new() } else { trace.path.clone() };
    (trace.rank.unwrap_or(u64::MAX), process.clone(), path)
}

/// Which of two entries of one process is kept: the more complete one. The text decides last, so
/// that the order is total.
fn weight_of(trace: &TraceSummary) -> (Completeness, String) {
    (trace.completeness(), serde_json::to_string(trace).unwrap_or_default())
}

impl Summary {
    /// The summary without traces.
    #[must_use]
    pub fn empty() -> Self {
        Self { schema: SCHEMA.to_owned(), version: VERSION, traces: Vec::new(), unreadable: Vec::new() }
    }

    /// A summary with this trace alone.
    #[must_use]
    pub fn of_trace(trace: TraceSummary) -> Self {
        Self { traces: vec![trace], ..Self::empty() }
    }

    /// A summary that names only a trace that could not be read, and why in one sentence.
    #[must_use]
    pub fn of_unreadable(path: String, why: String) -> Self {
        Self { unreadable: vec![UnreadableTrace { path, why }], ..Self::empty() }
    }

    /// The traces by rank, those without a rank last.
    #[must_use]
    pub fn traces(&self) -> &[TraceSummary] {
        &self.traces
    }

    /// The traces that could not be read, by path.
    #[must_use]
    pub fn unreadable(&self) -> &[UnreadableTrace] {
        &self.unreadable
    }

    /// The number of processes of another summary that this one lacks.
    #[must_use]
    pub fn count_absent(&self, other: &Self) -> usize {
        let own: BTreeSet<Key> = self.traces.iter().map(key_of).collect();
        other.traces.iter().filter(|trace| !own.contains(&key_of(trace))).count()
    }

    /// The traces of both. Order and grouping of merges do not change the result, nor does a trace
    /// that is in both. Of two entries of one process, the one with more events is kept, then the
    /// longer one, then the one whose process has ended.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let mut traces: BTreeMap<Key, TraceSummary> = BTreeMap::new();
        for trace in self.traces.into_iter().chain(other.traces) {
            let key = key_of(&trace);
            match traces.get(&key) {
                Some(kept) if weight_of(kept) >= weight_of(&trace) => {}
                _ => {
                    traces.insert(key, trace);
                }
            }
        }
        let mut unreadable = [self.unreadable, other.unreadable].concat();
        unreadable.sort();
        unreadable.dedup();
        Self { traces: traces.into_values().collect(), unreadable, ..Self::empty() }
    }

    /// Merges all of them. Takes time of n log n, where one merge after the other takes n squared.
    #[must_use]
    pub fn merge_all(summaries: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::empty();
        for summary in summaries {
            all.traces.extend(summary.traces);
            all.unreadable.extend(summary.unreadable);
        }
        all.merge(Self::empty())
    }

    /// Reads a summary.
    ///
    /// # Errors
    /// If the text is not a summary of this version.
    pub fn parse(text: &str) -> Result<Self, SummaryError> {
        let summary: Self = serde_json::from_str(text).map_err(SummaryError::Malformed)?;
        if summary.schema != SCHEMA || summary.version != VERSION {
            return Err(SummaryError::Unknown);
        }
        Ok(summary.merge(Self::empty()))
    }
}
