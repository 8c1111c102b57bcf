//! Steps, phases and marks as entries of the trace.

use gpumemtrace_replay::RunHistory;
use gpumemtrace_replay::report::WalkedEvent;

/// The moments of a run that have a name, in order of time.
pub(super) struct MomentLabels {
    /// Nanoseconds since the start of recording, and text; ascending.
    named: Vec<(u64, String)>,
    /// Number of those that have passed.
    passed: usize,
    /// Number of steps begun.
    step: u32,
    has_steps: bool,
}

impl MomentLabels {
    pub(super) fn new(history: &RunHistory) -> Self {
        let mut named: Vec<(u64, String)> = Vec::new();
        for (name, begin_ns, end_ns) in &history.phase_turns {
            named.push((*begin_ns, format!("phase {name} begins")));
            named.push((*end_ns, format!("phase {name} ends")));
        }
        named.extend(history.marks.iter().map(|(name, time_ns, _)| (*time_ns, format!("mark {name}"))));
        named.sort_by_key(|(time_ns, _)| *time_ns);
        Self { named, passed: 0, step: 0, has_steps: history.step_source.is_some() }
    }

    /// Passes the labels between the event before and this one to `take`.
    pub(super) fn pass(&mut self, walked: &WalkedEvent<'_>, mut take: impl FnMut(String)) {
        while let Some((_, text)) = self.named.get(self.passed).filter(|(at_ns, _)| *at_ns <= walked.time_ns)
        {
            take(text.clone());
            self.passed += 1;
        }
        if self.has_steps && walked.step != self.step {
            self.step = walked.step;
            take(format!("step {} begins", self.step));
        }
    }
}
