//! When steps began.
//!
//! Of more than [`MAX_STEPS`] steps only every second, fourth, ... keeps its time, so memory is
//! constant.

/// Limit of step times.
const MAX_STEPS: usize = 1 << 15;
/// A shorter time shows no pace: what a program sets up comes as fast as it can.
const MIN_SPAN_NS: u64 = 1_000_000_000;

/// When steps began, or the intervals of a run without steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTimes {
    /// Start of steps 1, 1 + `every`, 1 + 2 * `every`...
    starts: Vec<u64>,
    /// Number of steps left out after each one that is kept.
    skip: u64,
    steps: u64,
}

impl StepTimes {
    /// Records the start of a step.
    pub(crate) fn begin_step(&mut self, time_ns: u64) {
        if self.steps.is_multiple_of(self.skip + 1) {
            if self.starts.len() >= MAX_STEPS {
                self.skip = self.skip * 2 + 1;
                let mut index = 0usize;
                self.starts.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
            if self.steps.is_multiple_of(self.skip + 1) {
                self.starts.push(time_ns);
            }
        }
        self.steps += 1;
    }

    /// Start of steps 1, 1 + [`Self::every`] and so on.
    pub(crate) fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// Distance of the steps with a known start.
    pub(crate) fn every(&self) -> u64 {
        self.skip + 1
    }

    /// How fast steps passed from `first` to `last`; `None` if both have one known start, or if
    /// less than a second passed between them. Step 0 has none: the first one counts instead.
    pub(crate) fn pace(&self, first: u64, last: u64) -> Option<Pace> {
        let known = |step: u64| {
            let index = (step.saturating_sub(1) / self.every()) as usize;
            let index = index.min(self.starts.len().checked_sub(1)?);
            Some((1 + index as u64 * self.every(), *self.starts.get(index)?))
        };
        let ((first, began_ns), (last, reached_ns)) = (known(first)?, known(last)?);
        let passed_ns = reached_ns.checked_sub(began_ns).filter(|passed| *passed >= MIN_SPAN_NS)?;
        let steps = last.checked_sub(first).filter(|steps| *steps > 0)?;
        Some(Pace { ns_per_step: passed_ns as f64 / steps as f64, last, last_ns: reached_ns })
    }
}

/// How fast steps followed each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    ns_per_step: f64,
    /// A step with a known start, in nanoseconds.
    last: u64,
    last_ns: u64,
}

impl Pace {
    /// An amount per second instead of per step.
    pub(crate) fn per_second(self, per_step: f64) -> f64 {
        per_step * 1e9 / self.ns_per_step
    }

    /// When a later step begins, if the pace stays.
    pub(crate) fn start_of(self, step: u64) -> u64 {
        let ahead = step.saturating_sub(self.last) as f64;
        self.last_ns.saturating_add((ahead * self.ns_per_step) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps at a distance of 0.1 s.
    fn times_of(steps: u64) -> StepTimes {
        let mut times = StepTimes::default();
        (1..=steps).for_each(|step| times.begin_step(step * 100_000_000));
        times
    }

    #[test]
    fn steps_with_a_known_start_are_at_even_distances() {
        let steps = 5 * MAX_STEPS as u64;
        let times = times_of(steps);
        assert_eq!(times.every(), 8);
        let starts: Vec<u64> = (1..=steps).step_by(8).map(|step| step * 100_000_000).collect();
        assert_eq!(times.starts(), starts);
    }

    #[test]
    fn pace_is_measured_between_known_starts() {
        for steps in [20, 5 * MAX_STEPS as u64] {
            let times = times_of(steps);
            let pace = times.pace(0, steps).unwrap();
            assert_eq!(pace.per_second(3.0).to_bits(), 30f64.to_bits());
            assert_eq!(pace.start_of(steps + 100), (steps + 100) * 100_000_000);
        }
        assert_eq!(times_of(20).pace(7, 7), None);
        assert_eq!(times_of(20).pace(3, 12), None, "0.9 s");
        assert_eq!(times_of(0).pace(0, 7), None);
    }
}
