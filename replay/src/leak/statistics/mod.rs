//! Statistics of a series: whether it rises by more than chance, how fast, and between which bounds.
//!
//! * *Mann-Kendall*: S is the number of pairs that rise minus the number of pairs that fall; tau is S over all pairs. Under
//!   chance S is about normal with variance (n(n-1)(2n+5) - sum over ties t(t-1)(2t+5)) / 18. p is the chance of such an S or
//!   a larger one, with the correction for continuity.
//! * *Autocorrelation* (Hamed and Rao 1998): values that follow each other closely make trends by chance. The variance is
//!   multiplied by 1 + 2/(n(n-1)(n-2)) * sum over lags i of (n-i)(n-i-1)(n-i-2) r(i), where r(i) is the autocorrelation of the
//!   ranks of what is left when the Theil-Sen line is taken away, and only those beyond 1.96/sqrt(n) count. Never below 1: a
//!   correction that makes chance less likely is not believed.
//! * *Theil-Sen*: the median of the slopes of all pairs. Its interval (Sen 1968) lies as many places to either side of the
//!   median as 1.96 standard deviations of S, halved.
//! * *False discoveries* (Benjamini and Hochberg 1995): q of the i-th smallest of m values of p is the least of p m / j over
//!   j >= i. Of what is called growth at q <= 0.05, one in twenty is chance.
//!
//! Constraint: a run has hundreds of sites, of which most do not grow. Consequence: S is counted while sorting; what costs the
//! square of the values is asked only for what would pass without it. At most [`MAX_VALUES`] evenly spaced values are looked at.

/// Most values that are looked at.
pub(crate) const MAX_VALUES: usize = 256;
/// Two-sided 5 % of the normal distribution.
const Z_95: f64 = 1.959_964;

/// A line through a series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Slope {
    /// Per value.
    pub per_value: f64,
    /// The bounds within which it lies with 95 %.
    pub interval: [f64; 2],
}

/// What a series says of its trend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trend {
    /// Kendall's tau.
    pub tau: f64,
    /// Chance that a series without a trend rises as much, neighbours being independent.
    pub p: f64,
}

/// At most [`MAX_VALUES`] of them, and how many lie between one and the next.
fn picked(values: &[u64]) -> (usize, Vec<f64>) {
    let every = values.len().div_ceil(MAX_VALUES).max(1);
    (every, values.iter().step_by(every).map(|value| *value as f64).collect())
}

/// Mann-Kendall without regard to autocorrelation.
pub(crate) fn trend(values: &[u64]) -> Trend {
    let (_, picked) = picked(values);
    let (balance, variance) = kendall(&picked);
    let pairs = picked.len() * picked.len().saturating_sub(1) / 2;
    Trend { tau: balance / (pairs.max(1) as f64), p: chance(balance, variance) }
}

/// The same with the correction for autocorrelation, and the Theil-Sen slope.
pub(crate) fn corrected(values: &[u64]) -> (Trend, Slope) {
    let (every, picked) = picked(values);
    let (balance, variance) = kendall(&picked);
    let mut slopes = Vec::with_capacity(picked.len() * picked.len() / 2);
    for (at, a) in picked.iter().enumerate() {
        slopes.extend(picked[at + 1..].iter().zip(1..).map(|(b, ahead)| (b - a) / f64::from(ahead)));
    }
    if slopes.is_empty() {
        return (Trend { tau: 0.0, p: 1.0 }, Slope::default());
    }
    let tau = balance / slopes.len() as f64;
    let middle = (slopes.len() - 1) as f64 / 2.0;
    let median = at_rank(&mut slopes, middle);
    let left: Vec<f64> = picked.iter().zip(0..).map(|(value, at)| value - median * f64::from(at)).collect();
    let variance = variance * inflation(&left);
    let away = Z_95 * variance.sqrt() / 2.0;
    let interval = [middle - away, middle + away].map(|rank| at_rank(&mut slopes, rank) / every as f64);
    (Trend { tau, p: chance(balance, variance) }, Slope { per_value: median / every as f64, interval })
}

/// q of each p.
pub(crate) fn false_discovery_rates(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_unstable_by(|a, b| chances[*b].total_cmp(&chances[*a]));
    let mut rates = vec![1.0; chances.len()];
    let mut least = 1.0f64;
    for (from_top, at) in order.into_iter().enumerate() {
        let rank = chances.len() - from_top;
        least = least.min(chances[at] * chances.len() as f64 / rank as f64);
        rates[at] = least;
    }
    rates
}

/// S and its variance under chance.
fn kendall(values: &[f64]) -> (f64, f64) {
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
    (rising as f64 - falling as f64, ((term(n) - tied) / 18.0).max(0.0))
}

/// Sorts, and counts the pairs that were in falling order.
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

/// The chance of S or more.
fn chance(balance: f64, variance: f64) -> f64 {
    if variance <= 0.0 || balance <= 0.0 {
        return if balance > 0.0 { 0.0 } else { 1.0 };
    }
    upper_tail((balance - 1.0) / variance.sqrt())
}

/// 1 - Phi(z), by Abramowitz and Stegun 7.1.26 (error below 1.5e-7), beyond z = 4 by the first terms of its asymptotic series.
fn upper_tail(z: f64) -> f64 {
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

/// By how much autocorrelation widens the variance of S.
fn inflation(left: &[f64]) -> f64 {
    let n = left.len();
    let ranks = ranks(left);
    let mean = (n as f64 - 1.0) / 2.0;
    let centred: Vec<f64> = ranks.iter().map(|rank| rank - mean).collect();
    let power: f64 = centred.iter().map(|value| value * value).sum();
    if n < 4 || power <= 0.0 {
        return 1.0;
    }
    let bound = Z_95 / (n as f64).sqrt();
    let mut sum = 0.0;
    for lag in 1..n - 2 {
        let together: f64 = centred.iter().zip(&centred[lag..]).map(|(a, b)| a * b).sum();
        let correlation = together / power;
        if correlation.abs() > bound {
            let rest = (n - lag) as f64;
            sum += rest * (rest - 1.0) * (rest - 2.0) * correlation;
        }
    }
    let n = n as f64;
    (1.0 + 2.0 / (n * (n - 1.0) * (n - 2.0)) * sum).max(1.0)
}

/// Ranks from 0; equal values share their mean. What floating point makes unequal (a line minus itself) is equal.
fn ranks(values: &[f64]) -> Vec<f64> {
    let most = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let same = |a: f64, b: f64| (a - b).abs() <= most * 1e-9;
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for group in order.chunk_by(|a, b| same(values[*a], values[*b])) {
        let shared = before as f64 + (group.len() - 1) as f64 / 2.0;
        for at in group {
            ranks[*at] = shared;
        }
        before += group.len();
    }
    ranks
}

/// The value at this place in order; between two places their mean.
fn at_rank(values: &mut [f64], rank: f64) -> f64 {
    let last = values.len() - 1;
    let rank = rank.clamp(0.0, last as f64);
    let mut at = |place: usize| *values.select_nth_unstable_by(place, f64::total_cmp).1;
    let below = at(rank.floor() as usize);
    if rank.fract() == 0.0 { below } else { below.midpoint(at(rank.ceil() as usize)) }
}

#[cfg(test)]
mod tests;
