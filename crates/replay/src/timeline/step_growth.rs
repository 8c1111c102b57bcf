//! Growth of allocated memory per step of a running program.
//!
//! Temporary blocks come and go within a step, so the lowest bytes of a step count. The minimum of
//! the last steps is compared with that of as many steps before. Growth from the start of a run
//! drops out after [`MAX_WINDOW_STEPS`] times two steps.

use std::collections::{BTreeMap, VecDeque};

use gpumemtrace_format::{Event, EventKind};

/// Steps of each of the two windows, at most.
const MAX_WINDOW_STEPS: usize = 50;
/// Steps of each window from which growth is given.
const MIN_WINDOW_STEPS: usize = 10;

/// The lowest allocated bytes of the last steps, by device.
#[derive(Debug, Default)]
pub(crate) struct StepGrowth {
    has_begun: bool,
    devices: BTreeMap<u8, StepMinima>,
}

#[derive(Debug)]
struct StepMinima {
    bytes: u64,
    /// Of the present step.
    minimum: u64,
    ended: VecDeque<u64>,
}

impl StepGrowth {
    /// Observes an event, which may begin a step.
    pub(crate) fn on_event(&mut self, event: &Event, begins_step: bool) {
        if begins_step {
            let has_begun = std::mem::replace(&mut self.has_begun, true);
            for minima in self.devices.values_mut() {
                // What lies before the first step is no step.
                if has_begun { minima.end_step() } else { minima.minimum = minima.bytes }
            }
        }
        if matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
            let [bytes, _] = event.aux;
            let new = || StepMinima { bytes, minimum: bytes, ended: VecDeque::new() };
            let minima = self.devices.entry(event.device).or_insert_with(new);
            minima.bytes = bytes;
            minima.minimum = minima.minimum.min(bytes);
        }
    }

    /// Bytes per step; `None` for fewer than 20 steps with blocks of PyTorch.
    pub(crate) fn growth_of(&self, device: u8) -> Option<f64> {
        let ended = &self.devices.get(&device)?.ended;
        let window = ended.len() / 2;
        let minimum = |from: usize| ended.iter().skip(from).take(window).min().copied();
        let (before, after) = (minimum(ended.len() - 2 * window)?, minimum(ended.len() - window)?);
        (window >= MIN_WINDOW_STEPS).then(|| (after as f64 - before as f64) / window as f64)
    }
}

impl StepMinima {
    fn end_step(&mut self) {
        if self.ended.len() == 2 * MAX_WINDOW_STEPS {
            self.ended.pop_front();
        }
        self.ended.push_back(std::mem::replace(&mut self.minimum, self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_lowest_bytes_of_steps() {
        let run = |steps: u64, base: &dyn Fn(u64) -> u64| {
            let mut growth = StepGrowth::default();
            growth.on_event(&Event { device: 1, ..Event::new(EventKind::BLOCK_ALLOC) }, false);
            for step in 0..=steps {
                let levels = [base(step), base(step) + 1000 + step * 7 % 13, base(step)];
                for (number, bytes) in levels.into_iter().enumerate() {
                    let event = Event { device: 1, aux: [bytes, 5000], ..Event::new(EventKind::BLOCK_ALLOC) };
                    growth.on_event(&event, number == 0);
                }
            }
            assert_eq!(growth.growth_of(0), None);
            growth.growth_of(1)
        };
        assert_eq!(run(19, &|step| step * 8), None);
        assert!(run(20, &|step| step * 8).is_some());
        // The level before a step counts, and the first step has none.
        assert_eq!(run(21, &|step| step * 8), Some(8.0));
        assert_eq!(run(300, &|step| step * 8), Some(8.0));
        assert_eq!(run(300, &|_| 64), Some(0.0));
        assert_eq!(run(300, &|step| 3000 - step * 8), Some(-8.0));
        assert_eq!(run(300, &|step| if step < 5 { 0 } else { 900 }), Some(0.0), "the start has passed");
    }
}
