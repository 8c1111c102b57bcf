//! The goals of the leak analysis (`docs/accuracy.md`).

use super::counts::{Counts, Share};

/// A goal, and what was measured.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    pub name: &'static str,
    pub least: f64,
    pub measured: Share,
}

impl Goal {
    /// True if the goal is missed by no more than `slack`. Nothing measured is a failure.
    pub fn is_met_within(&self, slack: f64) -> bool {
        self.measured.value().is_some_and(|value| value >= self.least - slack)
    }
}

/// The goals in the order of the table, with what was measured.
pub fn goals(counts: &Counts) -> Vec<Goal> {
    let goal = |name, least, measured| Goal { name, least, measured };
    let (from_6, from_20) = (counts.leaks_from_bucket(1), counts.leaks_from_bucket(3));
    let mut covered = Share::default();
    counts.forecasts.values().for_each(|of_cut| covered += of_cut.covered);
    vec![
        goal("recall, 20 leak events or more", 0.99, from_20.found),
        goal("recall, 6 leak events or more", 0.9, from_6.found),
        goal("precision: streams with findings, all at planted lines", 0.995, counts.precise),
        goal("first finding at a planted line", 0.98, counts.first_line),
        goal("rate within 5%, 6 leak events or more", 0.98, from_6.rate),
        goal("out-of-memory interval has the true step", 0.9, covered),
    ]
}
