//! Does a value at step ends grow, for good and regularly? The judgement behind every leak.
//!
//! Let y be the values at step ends, of one site. The base is the last step end at which y stood at its minimum; what lies
//! before is warm-up or history. From there to the end of the last complete step (never to the end of the process, where
//! everything is torn down):
//! * *rise*: last value minus base. *undone*: the largest rise that was ever followed by a fall to below it (draw-down).
//! * *growth steps*: where the minimum of all later values rises: what is still there at the end. At least four.
//! * *regular*: the sequence of differences repeats with some period p, of which four fit: all of it; or nine differences in
//!   ten, more than half at each place of the period, and either the rate is the Theil-Sen slope of the values or no more
//!   than two differences are others.
//! * *not saturating*: the last growth is no older than one and a half periods; or, where irregular, the last third of the
//!   span brought at least half of an even share, and so did the first two thirds.
//!
//! A site grows if the rise is more than three times what was undone since the base and ten times what was undone before,
//! and
//! * in a short span (fewer than ten step ends): it is exactly regular and nothing of it was ever undone;
//! * else: it is regular, or Kendall's tau is at least 0.8 with at least eight growth steps.
//!
//! Why not a test of the trend alone: noise that happens to rise passes any trend test in one run of twenty, and a run has
//! hundreds of sites. The draw-down criterion needs no distribution: stationary noise undoes as much as it builds up.

/// Fewest growth steps.
const MIN_GROWTH_STEPS: usize = 4;
/// Spans below this must be exactly regular.
const SHORT_SPAN: usize = 10;
/// Rise over the largest draw-down since the base.
const MIN_RISE_OVER_UNDONE: u64 = 3;
/// Rise over the largest draw-down before the base: what has gone back to the base once may do so again.
const MIN_RISE_OVER_UNDONE_BEFORE: u64 = 10;
/// How far from the Theil-Sen slope the rate of a period may be that not all differences follow.
const MAX_RATE_ERROR: f64 = 0.2;
/// What happens this often may be something else that the line did once.
const MAX_DISTURBANCES: usize = 2;
/// Longest period looked for.
const MAX_PERIOD: usize = 512;
/// Most values that go into the statistics, which are quadratic.
const MAX_STATISTICS: usize = 256;
/// Step ends at the start of a long run that are not judged.
const WARM_UP: usize = 3;

/// A growing series.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Index of the base.
    pub base: usize,
    /// Last value minus base; what survived.
    pub rise: u64,
    /// The largest rise that was undone.
    pub undone: u64,
    /// Values after which something stayed.
    pub growth_steps: usize,
    /// Index of the first value that includes something that stayed.
    pub first: usize,
    /// Values after which the differences repeat, if they do.
    pub period: Option<usize>,
    /// Growth per value: of a whole period when regular, else of the whole span.
    pub per_value: f64,
    /// Share of differences that follow the period.
    pub regularity: f64,
    /// Kendall's tau.
    pub tau: f64,
    /// Theil-Sen slope per value.
    pub slope: f64,
    /// The second half grew more than 1.6 times as much as the first.
    pub accelerates: bool,
}

/// Judges a series. `late_frees_are_none`: no block of the site that outlived its step was ever freed.
pub fn judge(values: &[u64], late_frees_are_none: bool) -> Option<Growth> {
    // In a run of a few steps each counts; longer ones are allowed some first steps that are unlike the others.
    let warm_up = match values.len() {
        0..8 => 0,
        8..16 => 1,
        _ => WARM_UP,
    };
    let judged = &values[warm_up..];
    let last = *judged.last()?;
    let minimum = *judged.iter().min()?;
    let base = warm_up + judged.iter().rposition(|value| *value == minimum)?;
    let rise = last - minimum;
    let (before, since) = (draw_down(&judged[..=base - warm_up]), draw_down(&values[base..]));
    let undone = before.max(since);
    let span = values.len() - 1 - base;
    let is_undone = rise <= since.saturating_mul(MIN_RISE_OVER_UNDONE)
        || rise <= before.saturating_mul(MIN_RISE_OVER_UNDONE_BEFORE);
    if rise == 0 || span < MIN_GROWTH_STEPS || is_undone {
        return None;
    }
    let tail = &values[base..];
    let floors = future_minima(tail);
    let steps: Vec<usize> = (1..floors.len()).filter(|at| floors[*at] > floors[*at - 1]).collect();
    if steps.len() < MIN_GROWTH_STEPS {
        return None;
    }
    let differences: Vec<i64> = tail.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as i64).collect();
    let statistics = Statistics::of(tail);
    let regular = find_period(&differences, statistics.slope);
    let is_exact = regular.as_ref().is_some_and(|regular| regular.followed == differences.len());
    let since_last = span - steps.last().copied().unwrap_or(0);
    let is_steady = match &regular {
        Some(regular) => since_last * 2 <= regular.period * 3,
        None => thirds_are_even(&floors),
    };
    let grows = if span < SHORT_SPAN {
        is_exact && undone == 0 && late_frees_are_none
    } else {
        regular.is_some() || (statistics.tau >= 0.8 && steps.len() >= 2 * MIN_GROWTH_STEPS)
    };
    if !grows || !is_steady {
        return None;
    }
    let half = tail[tail.len() / 2];
    let (early, late) = (half.saturating_sub(minimum), last.saturating_sub(half));
    let regularity = regular.as_ref().map_or(0.0, |r| r.followed as f64 / differences.len() as f64);
    let first = base + steps[0];
    let (base, first) = match &regular {
        Some(regular) => reach_back(values, base, first, regular),
        None => (base, first),
    };
    let before = if first == 0 { 0 } else { values[base] };
    Some(Growth {
        base,
        rise: last.saturating_sub(before),
        undone,
        growth_steps: steps.len(),
        first,
        period: regular.as_ref().map(|regular| regular.period),
        per_value: regular
            .map_or(rise as f64 / span as f64, |regular| regular.growth as f64 / regular.period as f64),
        regularity,
        tau: statistics.tau,
        slope: statistics.slope,
        accelerates: span >= 12 && late as f64 > 1.6 * early as f64,
    })
}

/// The largest rise that was followed by a fall, or the part of it that fell. A fall from the first value is no draw-down:
/// what is high from the start and then goes is warm-up.
fn draw_down(values: &[u64]) -> u64 {
    let Some(&first) = values.first() else { return 0 };
    let (mut floor, mut high, mut undone) = (first, first, 0);
    for &value in values {
        if value <= floor {
            undone = undone.max(high - floor);
            (floor, high) = (value, value);
        } else {
            high = high.max(value);
            undone = undone.max(high - value);
        }
    }
    undone
}

/// Growth that goes on back into the warm-up began there; growth from the very first step on began with nothing.
fn reach_back(values: &[u64], base: usize, first: usize, regular: &Regular) -> (usize, usize) {
    let (mut base, mut first) = (base, first);
    let period = regular.period;
    while base >= period && values[base].checked_sub(values[base - period]) == Some(regular.growth) {
        base -= period;
        first -= period;
    }
    if period == 1 && base == 0 && values[0] == regular.growth { (0, 0) } else { (base, first) }
}

fn future_minima(values: &[u64]) -> Vec<u64> {
    let mut floors = values.to_vec();
    for at in (0..floors.len().saturating_sub(1)).rev() {
        floors[at] = floors[at].min(floors[at + 1]);
    }
    floors
}

fn thirds_are_even(floors: &[u64]) -> bool {
    let span = floors.len() - 1;
    let at = |third: usize| floors[span * third / 3];
    let (first, last) = (at(0), at(3));
    let even = (last - first) as f64 / 3.0;
    let last_third = (last - at(2)) as f64;
    let first_two = (at(2) - first) as f64;
    last_third >= even / 2.0 && first_two >= even
}

struct Regular {
    period: usize,
    /// Growth of one period.
    growth: u64,
    /// Differences that are what their place in the period says.
    followed: usize,
}

/// The smallest period that all differences follow, of which four fit, and that grows; else the smallest that nearly all
/// follow. Exactness comes first, and the `slope` of the values is asked, because a short period may be followed by nearly all
/// and miss half of the growth: one block a step and ten more every twelfth.
fn find_period(differences: &[i64], slope: f64) -> Option<Regular> {
    let longest = (differences.len() / MIN_GROWTH_STEPS).min(MAX_PERIOD);
    let is_exact = |period: &usize| differences.iter().zip(&differences[*period..]).all(|(a, b)| a == b);
    let exact = (1..=longest).find(is_exact).and_then(|period| with_period(differences, period));
    exact.or_else(|| {
        (1..=longest).find_map(|period| {
            let regular = with_period(differences, period)?;
            let rate = regular.growth as f64 / period as f64;
            let others = differences.len() - regular.followed;
            let has_the_rate = (rate - slope).abs() <= slope * MAX_RATE_ERROR || others <= MAX_DISTURBANCES;
            (others * 10 <= differences.len() && has_the_rate).then_some(regular)
        })
    })
}

/// What the differences are at each place of a period, if more than half of those at each place are the same and their sum
/// is a growth.
fn with_period(differences: &[i64], period: usize) -> Option<Regular> {
    let (mut growth, mut followed) = (0i64, 0usize);
    for phase in 0..period {
        let here = || differences.iter().skip(phase).step_by(period);
        let value = majority_candidate(here());
        let count = here().filter(|difference| **difference == value).count();
        if count * 2 <= here().len() {
            return None;
        }
        growth = growth.saturating_add(value);
        followed += count;
    }
    (growth > 0).then_some(Regular { period, growth: growth as u64, followed })
}

/// The value that makes up more than half, if there is one (Boyer and Moore's vote); else any of them.
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

struct Statistics {
    tau: f64,
    slope: f64,
}

impl Statistics {
    /// Mann-Kendall's S as Kendall's tau, and the Theil-Sen slope, over at most [`MAX_STATISTICS`] evenly spaced values.
    fn of(values: &[u64]) -> Self {
        let every = values.len().div_ceil(MAX_STATISTICS);
        let picked: Vec<f64> = values.iter().step_by(every).map(|value| *value as f64).collect();
        let mut slopes = Vec::with_capacity(picked.len() * picked.len() / 2);
        let mut balance = 0i64;
        for (at, a) in picked.iter().enumerate() {
            for (ahead, b) in picked[at + 1..].iter().enumerate() {
                let difference = b - a;
                balance += i64::from(difference > 0.0) - i64::from(difference < 0.0);
                slopes.push(difference / ((ahead + 1) * every) as f64);
            }
        }
        if slopes.is_empty() {
            return Self { tau: 0.0, slope: 0.0 };
        }
        let tau = balance as f64 / slopes.len() as f64;
        let middle = slopes.len() / 2;
        let (_, slope, _) = slopes.select_nth_unstable_by(middle, f64::total_cmp);
        Self { tau, slope: *slope }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stairs(steps: u64, per_step: u64) -> Vec<u64> {
        (1..=steps).map(|k| k * per_step).collect()
    }

    #[test]
    fn plain_stairs_are_found_from_five_steps_with_their_exact_growth() {
        for steps in 5..200 {
            let growth = judge(&stairs(steps, 512), true).unwrap();
            assert_eq!((growth.period, growth.per_value, growth.base), (Some(1), 512.0, 0), "{steps}");
        }
        assert_eq!(judge(&stairs(4, 512), true), None);
    }

    #[test]
    fn stairs_after_a_warm_up_begin_where_they_begin() {
        let mut values = vec![900, 100, 100, 100];
        values.extend(stairs(20, 7).iter().map(|v| v + 100));
        let growth = judge(&values, true).unwrap();
        assert_eq!((growth.base, growth.first, growth.per_value), (3, 4, 7.0));
    }

    #[test]
    fn growth_every_fourth_step_has_period_four() {
        let values: Vec<u64> = (0..60).map(|k| 1000 + k / 4 * 44).collect();
        let growth = judge(&values, true).unwrap();
        assert_eq!((growth.period, growth.per_value), (Some(4), 11.0));
    }

    #[test]
    fn a_leak_every_so_many_steps_has_its_exact_period_from_five_repetitions_on() {
        for period in 2..=40u64 {
            for steps in [5 * period + 3, 7 * period, 7 * period + period / 2, 12 * period + 1] {
                for (start, blocks) in [(0, 1), (period / 2, 1), (period - 1, 3)] {
                    let values: Vec<u64> =
                        (0..steps).map(|k| 4 + (k + period - start) / period * blocks).collect();
                    let growth = judge(&values, true);
                    // What began before the warm-up was over may have one repetition less to show.
                    let Some(growth) = growth else {
                        assert!(steps < 6 * period, "a leak every {period} steps in {steps} is missed");
                        continue;
                    };
                    assert_eq!(
                        (growth.period, growth.per_value),
                        (Some(period as usize), blocks as f64 / period as f64),
                        "every {period} in {steps} from {start}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_period_that_only_most_steps_follow_must_have_the_rate_of_the_values() {
        // One block a step and ten more every twelfth: period 1 is followed by 11 of 12, at half the rate.
        let values: Vec<u64> = (0..120).map(|k| k + (k + 3) / 12 * 10).collect();
        let growth = judge(&values, true).unwrap();
        assert_eq!((growth.period, growth.per_value), (Some(12), 22.0 / 12.0));
        // The same with bursts that come when they like: no period, and the rate is what came in all.
        let bursts = [5, 19, 24, 40, 47, 62, 70, 83, 99, 104, 118];
        let values: Vec<u64> =
            (0..120).map(|k| k + bursts.iter().filter(|at| **at <= k).count() as u64 * 10).collect();
        let growth = judge(&values, true).unwrap();
        assert_eq!(growth.period, None);
        assert!((growth.per_value - 229.0 / 119.0).abs() < 0.2, "{}", growth.per_value);
        // A single disturbance is not the leak's: its period and rate stay.
        let values: Vec<u64> = (0..120).map(|k| k / 10 + u64::from(k > 77) * 40).collect();
        let growth = judge(&values, true).unwrap();
        assert_eq!((growth.period, growth.per_value), (Some(10), 0.1));
    }

    #[test]
    fn a_pattern_of_two_leaks_is_one_period() {
        let values: Vec<u64> = (0..80).map(|k| k * 10 + k / 4 * 1000).collect();
        let growth = judge(&values, true).unwrap();
        assert_eq!((growth.period, growth.per_value), (Some(4), 260.0));
    }

    #[test]
    fn what_saturates_is_silent() {
        let cache: Vec<u64> = (0..100).map(|k: u64| k.min(40) * 64).collect();
        assert_eq!(judge(&cache, true), None);
        let exponential: Vec<u64> =
            (0..200).map(|k| (1e6 * (1.0 - (-f64::from(k) / 40.0).exp())) as u64).collect();
        assert_eq!(judge(&exponential, true), None);
        let ratchet: Vec<u64> = (1..300).map(|k| (1e6 * f64::from(k).ln()) as u64).collect();
        assert_eq!(judge(&ratchet, true), None);
    }

    #[test]
    fn warm_up_and_optimizer_state_are_silent() {
        let mut values = vec![100, 300, 300];
        values.resize(50, 300);
        assert_eq!(judge(&values, true), None);
        assert_eq!(judge(&[0, 89, 89, 89, 89, 89], true), None);
        assert_eq!(judge(&[5, 5, 5, 5, 5], true), None);
    }

    #[test]
    fn a_saw_tooth_that_was_reset_once_is_silent_even_at_its_top() {
        let values: Vec<u64> = (0..300).map(|k| k % 100 * 512).collect();
        assert_eq!(judge(&values, true), None);
    }

    #[test]
    fn growth_of_varying_sizes_is_found_with_its_mean() {
        let mut value = 0;
        let values: Vec<u64> = (0..100u64)
            .map(|k| {
                value += 1000 + k.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 500;
                value
            })
            .collect();
        let growth = judge(&values, true).unwrap();
        assert_eq!(growth.period, None);
        assert!((1000.0..1500.0).contains(&growth.per_value));
    }

    #[test]
    fn growth_that_speeds_up_is_told() {
        let values: Vec<u64> = (0..60).map(|k: u64| k * k * 100).collect();
        assert!(judge(&values, true).unwrap().accelerates);
        assert!(!judge(&stairs(60, 5), true).unwrap().accelerates);
    }
}
