//! Finds the period with which a series grows.
//!
//! The cost is O(differences x periods) in the worst case. Most periods fail at their first
//! differences. `growth::tests` plants periods of 1 to 40 steps and disturbs them.

use super::MIN_GROWTH_STEPS;

/// Longest period looked for, in step ends. `tests/leaks/accuracy.rs` plants periods up to 50.
const MAX_PERIOD: usize = 512;
/// Relative error that the rate of a period may have against the Theil-Sen slope, where not all
/// differences follow the period (`inexact_period_must_have_the_rate_of_the_series`).
const MAX_RATE_ERROR: f64 = 0.2;
/// So many differences outside the period may be single events of the same line. The rate is not
/// compared with the slope then (`inexact_period_must_have_the_rate_of_the_series`).
const MAX_DISTURBANCES: usize = 2;

/// Growth that repeats with a period.
pub(super) struct PeriodicGrowth {
    /// Values from one repetition to the next.
    pub(super) period: usize,
    /// Growth of one period.
    pub(super) growth: u64,
    /// Differences that equal the one that their position in the period predicts.
    pub(super) followed: usize,
    /// Only the times of growth repeat, and its amounts vary. `growth` is 0 then.
    pub(super) is_by_time: bool,
}

/// The smallest period that all `differences` follow, that fits four times, and that grows. Else
/// the smallest with at most one exception in ten changes.
///
/// Exact periods come first, and others must have the rate of `slope`. A short period may be
/// followed by most differences and miss half of the growth: one block a step and ten more every
/// twelfth (`inexact_period_must_have_the_rate_of_the_series`).
pub(super) fn find_period(differences: &[i64], slope: f64) -> Option<PeriodicGrowth> {
    let longest = (differences.len() / MIN_GROWTH_STEPS).min(MAX_PERIOD);
    let is_exact = |period: &usize| differences.iter().zip(&differences[*period..]).all(|(a, b)| a == b);
    let exact = (1..=longest).find(is_exact).and_then(|period| periodic_growth(differences, period));
    let changes = differences.iter().filter(|difference| **difference != 0).count();
    exact.or_else(|| {
        (1..=longest).find_map(|period| {
            let regular = periodic_growth(differences, period)?;
            let rate = regular.growth as f64 / period as f64;
            let disturbances = differences.len() - regular.followed;
            let is_at_slope =
                (rate - slope).abs() <= slope * MAX_RATE_ERROR || disturbances <= MAX_DISTURBANCES;
            (disturbances * 10 <= changes && is_at_slope).then_some(regular)
        })
    })
}

/// The smallest period with which the differences change their sign, exactly.
pub(super) fn find_period_of_events(differences: &[i64]) -> Option<PeriodicGrowth> {
    let signs: Vec<i64> = differences.iter().map(|difference| difference.signum()).collect();
    let regular = find_period(&signs, f64::NAN)?;
    let is_exact = regular.followed == signs.len();
    is_exact.then_some(PeriodicGrowth { growth: 0, is_by_time: true, ..regular })
}

/// The growth of a period: the sum of the most frequent difference at each position. `None` unless
/// more than half of the differences at each position are equal and the sum is positive.
fn periodic_growth(differences: &[i64], period: usize) -> Option<PeriodicGrowth> {
    let (mut growth, mut followed) = (0i64, 0usize);
    for position in 0..period {
        let at_position = || differences.iter().skip(position).step_by(period);
        let value = majority_candidate(at_position());
        let count = at_position().filter(|difference| **difference == value).count();
        if count * 2 <= at_position().len() {
            return None;
        }
        growth = growth.saturating_add(value);
        followed += count;
    }
    (growth > 0).then_some(PeriodicGrowth { period, growth: growth as u64, followed, is_by_time: false })
}

/// The value that makes up more than half, if there is one, else any of them (the majority vote of
/// Boyer and Moore, 1991).
fn majority_candidate<'a>(values: impl Iterator<Item = &'a i64>) -> i64 {
    let (mut candidate, mut votes) = (0, 0usize);
    for value in values {
        match (votes, *value == candidate) {
            (0, _) => (candidate, votes) = (*value, 1),
            (_, true) => votes += 1,
            (_, false) => votes -= 1,
        }
    }
    candidate
}
