//! When phases began and ended, for viewers. Only the first [`MAX_TURNS`] turns are kept.

use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::timeline::phases::thread_of_phase;

/// Limit of turns of phases.
const MAX_TURNS: usize = 1 << 13;

/// One turn of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhaseTurn {
    /// The name of the phase, as a code object; its name is empty if the trace lacks it.
    pub name: CodeId,
    pub begin_ns: u64,
    /// `None` if it did not end within the recording.
    pub end_ns: Option<u64>,
    thread: ThreadId,
}

/// When phases began and ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct PhaseTurns {
    turns: Vec<PhaseTurn>,
    /// Count of turns beyond the limit.
    omitted_turns: u64,
    /// Threads of omitted turns that have not ended.
    omitted_open: Vec<ThreadId>,
}

impl PhaseTurns {
    /// Records the begin or end of a phase, as [`crate::timeline::phases`] defines them.
    pub(crate) fn on_phase_event(&mut self, event: &Event, time_ns: u64) {
        if event.kind == EventKind::PHASE_BEGIN {
            let name = CodeId(event.aux[0] as u32);
            let thread = thread_of_phase(event);
            if self.turns.len() < MAX_TURNS {
                self.turns.push(PhaseTurn { name, begin_ns: time_ns, end_ns: None, thread });
            } else {
                self.omitted_turns += 1;
                self.omitted_open.push(thread);
            }
        } else if let Some(index) = self.omitted_open.iter().rposition(|open| *open == event.thread) {
            self.omitted_open.remove(index);
        } else {
            let is_open = |turn: &&mut PhaseTurn| turn.end_ns.is_none() && turn.thread == event.thread;
            if let Some(turn) = self.turns.iter_mut().rev().find(is_open) {
                turn.end_ns = Some(time_ns);
            }
        }
    }

    /// Number of turns that are not recorded.
    pub(crate) fn omitted(&self) -> u64 {
        self.omitted_turns
    }

    /// The turns in the order of their begin.
    pub(crate) fn turns(&self) -> &[PhaseTurn] {
        &self.turns
    }
}
