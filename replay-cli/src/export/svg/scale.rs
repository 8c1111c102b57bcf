//! The axes of a chart: where values lie, and which ones are labelled.

/// Maps values from 0, or from the first one, to a length in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    first: f64,
    per_unit: f64,
}

impl Scale {
    /// The values from `first` to `last` fill `pixels`.
    pub(super) fn new((first, last): (u64, u64), pixels: f64) -> Self {
        let span = last.saturating_sub(first).max(1) as f64;
        Self { first: first as f64, per_unit: pixels / span }
    }

    pub(super) fn at(self, value: u64) -> f64 {
        ((value as f64 - self.first) * self.per_unit * 10.0).round() / 10.0
    }
}

/// Multiples of a power of two, from 0 up to the highest: 4 to 8 labels of an axis of bytes.
pub(super) fn byte_ticks(highest_bytes: u64) -> Vec<u64> {
    let step = (highest_bytes / 4).max(1);
    let step = 1u64 << step.ilog2();
    (0..=highest_bytes / step).map(|number| number * step).collect()
}

/// Five times at even distances.
pub(super) fn time_ticks((first_ns, last_ns): (u64, u64)) -> Vec<u64> {
    let span_ns = last_ns.saturating_sub(first_ns);
    (0..5).map(|quarter| first_ns + span_ns / 4 * quarter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        for highest in [1, 5, 1000, 440 << 20, 24 << 30, u64::MAX] {
            let ticks = byte_ticks(highest);
            assert!((2..=8).contains(&ticks.len()), "{highest}: {ticks:?}");
            assert!(ticks[1].is_power_of_two() && ticks.iter().all(|tick| *tick <= highest));
        }
        assert_eq!(time_ticks((100, 500)), [100, 200, 300, 400, 500]);
    }

    #[test]
    fn scale_maps_the_ends_to_the_ends() {
        let scale = Scale::new((100, 300), 50.0);
        let places = [scale.at(100), scale.at(200), scale.at(300), Scale::new((7, 7), 50.0).at(7)];
        assert_eq!(places.map(|pixels| pixels as u32), [0, 25, 50, 0]);
    }
}
