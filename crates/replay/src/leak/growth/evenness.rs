//! Judges whether growth without a period is even, or slows down as a cache that fills up.
//!
//! A few growth steps are uneven by chance. The bounds therefore depend on their number, and what
//! chance explains is [`Evenness::Unclear`]. `growth::tests` checks caches and even growth.

use super::MANY_GROWTH_STEPS;

/// One-sided 5% quantile of the normal distribution.
const Z_95_ONE_SIDED: f64 = 1.644_854;
/// Probability below which a last third without growth is no chance.
const MAX_CHANCE_OF_GAP: f64 = 0.05;
/// Mean time of growth without a period, as a share of the span: 0 at its start, 0.5 for even
/// growth, 1 at its end. An exponential approach that has come to 63% of its bound has 0.42.
pub(super) const MIN_MEAN_TIME: f64 = 0.43;

/// Whether growth without a period goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evenness {
    Even,
    /// Uneven, but so few growth steps are as uneven by chance.
    Unclear,
    Saturating,
}

/// `growth_steps`: indexes into `floors`.
pub(super) fn judge_evenness(floors: &[u64], growth_steps: &[usize]) -> Evenness {
    let span = floors.len() - 1;
    let at_third = |third: usize| floors[span * third / 3];
    let (first, last) = (at_third(0), at_third(3));
    let even_share = (last - first) as f64 / 3.0;
    let last_third = (last - at_third(2)) as f64;
    let first_two = (at_third(2) - first) as f64;
    // Times of n events spread evenly have a mean of 0.5 and a standard deviation of 1/sqrt(12 n);
    // none of them falls into the last third with probability (2/3)^n.
    let events = growth_steps.len() as f64;
    let earliest_mean = 0.5 - Z_95_ONE_SIDED / (12.0 * events).sqrt();
    let least_mean_time = if growth_steps.len() >= MANY_GROWTH_STEPS {
        earliest_mean.min(MIN_MEAN_TIME)
    } else {
        MIN_MEAN_TIME
    };
    let is_late_enough = mean_time_of_growth(floors) >= least_mean_time;
    if last_third >= even_share / 2.0 && first_two >= even_share && is_late_enough {
        return Evenness::Even;
    }
    let mean_of_steps = growth_steps.iter().map(|at| *at as f64 - 0.5).sum::<f64>() / (events * span as f64);
    let late = growth_steps.iter().filter(|at| **at > span * 2 / 3).count();
    let is_early = mean_of_steps < earliest_mean;
    let is_late_empty = late == 0 && (2.0f64 / 3.0).powf(events) < MAX_CHANCE_OF_GAP;
    if is_early || is_late_empty { Evenness::Saturating } else { Evenness::Unclear }
}

/// When growth came on average: 0 all at the start, 0.5 evenly, 1 all at the end.
pub(super) fn mean_time_of_growth(floors: &[u64]) -> f64 {
    let span = (floors.len() - 1) as f64;
    let rises = (1..floors.len()).map(|at| ((floors[at] - floors[at - 1]) as f64, at as f64 - 0.5));
    let (sum, weighted) =
        rises.fold((0.0, 0.0), |(sum, weighted), (rise, at)| (sum + rise, weighted + rise * at));
    weighted / (sum * span)
}
