//! How processes and runs ended: the one rule for `history`, its page, and the question
//! `failed_runs` in SQL.

use gpumemtrace_replay::report::Ending;
use schemars::JsonSchema;
use serde::Serialize;

use crate::attempts::superseded;
use crate::trace_summary::TraceSummary;

/// How a process ended. Of the processes of a run, the first of these counts: a launcher kills the
/// other ranks if one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran out of memory and failed.
    OutOfMemory,
    /// It ran out of memory; how it ended is unknown.
    OutOfMemoryUnknownEnd,
    /// A signal of its own fault ended it, such as SIGSEGV.
    Crashed,
    /// It exited with a code other than 0, as after an uncaught exception.
    ErrorExit,
    /// Another signal ended it, or it ended without closing the trace.
    Killed,
    /// How it ended is unknown: the trace was cut, or lacks its ring file.
    Unknown,
    /// It was running when its trace was read.
    Unfinished,
    /// It ran out of memory and went on: its exit code is 0.
    OutOfMemoryCaught,
    /// It exited without an error, as far as is known.
    Exited,
}

impl TraceSummary {
    /// How the process ended.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let (end, ran_out) = (self.end.as_deref(), !self.ooms.is_empty());
        let is = |ending: Ending| end == Some(ending.name());
        let has_failed = self.exit_code.is_some_and(|code| code != 0);
        if ran_out && (is(Ending::Crashed) || is(Ending::Killed) || has_failed) {
            Outcome::OutOfMemory
        } else if ran_out && self.exit_code.is_none() {
            Outcome::OutOfMemoryUnknownEnd
        } else if is(Ending::Crashed) {
            Outcome::Crashed
        } else if has_failed {
            Outcome::ErrorExit
        } else if is(Ending::Killed) {
            Outcome::Killed
        } else if end.is_none() {
            Outcome::Unknown
        } else if is(Ending::Running) {
            Outcome::Unfinished
        } else if ran_out {
            Outcome::OutOfMemoryCaught
        } else {
            Outcome::Exited
        }
    }
}

/// How a run ended: the last process of each rank counts. `None` without traces.
pub(crate) fn outcome_of_run(traces: &[TraceSummary]) -> Option<Outcome> {
    let last = traces.iter().zip(superseded(traces)).filter(|(_, is_superseded)| !is_superseded);
    last.map(|(trace, _)| trace.outcome()).min()
}
