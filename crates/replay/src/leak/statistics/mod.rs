//! Statistics of a series: whether it rises by more than chance, how fast, and within which bounds.
//!
//! * *Mann-Kendall* (Mann 1945, Kendall 1975): S is the number of rising pairs minus the number of
//!   falling pairs, and tau is S over all pairs. Without a trend S is nearly normal, with variance
//!   (n(n-1)(2n+5) - sum over ties t(t-1)(2t+5)) / 18. The p-value is one-sided and has the
//!   correction for continuity.
//! * *Hamed and Rao* (J. Hydrology 204, 1998): autocorrelated values make trends by chance. The
//!   variance is multiplied by 1 + 2/(n(n-1)(n-2)) * sum over lags i of (n-i)(n-i-1)(n-i-2) r(i).
//!   r(i) is the autocorrelation of the ranks of the residuals of the Theil-Sen line; lags with
//!   |r(i)| below 1.96/sqrt(n) do not count. A factor below 1 would make chance less likely and is
//!   replaced by 1.
//! * *Theil-Sen* (Theil 1950, Sen 1968): the slope is the median of the slopes of all pairs. Its
//!   95% interval ends 1.96 standard deviations of S, halved, to either side of the median's
//!   rank.
//!
//! A series longer than [`MAX_VALUES`] is thinned evenly. [`fit_trend`] is O(n^2) and runs only
//! for series that otherwise grow. The tests hold a worked example from Gilbert (1987) and error
//! rates over seeded noise.

use std::cmp::Ordering;

/// Values of a series that are used, evenly spaced. It bounds the 32,640 pairs of [`fit_trend`].
pub(crate) const MAX_VALUES: usize = 256;
/// Two-sided 5% quantile of the normal distribution.
const Z_95: f64 = 1.959_964;

/// A Theil-Sen slope with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Slope {
    /// Growth from one value to the next.
    pub per_value: f64,
    /// Lower and upper bound of the 95% interval.
    pub interval: [f64; 2],
}

/// The result of Mann-Kendall's test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trend {
    /// Kendall's tau, from -1 to 1.
    pub tau: f64,
    /// Probability that a series without a trend rises as much.
    pub p: f64,
}

/// Trend and slope of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TrendFit {
    /// Mann-Kendall, corrected for autocorrelation.
    pub trend: Trend,
    pub slope: Slope,
}

/// A series thinned to at most [`MAX_VALUES`] values.
struct ThinnedSeries {
    values: Vec<f64>,
    /// Distance between two of them in the original series.
    every: usize,
}

impl ThinnedSeries {
    fn new(values: &[u64]) -> Self {
        let every = values.len().div_ceil(MAX_VALUES).max(1);
        Self { values: values.iter().step_by(every).map(|value| *value as f64).collect(), every }
    }
}

/// Mann-Kendall's test with Hamed and Rao's correction, and the Theil-Sen slope.
pub(crate) fn fit_trend(values: &[u64]) -> TrendFit {
    let ThinnedSeries { values, every } = ThinnedSeries::new(values);
    let mut slopes = Vec::with_capacity(values.len() * values.len() / 2);
    for (at, a) in values.iter().enumerate() {
        slopes.extend(values[at + 1..].iter().zip(1..).map(|(b, ahead)| (b - a) / f64::from(ahead)));
    }
    if slopes.is_empty() {
        return TrendFit { trend: Trend { tau: 0.0, p: 1.0 }, slope: Slope::default() };
    }
    let score = KendallScore::of_series(&values);
    let tau = score.s / slopes.len() as f64;
    let median_rank = (slopes.len() - 1) as f64 / 2.0;
    let median = value_at_rank(&mut slopes, median_rank);
    let residuals: Vec<f64> =
        values.iter().zip(0..).map(|(value, at)| value - median * f64::from(at)).collect();
    let score = KendallScore { variance: score.variance * variance_inflation(&residuals), ..score };
    let distance = Z_95 * score.variance.sqrt() / 2.0;
    // The median has divided the slopes: the bounds are each in one part.
    let middle = median_rank as usize;
    let (low, high) = (median_rank - distance, median_rank + distance - middle as f64);
    let below = if low.ceil() <= middle as f64 { &mut slopes[..=middle] } else { &mut slopes[..] };
    let low = value_at_rank(below, low);
    let interval = [low, value_at_rank(&mut slopes[middle..], high)].map(|slope| slope / every as f64);
    TrendFit {
        trend: Trend { tau, p: score.p_value() },
        slope: Slope { per_value: median / every as f64, interval },
    }
}

/// Kendall's S and its variance without a trend.
#[derive(Clone, Copy)]
struct KendallScore {
    s: f64,
    variance: f64,
}

impl KendallScore {
    fn of_series(values: &[f64]) -> Self {
        let n = values.len();
        let mut sorted = values.to_vec();
        let falling = count_falling(&mut sorted, &mut Vec::with_capacity(n));
        let term = |count: usize| {
            let count = count as f64;
            count * (count - 1.0) * (2.0 * count + 5.0)
        };
        let (mut tied_pairs, mut tied) = (0, 0.0);
        for group in sorted.chunk_by(|a, b| a.total_cmp(b).is_eq()) {
            tied_pairs += group.len() * (group.len() - 1) / 2;
            tied += term(group.len());
        }
        let rising = n * n.saturating_sub(1) / 2 - tied_pairs - falling;
        Self { s: rising as f64 - falling as f64, variance: ((term(n) - tied) / 18.0).max(0.0) }
    }

    /// The probability of S or more without a trend.
    fn p_value(self) -> f64 {
        let Self { s, variance } = self;
        if variance <= 0.0 || s <= 0.0 {
            return if s > 0.0 { 0.0 } else { 1.0 };
        }
        normal_upper_tail((s - 1.0) / variance.sqrt())
    }
}

/// Sorts `values` by merging and counts the pairs that were in falling order. `merged` is scratch
/// space.
fn count_falling(values: &mut [f64], merged: &mut Vec<f64>) -> usize {
    if values.len() < 2 {
        return 0;
    }
    let (left, right) = values.split_at_mut(values.len() / 2);
    let mut falling = count_falling(left, merged) + count_falling(right, merged);
    merged.clear();
    let (mut a, mut b) = (0, 0);
    while a < left.len() || b < right.len() {
        if b == right.len() || a < left.len() && left[a] <= right[b] {
            merged.push(left[a]);
            a += 1;
        } else {
            falling += left.len() - a;
            merged.push(right[b]);
            b += 1;
        }
    }
    values.copy_from_slice(merged);
    falling
}

/// 1 - Phi(z), by Abramowitz and Stegun 7.1.26 (absolute error below 1.5e-7). Beyond z = 4, where
/// that error is too large, by the first terms of the asymptotic series.
fn normal_upper_tail(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let tail = if z > 4.0 {
        let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        return density / z * (1.0 - 1.0 / (z * z) + 3.0 / z.powi(4));
    } else {
        let t = 1.0 / (1.0 + 0.327_591_1 * x);
        let series = t
            * (0.254_829_592
                + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
        series * (-x * x).exp() / 2.0
    };
    if z >= 0.0 { tail } else { 1.0 - tail }
}

/// Hamed and Rao's factor on the variance of S, at least 1.
fn variance_inflation(residuals: &[f64]) -> f64 {
    let n = residuals.len();
    let ranks = mean_ranks(residuals);
    let mean = (n as f64 - 1.0) / 2.0;
    let centred: Vec<f64> = ranks.iter().map(|rank| rank - mean).collect();
    let power: f64 = centred.iter().map(|value| value * value).sum();
    if n < 4 || power <= 0.0 {
        return 1.0;
    }
    let bound = Z_95 / (n as f64).sqrt();
    let mut sum = 0.0;
    for lag in 1..n - 2 {
        let covariance: f64 = centred.iter().zip(&centred[lag..]).map(|(a, b)| a * b).sum();
        let correlation = covariance / power;
        if correlation.abs() > bound {
            let rest = (n - lag) as f64;
            sum += rest * (rest - 1.0) * (rest - 2.0) * correlation;
        }
    }
    let n = n as f64;
    (1.0 + 2.0 / (n * (n - 1.0) * (n - 2.0)) * sum).max(1.0)
}

/// Ranks from 0. Equal values share their mean rank. Values count as equal up to 1e-9 of the
/// largest: floating point leaves rounding errors when a line is subtracted from itself.
fn mean_ranks(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let is_equal = |a: f64, b: f64| (a - b).abs() <= largest * 1e-9;
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for group in order.chunk_by(|a, b| is_equal(values[*a], values[*b])) {
        let mean_rank = before as f64 + (group.len() - 1) as f64 / 2.0;
        for at in group {
            ranks[*at] = mean_rank;
        }
        before += group.len();
    }
    ranks
}

/// The value at a rank, which is clamped to those there are. Between two ranks, the mean of both.
/// Reorders `values`, which are finite.
fn value_at_rank(values: &mut [f64], rank: f64) -> f64 {
    let last = values.len() - 1;
    let rank = rank.clamp(0.0, last as f64);
    // Slopes of byte counts are never NaN or -0, so this is their total order.
    let order = |a: &f64, b: &f64| a.partial_cmp(b).unwrap_or(Ordering::Equal);
    let (_, below, above) = values.select_nth_unstable_by(rank.floor() as usize, order);
    // The next rank is the least of the values above: one more selection would cost ten times that.
    let next = if rank.fract() == 0.0 { None } else { above.iter().copied().min_by(order) };
    next.map_or(*below, |next| below.midpoint(next))
}

#[cfg(test)]
mod tests;
