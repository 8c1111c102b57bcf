//! Phases as pairs of events.
//!
//! Stormlog matches begin and end per thread, and expects the phases of a thread to be nested. The
//! history has no threads, so each phase goes to the first lane that is free at its begin.

use serde_json::Value;

use crate::export::json_object::object;

/// The begin or the end of a phase.
pub(super) struct PhaseBoundary<'a> {
    /// Nanoseconds since the start of recording.
    pub(super) time_ns: u64,
    pub(super) event_type: &'static str,
    pub(super) name: &'a str,
    lane: u64,
    /// Ascends within the run; both ends of a phase have neighbouring numbers.
    sequence: u64,
}

impl PhaseBoundary<'_> {
    /// The value of `metadata.phase_scope`.
    pub(super) fn scope(&self) -> Value {
        let is_begin = self.sequence.is_multiple_of(2);
        object([
            ("action", if is_begin { "enter" } else { "exit" }.into()),
            ("name", self.name.into()),
            ("path", Value::Array(vec![self.name.into()])),
            ("depth", 1.into()),
            ("scope_id", format!("phase-{}", self.sequence / 2).into()),
            ("parent_scope_id", Value::Null),
            ("thread_id", self.lane.into()),
            ("thread_name", "unknown".into()),
            ("sequence", self.sequence.into()),
            ("attributes", object([])),
        ])
    }
}

/// The boundaries of the turns of phases that overlap a span, cut at its bounds.
pub(super) fn phase_boundaries(
    turns: &[(String, u64, u64)],
    (from_ns, to_ns): (u64, u64),
) -> Vec<PhaseBoundary<'_>> {
    let mut lane_ends_ns: Vec<u64> = Vec::new();
    let mut boundaries = Vec::new();
    let is_shown = |(name, begin_ns, end_ns): &&(String, u64, u64)| {
        !name.trim().is_empty() && *begin_ns <= to_ns && *end_ns >= from_ns
    };
    for (number, (name, begin_ns, end_ns)) in (0u64..).zip(turns.iter().filter(is_shown)) {
        let (begin_ns, end_ns) = ((*begin_ns).max(from_ns), (*end_ns).min(to_ns));
        let free = lane_ends_ns.iter().position(|lane_end_ns| *lane_end_ns < begin_ns);
        let lane = free.unwrap_or(lane_ends_ns.len());
        lane_ends_ns.resize(lane_ends_ns.len().max(lane + 1), 0);
        lane_ends_ns[lane] = end_ns;
        for (time_ns, event_type, sequence) in
            [(begin_ns, "phase_enter", 2 * number), (end_ns, "phase_exit", 2 * number + 1)]
        {
            boundaries.push(PhaseBoundary { time_ns, event_type, name, lane: lane as u64, sequence });
        }
    }
    boundaries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_phases_have_different_lanes_and_are_cut() {
        let turn = |name: &str, begin_ns, end_ns| (name.to_owned(), begin_ns, end_ns);
        let turns =
            [turn("before", 0, 4), turn("a", 3, 10), turn("b", 5, 20), turn(" ", 6, 7), turn("c", 11, 12)];
        let found: Vec<_> = phase_boundaries(&turns, (5, 15))
            .into_iter()
            .map(|one| (one.time_ns, one.event_type, one.name, one.lane, one.sequence))
            .collect();
        assert_eq!(
            found,
            [
                (5, "phase_enter", "a", 0, 0),
                (10, "phase_exit", "a", 0, 1),
                (5, "phase_enter", "b", 1, 2),
                (15, "phase_exit", "b", 1, 3),
                (11, "phase_enter", "c", 0, 4),
                (12, "phase_exit", "c", 0, 5),
            ]
        );
    }
}
