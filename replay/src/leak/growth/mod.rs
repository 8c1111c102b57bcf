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
//!   span brought at least half of an even share, the first two thirds an even share of one, and the growth came not much
//!   earlier than the middle of the span on the average (0.43 of it).
//!
//! A site grows if the rise is more than three times what was undone since the base and ten times what was undone before,
//! and
//! * in a short span (fewer than ten step ends): it is exactly regular, nothing of it was ever undone, and either no block that
//!   outlived its step was ever freed or each growth step has a generation among the survivors ([`crate::leak::cohorts`]);
//! * else: it is regular, or Kendall's tau is at least 0.8 with at least eight growth steps; with fewer than sixteen nothing of
//!   what is not exactly regular may have been undone. What is not regular must also
//!   pass Mann-Kendall's test with all other sites of the run ([`crate::leak::statistics`]; `crate::leak` does that).
//!
//! *Shapes* of what grows: *accelerating* if the second half brought more than 1.6 times the first, else *linear*. Of what
//! holds more at the end than it did and does not grow, *rules* say why it is silent:
//! * *warm_up*: nothing changed after the first steps (parameters, gradients, optimizer state, workspaces);
//! * *one_off*: fewer than four growth steps;
//! * *saturating*: growth has stopped or slows down (bounded caches, compilation, buffers that are kept at their largest);
//! * *too_early*: in so short a span only exact growth would count.
//!
//! What is undone again (noise, accumulation, evaluation) is not even that.
//!
//! Why not a test of the trend alone: noise that happens to rise passes any trend test in one run of twenty, and a run has
//! hundreds of sites. The draw-down criterion needs no distribution: stationary noise undoes as much as it builds up.

use crate::leak::statistics::{self, Slope};

/// Fewest growth steps.
const MIN_GROWTH_STEPS: usize = 4;
/// Growth steps from which on what is not exact may have been undone now and then: a queue rises eight times by chance.
const MANY_GROWTH_STEPS: usize = 16;
/// How early growth without a period may come on the average. What fills up to 63 % of its bound comes at 0.42.
const MIN_CENTRE: f64 = 0.43;
/// Least Kendall's tau of what is not regular.
const MIN_TAU: f64 = 0.8;
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
/// Step ends at the start of a long run that are not judged.
const WARM_UP: usize = 3;

/// A growing series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Growth {
    /// Index of the base.
    pub base: usize,
    /// Last value minus base; what survived.
    pub rise: u64,
    /// The largest rise that was undone.
    pub undone: u64,
    /// Values after which something stayed.
    pub rising_steps: usize,
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
    /// Chance of such a trend without growth (Mann-Kendall, corrected for autocorrelation).
    pub p: f64,
    /// Theil-Sen slope per value.
    pub slope: Slope,
    /// The second half grew more than 1.6 times as much as the first.
    pub accelerates: bool,
}

impl Growth {
    /// None at all.
    pub(crate) const NONE: Self = Self {
        base: 0,
        rise: 0,
        undone: 0,
        rising_steps: 0,
        first: 0,
        period: None,
        per_value: 0.0,
        regularity: 0.0,
        tau: 0.0,
        p: 1.0,
        slope: Slope { per_value: 0.0, interval: [0.0; 2] },
        accelerates: false,
    };

    /// As part of a series that has so many values before.
    pub(crate) fn after(self, values: usize) -> Self {
        Self { base: self.base + values, first: self.first + values, ..self }
    }

    /// Bounds of the growth per value: of what is regular, the growth itself.
    pub(crate) fn rate_interval(&self) -> [f64; 2] {
        match self.period {
            Some(_) if self.regularity >= 1.0 => [self.per_value; 2],
            _ => self.slope.interval,
        }
    }
}

/// What is known of a site beside its series.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SurvivorEvidence {
    /// No block that outlived its step was ever freed.
    pub none_freed_after_step: bool,
    /// Steps that its survivors come from.
    pub generations: u64,
}

impl SurvivorEvidence {
    /// Of what has no blocks: nothing speaks against it.
    pub(crate) const KEPT: Self = Self { none_freed_after_step: true, generations: 0 };
}

/// Why what holds more than it did is no leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GrowthRule {
    /// Nothing changed after the first steps.
    WarmUp,
    /// It grew a few times.
    OneOff,
    /// It has stopped or slows down.
    Saturating,
    /// It is not exact, and there are few steps.
    TooEarly,
}

/// A judgement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GrowthJudgement {
    /// It grows.
    Grows(Growth),
    /// It has grown by so much, and is silent.
    Settled(GrowthRule, u64),
    /// It does not hold more than it did.
    Quiet,
}

impl GrowthJudgement {
    /// The growth, if it is one.
    pub(crate) fn growth(self) -> Option<Growth> {
        match self {
            Self::Grows(growth) => Some(growth),
            Self::Settled(..) | Self::Quiet => None,
        }
    }
}

/// First values that do not count. In a run of a few steps each counts; longer ones are allowed some first steps that are unlike
/// the others.
pub(crate) fn warm_up(values: usize) -> usize {
    match values {
        0..8 => 0,
        8..16 => 1,
        _ => WARM_UP,
    }
}

/// Judges a series.
pub(crate) fn judge(values: &[u64], fate: SurvivorEvidence) -> GrowthJudgement {
    let warm_up = warm_up(values.len());
    let judged = &values[warm_up..];
    let (Some(&last), Some(&minimum)) = (judged.last(), judged.iter().min()) else {
        return GrowthJudgement::Quiet;
    };
    let Some(base) = judged.iter().rposition(|value| *value == minimum) else {
        return GrowthJudgement::Quiet;
    };
    let base = warm_up + base;
    let rise = last - minimum;
    if rise == 0 {
        let is_still = last > 0 && judged.iter().all(|value| *value == last);
        return if is_still {
            GrowthJudgement::Settled(GrowthRule::WarmUp, last)
        } else {
            GrowthJudgement::Quiet
        };
    }
    let (before, since) = (draw_down(&judged[..=base - warm_up]), draw_down(&values[base..]));
    let undone = before.max(since);
    let span = values.len() - 1 - base;
    let is_undone = rise <= since.saturating_mul(MIN_RISE_OVER_UNDONE)
        || rise <= before.saturating_mul(MIN_RISE_OVER_UNDONE_BEFORE);
    if is_undone {
        return GrowthJudgement::Quiet;
    }
    let tail = &values[base..];
    let floors = future_minima(tail);
    let steps: Vec<usize> = (1..floors.len()).filter(|at| floors[*at] > floors[*at - 1]).collect();
    let since_last = span - steps.last().copied().unwrap_or(0);
    if span < MIN_GROWTH_STEPS || steps.len() < MIN_GROWTH_STEPS {
        let is_short = since_last < MIN_GROWTH_STEPS && values.len() < SHORT_SPAN;
        return GrowthJudgement::Settled(
            if is_short { GrowthRule::TooEarly } else { GrowthRule::OneOff },
            rise,
        );
    }
    let differences: Vec<i64> = tail.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as i64).collect();
    let (trend, slope) = statistics::corrected(tail);
    let regular = find_period(&differences, slope.per_value);
    let is_exact = regular.as_ref().is_some_and(|regular| regular.followed == differences.len());
    let is_steady = match &regular {
        Some(regular) => since_last * 2 <= regular.period * 3,
        None => thirds_are_even(&floors) && centre(&floors) >= MIN_CENTRE,
    };
    if !is_steady {
        return GrowthJudgement::Settled(GrowthRule::Saturating, rise);
    }
    if span < SHORT_SPAN {
        let each_step_is_there = fate.none_freed_after_step || fate.generations >= steps.len() as u64;
        if !is_exact || undone > 0 || !each_step_is_there {
            return GrowthJudgement::Settled(GrowthRule::TooEarly, rise);
        }
    } else {
        let is_trend = trend.tau >= MIN_TAU && steps.len() >= 2 * MIN_GROWTH_STEPS;
        let is_certain = is_exact || undone == 0 || steps.len() >= MANY_GROWTH_STEPS;
        if !is_certain || regular.is_none() && !is_trend {
            return GrowthJudgement::Quiet;
        }
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
    GrowthJudgement::Grows(Growth {
        base,
        rise: last.saturating_sub(before),
        undone,
        rising_steps: steps.len(),
        first,
        period: regular.as_ref().map(|regular| regular.period),
        per_value: regular
            .map_or(rise as f64 / span as f64, |regular| regular.growth as f64 / regular.period as f64),
        regularity,
        tau: trend.tau,
        p: trend.p,
        slope,
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
fn reach_back(values: &[u64], base: usize, first: usize, regular: &PeriodicGrowth) -> (usize, usize) {
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

/// When the growth came on the average: 0 all at the start, 1 all at the end, 0.5 evenly.
fn centre(floors: &[u64]) -> f64 {
    let span = (floors.len() - 1) as f64;
    let rises = (1..floors.len()).map(|at| ((floors[at] - floors[at - 1]) as f64, at as f64 - 0.5));
    let (sum, weighed) =
        rises.fold((0.0, 0.0), |(sum, weighed), (rise, at)| (sum + rise, weighed + rise * at));
    weighed / (sum * span)
}

struct PeriodicGrowth {
    period: usize,
    /// Growth of one period.
    growth: u64,
    /// Differences that are what their place in the period says.
    followed: usize,
}

/// The smallest period that all differences follow, of which four fit, and that grows; else the smallest that nearly all
/// follow. Exactness comes first, and the `slope` of the values is asked, because a short period may be followed by nearly all
/// and miss half of the growth: one block a step and ten more every twelfth.
fn find_period(differences: &[i64], slope: f64) -> Option<PeriodicGrowth> {
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
fn with_period(differences: &[i64], period: usize) -> Option<PeriodicGrowth> {
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
    (growth > 0).then_some(PeriodicGrowth { period, growth: growth as u64, followed })
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

#[cfg(test)]
mod tests;
