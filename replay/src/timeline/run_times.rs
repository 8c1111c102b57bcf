//! The times of steps and phases, for viewers.
//!
//! Of more than [`MAX_STEPS`] steps only every second, fourth, ... keeps its time, and of more than
//! [`MAX_TURNS`] turns of phases only the first, so memory is constant.

use gpumemtrace_format::{CodeId, Event, EventKind, ThreadId};

use crate::timeline::phases::thread_of_phase;

/// Limit of step times.
const MAX_STEPS: usize = 1 << 15;
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

/// When steps and phases began and ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunTimes {
    /// Start of steps 1, 1 + `every`, 1 + 2 * `every`...
    step_starts: Vec<u64>,
    /// Number of steps left out after each one that is kept.
    skip: u64,
    steps: u64,
    turns: Vec<PhaseTurn>,
    /// Count of turns beyond the limit.
    omitted_turns: u64,
    /// Threads of omitted turns that have not ended.
    omitted_open: Vec<ThreadId>,
}

impl RunTimes {
    /// Records the start of a step.
    pub(crate) fn begin_step(&mut self, time_ns: u64) {
        if self.steps.is_multiple_of(self.skip + 1) {
            if self.step_starts.len() >= MAX_STEPS {
                self.skip = self.skip * 2 + 1;
                let mut index = 0usize;
                self.step_starts.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            if self.steps.is_multiple_of(self.skip + 1) {
                self.step_starts.push(time_ns);
            }
        }
        self.steps += 1;
    }

    /// Start of steps 1, 1 + [`Self::every`] and so on.
    pub(crate) fn step_starts(&self) -> &[u64] {
        &self.step_starts
    }

    /// Distance of the steps with a known start.
    pub(crate) fn every(&self) -> u64 {
        self.skip + 1
    }

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
    pub(crate) fn omitted_turns(&self) -> u64 {
        self.omitted_turns
    }

    /// The turns in the order of their begin.
    pub(crate) fn turns(&self) -> &[PhaseTurn] {
        &self.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_a_known_start_are_at_even_distances() {
        let mut times = RunTimes::default();
        let steps = 5 * MAX_STEPS as u64;
        for step in 1..=steps {
            times.begin_step(step * 10);
        }
        assert_eq!(times.every(), 8);
        let starts: Vec<u64> = (1..=steps).step_by(8).map(|step| step * 10).collect();
        assert_eq!(times.step_starts(), starts);
    }
}
