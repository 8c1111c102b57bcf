//! Judges whether a series of values at step ends grows for good.
//!
//! Definitions, for the values of one site. Process exit is not among them: there everything is
//! torn down.
//! * *Base*: the last step end at which the value was at its minimum. What lies before is warm-up
//!   or history. *Rise*: the last value minus that at the base.
//! * *Undone*: the largest drawdown, a fall after a rise, counted down to where the rise began.
//! * *Growth step*: a step end at which the minimum of all later values rises. What comes in a
//!   growth step is still there at the end.
//! * *Regular*: the differences repeat with a period that fits four times. Either all of them do,
//!   or nine in ten, with more than half at each position of the period. In the second case the
//!   rate must be the Theil-Sen slope of the values, unless at most two differences deviate
//!   ([`period`]).
//! * *Saturating*: the last growth is older than one and a half periods. Without a period: the last
//!   third of the span brought less than half of an even share, or the first two thirds less than
//!   one share, or the mean time of growth lies before [`MIN_MEAN_TIME`] of the span.
//!
//! A series grows if it has at least [`MIN_GROWTH_STEPS`] growth steps, does not saturate, has a
//! rise of more than 3 times what was undone since the base and 10 times what was undone before,
//! and
//! * in a span below [`SHORT_SPAN`]: it is exactly regular, nothing was undone, and each growth
//!   step has a generation among the survivors ([`crate::leak::cohorts`]). If no block that
//!   outlived its step was ever freed, survivors need no generations.
//! * in a longer span: it is regular, or Kendall's tau is at least [`MIN_TAU`] with at least
//!   eight growth steps. With fewer than [`MANY_GROWTH_STEPS`], nothing of an inexact series may
//!   have been undone. [`crate::leak::candidates`] tests irregular growth against chance.
//!
//! A series that rose and does not grow is benign, by one of the [`GrowthRule`]s. A series is
//! quiet if its rise was undone (noise, gradient accumulation, evaluation).
//!
//! A trend test alone would not do: at a level of 5%, one in twenty stationary series passes it,
//! and a run has hundreds of sites. Drawdown needs no distribution, since stationary noise loses
//! as much as it gains. `growth::tests` checks each rule, `tests/accuracy.rs` their error
//! rates.

mod period;

use crate::leak::statistics::{Slope, fit_trend};
use period::{PeriodicGrowth, find_period};

/// Growth steps that any growing series needs (`constant_growth_is_found_from_five_step_ends_on`).
const MIN_GROWTH_STEPS: usize = 4;
/// Growth steps from which on an inexact series may have been undone in part. A queue of random
/// length rises eight times by chance.
const MANY_GROWTH_STEPS: usize = 16;
/// Mean time of growth without a period, as a share of the span: 0 at its start, 0.5 for even
/// growth, 1 at its end. An exponential approach that has come to 63% of its bound has 0.42.
const MIN_MEAN_TIME: f64 = 0.43;
/// Kendall's tau that growth without a period needs. At 0.97,
/// `leaks.rs::irregular_growth_has_limited_confidence` would miss its leak.
const MIN_TAU: f64 = 0.8;
/// Values since the base, from which on growth need not be exactly regular.
const SHORT_SPAN: usize = 10;
/// The rise must exceed so many times what was undone since the base.
const MIN_RISE_OVER_UNDONE_SINCE_BASE: u64 = 3;
/// The rise must exceed so many times what was undone before the base: what has returned to its
/// base once may do so again (`leaks.rs::stationary_noise_has_no_findings`).
const MIN_RISE_OVER_UNDONE_BEFORE_BASE: u64 = 10;
/// Step ends at the start of a run of 16 or more that are not judged. Without them,
/// `leaks.rs::lasting_blocks_of_a_line_do_not_hide_its_graph` fails.
const WARM_UP_VALUES: usize = 3;
/// Growth accelerates if its second half brought so many times what the first did.
const MIN_ACCELERATION: f64 = 1.6;

/// A growing series. Indexes count values from the start of the series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Growth {
    /// Index of the base.
    pub base: usize,
    /// Last value minus that at the base.
    pub rise: u64,
    /// The largest drawdown, before or after the base.
    pub undone: u64,
    /// Number of growth steps.
    pub rising_steps: usize,
    /// Index of the first value that includes something that stayed. 0 if growth began with
    /// nothing.
    pub first: usize,
    /// Values after which the differences repeat, if they do.
    pub period: Option<usize>,
    /// Growth from one value to the next: the mean over a period if there is one, else over the
    /// span.
    pub per_value: f64,
    /// Share of differences that follow the period.
    pub regularity: f64,
    /// Kendall's tau of the values since the base.
    pub tau: f64,
    /// One-sided p-value of Mann-Kendall's test, corrected for autocorrelation.
    pub p: f64,
    pub slope: Slope,
    /// The second half of the span brought over [`MIN_ACCELERATION`] times what the first did.
    pub accelerates: bool,
}

impl Growth {
    /// A series without any growth.
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

    /// The same growth in a series with `values` more values before it.
    pub(crate) fn shifted_by(self, values: usize) -> Self {
        Self { base: self.base + values, first: self.first + values, ..self }
    }

    /// Bounds of `per_value`: the value itself if growth is exactly regular, else the 95% interval
    /// of the Theil-Sen slope.
    pub(crate) fn rate_interval(&self) -> [f64; 2] {
        match self.period {
            Some(_) if self.regularity >= 1.0 => [self.per_value; 2],
            _ => self.slope.interval,
        }
    }
}

/// What the blocks of a site say beyond its series.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SurvivorEvidence {
    /// No block that outlived its step was ever freed.
    pub none_freed_after_step: bool,
    /// Number of different steps that the survivors come from.
    pub generations: u64,
}

impl SurvivorEvidence {
    /// For a series that does not count blocks.
    pub(crate) const NOTHING_FREED: Self = Self { none_freed_after_step: true, generations: 0 };
}

/// Why a series that rose is not a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GrowthRule {
    /// Nothing changed after warm-up: parameters, gradients, optimizer state, workspaces.
    WarmUp,
    /// Fewer than [`MIN_GROWTH_STEPS`] growth steps.
    OneOff,
    /// Growth stopped or slows down: bounded caches, compilation, buffers kept at their largest.
    Saturating,
    /// The span is short and growth not exact.
    TooEarly,
}

/// The judgement on a series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GrowthJudgement {
    /// The series grows for good.
    Grows(Growth),
    /// The series rose by this much and does not grow.
    Settled(GrowthRule, u64),
    /// The series does not hold more than it did.
    Quiet,
}

impl GrowthJudgement {
    pub(crate) fn growth(self) -> Option<Growth> {
        match self {
            Self::Grows(growth) => Some(growth),
            Self::Settled(..) | Self::Quiet => None,
        }
    }
}

/// How many values at the start of a series of `count` are warm-up. In a run of a few steps each
/// counts.
pub(crate) fn warm_up_values(count: usize) -> usize {
    match count {
        0..8 => 0,
        8..16 => 1,
        _ => WARM_UP_VALUES,
    }
}

/// Judges the values of a site at step ends.
pub(crate) fn judge_series(values: &[u64], survivors: SurvivorEvidence) -> GrowthJudgement {
    let warm_up = warm_up_values(values.len());
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
        let is_constant = last > 0 && judged.iter().all(|value| *value == last);
        return if is_constant {
            GrowthJudgement::Settled(GrowthRule::WarmUp, last)
        } else {
            GrowthJudgement::Quiet
        };
    }
    let (undone_before, undone_since) =
        (largest_drawdown(&judged[..=base - warm_up]), largest_drawdown(&values[base..]));
    let undone = undone_before.max(undone_since);
    let span = values.len() - 1 - base;
    let is_undone = rise <= undone_since.saturating_mul(MIN_RISE_OVER_UNDONE_SINCE_BASE)
        || rise <= undone_before.saturating_mul(MIN_RISE_OVER_UNDONE_BEFORE_BASE);
    if is_undone {
        return GrowthJudgement::Quiet;
    }
    let tail = &values[base..];
    let floors = future_minima(tail);
    let growth_steps: Vec<usize> = (1..floors.len()).filter(|at| floors[*at] > floors[*at - 1]).collect();
    let since_growth = span - growth_steps.last().copied().unwrap_or(0);
    if span < MIN_GROWTH_STEPS || growth_steps.len() < MIN_GROWTH_STEPS {
        let is_short = since_growth < MIN_GROWTH_STEPS && values.len() < SHORT_SPAN;
        return GrowthJudgement::Settled(
            if is_short { GrowthRule::TooEarly } else { GrowthRule::OneOff },
            rise,
        );
    }
    let differences: Vec<i64> = tail.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as i64).collect();
    let fit = fit_trend(tail);
    let regular = find_period(&differences, fit.slope.per_value);
    let is_exact = regular.as_ref().is_some_and(|regular| regular.followed == differences.len());
    let goes_on = match &regular {
        Some(regular) => since_growth * 2 <= regular.period * 3,
        None => has_even_thirds(&floors) && mean_time_of_growth(&floors) >= MIN_MEAN_TIME,
    };
    if !goes_on {
        return GrowthJudgement::Settled(GrowthRule::Saturating, rise);
    }
    if span < SHORT_SPAN {
        let each_step_survives =
            survivors.none_freed_after_step || survivors.generations >= growth_steps.len() as u64;
        if !is_exact || undone > 0 || !each_step_survives {
            return GrowthJudgement::Settled(GrowthRule::TooEarly, rise);
        }
    } else {
        let is_trend = fit.trend.tau >= MIN_TAU && growth_steps.len() >= 2 * MIN_GROWTH_STEPS;
        let is_certain = is_exact || undone == 0 || growth_steps.len() >= MANY_GROWTH_STEPS;
        if !is_certain || regular.is_none() && !is_trend {
            return GrowthJudgement::Quiet;
        }
    }
    let middle = tail[tail.len() / 2];
    let (early, late) = (middle.saturating_sub(minimum), last.saturating_sub(middle));
    let regularity = regular.as_ref().map_or(0.0, |r| r.followed as f64 / differences.len() as f64);
    let first = base + growth_steps[0];
    let (base, first) = match &regular {
        Some(regular) => extend_into_warm_up(values, base, first, regular),
        None => (base, first),
    };
    let before = if first == 0 { 0 } else { values[base] };
    GrowthJudgement::Grows(Growth {
        base,
        rise: last.saturating_sub(before),
        undone,
        rising_steps: growth_steps.len(),
        first,
        period: regular.as_ref().map(|regular| regular.period),
        per_value: regular
            .map_or(rise as f64 / span as f64, |regular| regular.growth as f64 / regular.period as f64),
        regularity,
        tau: fit.trend.tau,
        p: fit.trend.p,
        slope: fit.slope,
        accelerates: span >= 12 && late as f64 > MIN_ACCELERATION * early as f64,
    })
}

/// The largest fall after a rise, counted down to where the rise began. A fall from the first
/// value is warm-up and does not count.
fn largest_drawdown(values: &[u64]) -> u64 {
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

/// Moves base and first growth step back into the warm-up, as far as the period goes on there.
/// Growth by the same amount from the very first step began with nothing: both are 0 then.
fn extend_into_warm_up(
    values: &[u64],
    mut base: usize,
    mut first: usize,
    regular: &PeriodicGrowth,
) -> (usize, usize) {
    let period = regular.period;
    while base >= period && values[base].checked_sub(values[base - period]) == Some(regular.growth) {
        base -= period;
        first -= period;
    }
    if period == 1 && base == 0 && values[0] == regular.growth { (0, 0) } else { (base, first) }
}

/// Of each value, the minimum of it and all later ones.
fn future_minima(values: &[u64]) -> Vec<u64> {
    let mut floors = values.to_vec();
    for at in (0..floors.len().saturating_sub(1)).rev() {
        floors[at] = floors[at].min(floors[at + 1]);
    }
    floors
}

/// True if the last third of the span brought at least half of an even share, and the first two
/// thirds at least one share.
fn has_even_thirds(floors: &[u64]) -> bool {
    let span = floors.len() - 1;
    let at_third = |third: usize| floors[span * third / 3];
    let (first, last) = (at_third(0), at_third(3));
    let even_share = (last - first) as f64 / 3.0;
    let last_third = (last - at_third(2)) as f64;
    let first_two = (at_third(2) - first) as f64;
    last_third >= even_share / 2.0 && first_two >= even_share
}

/// When growth came on average: 0 all at the start, 0.5 evenly, 1 all at the end.
fn mean_time_of_growth(floors: &[u64]) -> f64 {
    let span = (floors.len() - 1) as f64;
    let rises = (1..floors.len()).map(|at| ((floors[at] - floors[at - 1]) as f64, at as f64 - 0.5));
    let (sum, weighted) =
        rises.fold((0.0, 0.0), |(sum, weighted), (rise, at)| (sum + rise, weighted + rise * at));
    weighted / (sum * span)
}

#[cfg(test)]
mod tests;
