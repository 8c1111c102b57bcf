//! Facts about a series that the rules use: its base, its rise, and what was undone.
//!
//! The header of [`super`] defines these terms. Each fact costs O(n) in the values.

use super::{
    GrowthJudgement, GrowthRule, MIN_GROWTH_STEPS, MIN_RISE_OVER_UNDONE_BEFORE_BASE,
    MIN_RISE_OVER_UNDONE_SINCE_BASE, SettledGrowth, warm_up_values,
};

/// A series and its base.
#[derive(Clone, Copy)]
pub(super) struct SeriesBase<'a> {
    pub(super) values: &'a [u64],
    /// Number of values at the start that are not judged.
    pub(super) warm_up: usize,
    /// Index of the base: the last judged value that is the lowest one.
    pub(super) at: usize,
    /// Last value minus that at the base.
    pub(super) rise: u64,
}

impl<'a> SeriesBase<'a> {
    /// `None` if no value is judged.
    pub(super) fn of(values: &'a [u64]) -> Option<Self> {
        let warm_up = warm_up_values(values.len());
        let judged = &values[warm_up..];
        let (last, minimum) = (*judged.last()?, *judged.iter().min()?);
        let at = warm_up + judged.iter().rposition(|value| *value == minimum)?;
        Some(Self { values, warm_up, at, rise: last - minimum })
    }

    pub(super) fn last(&self) -> u64 {
        self.values[self.values.len() - 1]
    }

    /// The judgement on a series that did not rise.
    pub(super) fn judge_level(&self) -> GrowthJudgement {
        let last = self.last();
        let is_constant = last > 0 && self.values[self.warm_up..].iter().all(|value| *value == last);
        if !is_constant {
            return GrowthJudgement::Quiet;
        }
        GrowthJudgement::Settled(SettledGrowth {
            rule: GrowthRule::WarmUp,
            rise: last,
            base: self.at,
            first: self.at,
            growth_steps: 0,
            goes_on: false,
        })
    }
}

/// What is known about a series that rose, without its trend.
pub(super) struct SeriesFacts<'a> {
    pub(super) base: SeriesBase<'a>,
    /// The largest drawdown up to the base.
    undone_before: u64,
    /// The largest drawdown since the base.
    undone_since: u64,
    /// For each value since the base, the lowest one from it on.
    pub(super) floors: Vec<u64>,
    /// Indexes of the floors that are above the one before.
    pub(super) growth_steps: Vec<usize>,
    /// Number of values since the last growth step.
    pub(super) since_growth: usize,
}

impl<'a> SeriesFacts<'a> {
    pub(super) fn of(base: SeriesBase<'a>) -> Self {
        let SeriesBase { values, warm_up, at, .. } = base;
        let floors = future_minima(&values[at..]);
        let growth_steps: Vec<usize> = (1..floors.len()).filter(|at| floors[*at] > floors[*at - 1]).collect();
        Self {
            base,
            undone_before: largest_drawdown(&values[warm_up..=at]),
            undone_since: largest_drawdown(&values[at..]),
            since_growth: floors.len() - 1 - growth_steps.last().copied().unwrap_or(0),
            floors,
            growth_steps,
        }
    }

    /// The values from the base on.
    pub(super) fn tail(&self) -> &'a [u64] {
        &self.base.values[self.base.at..]
    }

    /// Number of values after the base.
    pub(super) fn span(&self) -> usize {
        self.floors.len() - 1
    }

    pub(super) fn undone(&self) -> u64 {
        self.undone_before.max(self.undone_since)
    }

    /// True if the rise is small compared with what was undone.
    pub(super) fn is_undone(&self) -> bool {
        self.base.rise <= self.undone_since.saturating_mul(MIN_RISE_OVER_UNDONE_SINCE_BASE)
            || self.base.rise <= self.undone_before.saturating_mul(MIN_RISE_OVER_UNDONE_BEFORE_BASE)
    }

    pub(super) fn has_few_growth_steps(&self) -> bool {
        self.span() < MIN_GROWTH_STEPS || self.growth_steps.len() < MIN_GROWTH_STEPS
    }

    /// A growth that this rule does not call a leak.
    pub(super) fn settled(&self, rule: GrowthRule) -> GrowthJudgement {
        let widest_gap = self.growth_steps.windows(2).map(|pair| pair[1] - pair[0]).max();
        GrowthJudgement::Settled(SettledGrowth {
            rule,
            rise: self.base.rise,
            base: self.base.at,
            first: self.base.at + self.growth_steps.first().copied().unwrap_or(0),
            growth_steps: self.growth_steps.len(),
            goes_on: widest_gap.is_some_and(|gap| self.since_growth * 2 <= gap * 3),
        })
    }
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

/// Of each value, the minimum of it and all later ones.
fn future_minima(values: &[u64]) -> Vec<u64> {
    let mut floors = values.to_vec();
    for at in (0..floors.len().saturating_sub(1)).rev() {
        floors[at] = floors[at].min(floors[at + 1]);
    }
    floors
}
