//! Many runs in the order of time.

use std::collections::BTreeSet;

use crate::job::missing_ranks_of;
use crate::summary::Summary;
use crate::trace_summary::TraceSummary;

/// The runs of a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunArchive {
    /// The runs by their start, those with an unknown one first.
    pub runs: Vec<ArchivedRun>,
    /// Names of runs that the tables list and that have no summary: an older version exported them.
    pub without_summary: Vec<String>,
    /// Names of runs whose summaries cannot be read.
    pub unreadable: Vec<String>,
    /// Indices of runs that are not shown. Versions are still compared with them.
    pub hidden: BTreeSet<usize>,
}

impl RunArchive {
    /// Puts runs, in any order, in the order of their start.
    #[must_use]
    pub fn new(mut runs: Vec<ArchivedRun>, without_summary: Vec<String>, unreadable: Vec<String>) -> Self {
        let order = |run: &ArchivedRun| (run.started_unix_ns(), run.name.clone());
        runs.sort_by_cached_key(order);
        Self { runs, without_summary, unreadable, hidden: BTreeSet::new() }
    }

    /// Hides the runs that a filter does not choose.
    pub fn show_only(&mut self, is_chosen: impl Fn(&ArchivedRun) -> bool) {
        let hidden = self.runs.iter().enumerate().filter(|(_, run)| !is_chosen(run));
        self.hidden = hidden.map(|(index, _)| index).collect();
    }

    /// The runs that are shown, by their start.
    pub fn shown(&self) -> impl DoubleEndedIterator<Item = &ArchivedRun> {
        let runs = self.runs.iter().enumerate();
        runs.filter(|(index, _)| !self.hidden.contains(index)).map(|(_, run)| run)
    }

    /// True if all runs are here, and those that are shown are complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let is_all = self.without_summary.is_empty() && self.unreadable.is_empty();
        is_all && self.shown().all(ArchivedRun::is_complete)
    }
}

/// A run of an archive: the summaries of its ranks under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct ArchivedRun {
    /// The name of the run.
    pub name: String,
    /// The summaries of its ranks.
    pub summary: Summary,
    /// Ranks that the tables of an archive list and that have no summary.
    pub ranks_without_summary: Vec<u64>,
}

impl ArchivedRun {
    /// True if no rank is missing, and all traces could be read and lack nothing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let traces = self.summary.traces();
        self.ranks_without_summary.is_empty()
            && self.summary.unreadable().is_empty()
            && traces.iter().all(|trace| trace.missing.is_empty())
            && missing_ranks_of(traces).is_empty()
    }

    /// The start of the first rank, in nanoseconds since the Unix epoch; `None` if unknown.
    #[must_use]
    pub fn started_unix_ns(&self) -> Option<u64> {
        self.summary.traces().iter().filter_map(|trace| trace.process.started_unix_ns).min()
    }

    /// The commit of the program; `None` if it is unknown, or if ranks differ.
    #[must_use]
    pub fn git_commit(&self) -> Option<&str> {
        self.common(|trace| trace.git_commit.as_deref())
    }

    /// The command line of the lowest rank, of its first process; `None` if it is unknown.
    #[must_use]
    pub fn command(&self) -> Option<&[String]> {
        let order = |trace: &&TraceSummary| {
            (trace.rank.unwrap_or(u64::MAX), trace.process.started_unix_ns.unwrap_or(u64::MAX))
        };
        self.summary.traces().iter().min_by_key(order)?.command.as_deref()
    }

    /// [`Self::command`] with spaces between its words, to be shown; `None` if it is unknown.
    #[must_use]
    pub fn program(&self) -> Option<String> {
        Some(self.command()?.join(" "))
    }

    /// True if a rank has this label.
    #[must_use]
    pub fn has_label(&self, key: &str, value: &str) -> bool {
        let traces = self.summary.traces();
        traces.iter().any(|trace| trace.labels.get(key).is_some_and(|own| own == value))
    }

    /// The value that all ranks have; `None` if it is unknown for all, or if ranks differ.
    pub fn common<'a>(&'a self, value: impl Fn(&'a TraceSummary) -> Option<&'a str>) -> Option<&'a str> {
        let mut values = self.summary.traces().iter().filter_map(value);
        let first = values.next()?;
        values.all(|other| other == first).then_some(first)
    }
}
