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
//!   or there is at most one exception in ten changes, and more than half follow at each position
//!   of the period. In the second case the
//!   rate must be the Theil-Sen slope of the values, unless at most two differences deviate
//!   ([`period`]).
//! * *Saturating*: the last growth is older than one and a half periods. Without a period: the last
//!   third of the span brought less than half of an even share, or the first two thirds less than
//!   one share, or the mean time of growth lies before [`MIN_MEAN_TIME`] of the span. A few growth
//!   steps may do so by chance ([`Evenness::Unclear`]): such growth came too few times.
//!
//! A series grows if it has at least [`MIN_GROWTH_STEPS`] growth steps, does not saturate, has a
//! rise of more than 3 times what was undone since the base and 10 times what was undone before,
//! and
//! * in a span below [`SHORT_SPAN`]: it is exactly regular, and nothing was undone.
//! * in a longer span: it is regular, or Kendall's tau is at least [`MIN_TAU`] with at least
//!   [`MIN_IRREGULAR_EVENTS`] growth steps. With fewer than [`MANY_GROWTH_STEPS`], nothing of an
//!   inexact series may have been undone.
//!
//! A series that rose and does not grow has *settled*, by one of the [`GrowthRule`]s. A series is
//! quiet if its rise was undone (noise, gradient accumulation, evaluation).
//!
//! Two kinds of series are judged: the survivors of a site ([`crate::leak::survivors`]), which
//! never fall, and the live bytes at step ends, which show a working set that gets larger.
//! `growth::tests` checks each rule, `tests/leaks/accuracy.rs` their error rates.

mod evenness;
mod period;
mod series_facts;

use crate::leak::statistics::{Slope, TrendFit, fit_trend};
use crate::report::GrowsBy;
use evenness::{Evenness, MIN_MEAN_TIME, judge_evenness, mean_time_of_growth};
use period::{PeriodicGrowth, find_period, find_period_of_events};
use series_facts::{SeriesBase, SeriesFacts};

/// Growth steps that any growing series needs (`constant_growth_is_found_from_five_step_ends_on`).
const MIN_GROWTH_STEPS: usize = 4;
/// Growth steps from which on an inexact series may have been undone in part. A queue of random
/// length rises eight times by chance.
const MANY_GROWTH_STEPS: usize = 16;
/// Kendall's tau that growth without a period needs. At 0.97,
/// `leaks/cases.rs::irregular_growth_has_limited_confidence` would miss its leak.
const MIN_TAU: f64 = 0.8;
/// Growth steps that growth without a period needs: a few may come at any distances.
pub(crate) const MIN_IRREGULAR_EVENTS: usize = 8;
/// Highest p-value of growth without a period where no survivors show it.
pub(crate) const MAX_CHANCE: f64 = 0.05;
/// Step ends needed to judge a working set that gets larger.
const MIN_VALUES_OF_SIZE: usize = 12;
/// Growth steps needed where growth has no period and no survivors show it. A pool rises by chance
/// if its members are replaced by larger ones now and then.
pub(crate) const MIN_IRREGULAR_STEPS: usize = 16;
/// Values since the base, from which on growth need not be exactly regular.
const SHORT_SPAN: usize = 10;
/// Minimum ratio of rise to drawdown since the base.
const MIN_RISE_OVER_UNDONE_SINCE_BASE: u64 = 3;
/// Minimum ratio of rise to drawdown before the base: what has returned to its base once may do so
/// again (`leaks/cases.rs::stationary_noise_has_no_findings`).
const MIN_RISE_OVER_UNDONE_BEFORE_BASE: u64 = 10;
/// Step ends at the start of a run of 16 or more that are not judged. Without them,
/// `leaks/cases.rs::lasting_blocks_of_a_line_do_not_hide_its_graph` fails.
const WARM_UP_VALUES: usize = 3;
/// Values of a series that is too short to accelerate.
const MIN_ACCELERATING_VALUES: usize = 12;
/// Minimum ratio of the second half of an accelerating growth to the first half.
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
    /// All differences follow the period, also by their amounts.
    pub is_exact: bool,
    /// Kendall's tau of the values since the base.
    pub tau: f64,
    /// One-sided p-value of Mann-Kendall's test, corrected for autocorrelation.
    pub p: f64,
    pub slope: Slope,
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
        is_exact: false,
        tau: 0.0,
        p: 1.0,
        slope: Slope { per_value: 0.0, interval: [0.0; 2] },
    };

    /// The same growth in a series with `values` more values before it.
    pub(crate) fn shifted_by(self, values: usize) -> Self {
        Self { base: self.base + values, first: self.first + values, ..self }
    }

    /// True if live bytes grow for certain, where no survivors show it. `values`: the length of the
    /// series.
    pub(crate) fn is_certain_of_live_bytes(&self, values: usize) -> bool {
        let is_trend = self.rising_steps >= MIN_IRREGULAR_STEPS && self.p <= MAX_CHANCE;
        (self.period.is_some() || is_trend) && values - self.base >= MIN_VALUES_OF_SIZE
    }

    /// Bounds of `per_value`: the value itself if growth is exactly regular, else the 95% interval
    /// of the Theil-Sen slope.
    pub(crate) fn rate_interval(&self) -> [f64; 2] {
        match self.period {
            Some(_) if self.is_exact => [self.per_value; 2],
            _ => self.slope.interval,
        }
    }
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
    /// Growth goes on, but came too few times to be judged.
    TooEarly,
    /// One call of a model holds what grew: its layers repeat like steps.
    OneModelCall,
    /// Allocated in one go, before other work: weights, a preallocated cache.
    SetUp,
    /// Most of it was freed again before the end of what was seen.
    Released,
    /// As much of other memory was freed: a snapshot of PyTorch in which live bytes did not grow.
    Replaced,
}

/// A series that rose and does not grow for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledGrowth {
    pub(crate) rule: GrowthRule,
    /// Last value minus that at the base.
    pub(crate) rise: u64,
    /// Index of the base.
    pub(crate) base: usize,
    /// Index of the first growth step.
    pub(crate) first: usize,
    /// Number of growth steps.
    pub(crate) growth_steps: usize,
    /// The last growth step is no older than one and a half times the widest distance of two.
    pub(crate) goes_on: bool,
}

/// The judgement on a series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GrowthJudgement {
    /// The series grows for good.
    Grows(Growth),
    /// The series rose and does not grow.
    Settled(SettledGrowth),
    /// The series does not hold more than it did.
    Quiet,
}

impl GrowthJudgement {
    /// What grows with the bytes of a site, by the judgement on its number of blocks.
    pub(crate) fn grows_by(&self) -> GrowsBy {
        match self {
            Self::Grows(_) => GrowsBy::Blocks,
            Self::Settled(settled) if settled.rule == GrowthRule::TooEarly => GrowsBy::Blocks,
            Self::Settled(_) | Self::Quiet => GrowsBy::Size,
        }
    }

    pub(crate) fn growth(self) -> Option<Growth> {
        match self {
            Self::Grows(growth) => Some(growth),
            Self::Settled(_) | Self::Quiet => None,
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

/// Judges the values of a site at step ends. The rules, in this order, are those of the header.
pub(crate) fn judge_series(values: &[u64]) -> GrowthJudgement {
    let Some(base) = SeriesBase::of(values) else { return GrowthJudgement::Quiet };
    if base.rise == 0 {
        return base.judge_level();
    }
    let facts = SeriesFacts::of(base);
    if facts.is_undone() {
        return GrowthJudgement::Quiet;
    }
    if facts.has_few_growth_steps() {
        let is_short = facts.since_growth < MIN_GROWTH_STEPS && values.len() < SHORT_SPAN;
        return facts.settled(if is_short { GrowthRule::TooEarly } else { GrowthRule::OneOff });
    }
    let trend = TrendFacts::of(&facts);
    if let Some(rule) = trend.find_slowdown(&facts) {
        return facts.settled(rule);
    }
    if let Some(judgement) = trend.judge_chance(&facts) {
        return judgement;
    }
    GrowthJudgement::Grows(trend.into_growth(&facts))
}

/// The trend of a series since its base.
struct TrendFacts {
    /// Number of differences between two values.
    differences: usize,
    fit: TrendFit,
    /// The period, if growth has one.
    regular: Option<PeriodicGrowth>,
    /// Growth from one value to the next, if its amounts repeat.
    by_amount_per_value: Option<f64>,
    /// All differences follow the period.
    is_exact: bool,
}

impl TrendFacts {
    fn of(facts: &SeriesFacts<'_>) -> Self {
        let tail = facts.tail();
        let differences: Vec<i64> =
            tail.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as i64).collect();
        let fit = fit_trend(tail);
        let by_amount = find_period(&differences, fit.slope.per_value);
        let by_amount_per_value = by_amount.as_ref().map(|one| one.growth as f64 / one.period as f64);
        // Growth by varying amounts may come at regular times.
        let regular = by_amount.or_else(|| find_period_of_events(&differences));
        let is_exact = regular.as_ref().is_some_and(|regular| regular.followed == differences.len());
        Self { differences: differences.len(), fit, regular, by_amount_per_value, is_exact }
    }

    /// The rule that stops or delays growth, if its times show one.
    fn find_slowdown(&self, facts: &SeriesFacts<'_>) -> Option<GrowthRule> {
        match &self.regular {
            Some(regular) if facts.since_growth * 2 > regular.period * 3 => Some(GrowthRule::Saturating),
            Some(regular) if regular.is_by_time && mean_time_of_growth(&facts.floors) < MIN_MEAN_TIME => {
                Some(GrowthRule::Saturating)
            }
            Some(_) => None,
            None => match judge_evenness(&facts.floors, &facts.growth_steps) {
                Evenness::Even => None,
                Evenness::Unclear => Some(GrowthRule::TooEarly),
                Evenness::Saturating => Some(GrowthRule::Saturating),
            },
        }
    }

    /// The judgement on a series whose growth may be chance; `None` if it grows.
    fn judge_chance(&self, facts: &SeriesFacts<'_>) -> Option<GrowthJudgement> {
        let (undone, steps) = (facts.undone(), facts.growth_steps.len());
        if facts.span() < SHORT_SPAN {
            let is_early = !self.is_exact || undone > 0;
            return is_early.then(|| facts.settled(GrowthRule::TooEarly));
        }
        let is_certain = self.is_exact || undone == 0 || steps >= MANY_GROWTH_STEPS;
        let is_trend = self.regular.is_some() || self.fit.trend.tau >= MIN_TAU;
        if !is_certain || !is_trend && undone > 0 {
            return Some(GrowthJudgement::Quiet);
        }
        // What never falls holds more than it did, however few its steps.
        let is_early = !is_trend || self.regular.is_none() && steps < MIN_IRREGULAR_EVENTS;
        is_early.then(|| facts.settled(GrowthRule::TooEarly))
    }

    fn into_growth(self, facts: &SeriesFacts<'_>) -> Growth {
        let SeriesBase { values, warm_up, at, .. } = facts.base;
        let (base, first) = (at, at + facts.growth_steps[0]);
        let (base, first) = match &self.regular {
            Some(regular) => extend_into_warm_up(values, base, first, regular),
            None => (base, first),
        };
        let last = facts.base.last();
        let before = if first == 0 { 0 } else { values[base] };
        let values_of_growth = values.len() - 1 - base + usize::from(first == 0);
        let mean = last.saturating_sub(before) as f64 / values_of_growth as f64;
        let rises_in_warm_up = count_rises(&values[base..=warm_up.max(base)], first == 0);
        let regular = self.regular.as_ref();
        Growth {
            base,
            rise: last.saturating_sub(before),
            undone: facts.undone(),
            rising_steps: facts.growth_steps.len() + rises_in_warm_up,
            first,
            period: regular.map(|regular| regular.period),
            per_value: self.by_amount_per_value.unwrap_or(mean),
            regularity: regular.map_or(0.0, |regular| regular.followed as f64 / self.differences as f64),
            is_exact: self.is_exact && !regular.is_some_and(|regular| regular.is_by_time),
            tau: self.fit.trend.tau,
            p: self.fit.trend.p,
            slope: self.fit.slope,
        }
    }
}

/// True if the second half of a series that never falls brought over [`MIN_ACCELERATION`] times
/// what the first half did. Two halves of a short series are no evidence.
pub(crate) fn accelerates(values: &[u64]) -> bool {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return false };
    let middle = values[values.len() / 2];
    let (early, late) = (middle.saturating_sub(*first), last.saturating_sub(middle));
    values.len() > MIN_ACCELERATING_VALUES && late as f64 > MIN_ACCELERATION * early as f64
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
    let continues = |base: usize| {
        let growth = values[base].checked_sub(values[base - period]);
        if regular.is_by_time {
            growth.is_some_and(|growth| growth > 0)
        } else {
            growth == Some(regular.growth)
        }
    };
    while base >= period && continues(base) {
        base -= period;
        first -= period;
    }
    let began_with_zero = if regular.is_by_time {
        values.len() > 1 && values[0] > 0 && values[0] <= values[1].saturating_sub(values[0])
    } else {
        values[0] == regular.growth
    };
    if period == 1 && base == 0 && began_with_zero { (0, 0) } else { (base, first) }
}

/// Number of rises in the warm-up, from the base on; with the first value if it `began_with_zero`.
fn count_rises(warm_up: &[u64], began_with_zero: bool) -> usize {
    warm_up.windows(2).filter(|pair| pair[1] > pair[0]).count() + usize::from(began_with_zero)
}

#[cfg(test)]
mod tests;
