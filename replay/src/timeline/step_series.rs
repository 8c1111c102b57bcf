//! A value at the end of every step, kept only where it changes.
//!
//! Constraint: a run may have millions of steps and most sites are the same at the end of each. Consequence: changes only,
//! and past [`MAX_POINTS`] of them (or fewer, where coarser will do) every other step end is given up (the stride doubles), for this series alone.

use crate::util::block_totals::BlockTotals;

/// Most points a series keeps unless it is told otherwise.
pub(crate) const MAX_POINTS: usize = 2048;

/// Values at step ends 0, `stride`, 2 `stride`, ...; between two points the earlier one holds. Before the first: zero.
#[derive(Clone, Debug)]
pub(crate) struct StepSeries {
    points: Vec<(u32, BlockTotals)>,
    stride: u32,
    max_points: u32,
}

impl Default for StepSeries {
    fn default() -> Self {
        Self::with_max_points(MAX_POINTS)
    }
}

impl StepSeries {
    /// A coarser one.
    pub(crate) fn with_max_points(max_points: usize) -> Self {
        Self { points: Vec::new(), stride: 1, max_points: max_points as u32 }
    }

    /// The value at the end of `step` and of all later ones until the next call. Steps ascend.
    pub(crate) fn record(&mut self, step: u32, value: BlockTotals) {
        let step = step.next_multiple_of(self.stride);
        match self.points.last_mut() {
            Some((last, held)) if *last == step => *held = value,
            Some((_, held)) if *held == value => return,
            None if value == BlockTotals::default() => return,
            _ => self.points.push((step, value)),
        }
        if self.points.len() > self.max_points as usize {
            self.thin();
        }
    }

    /// Several together, as coarse as the coarsest of them.
    pub(crate) fn sum<'a>(parts: impl Iterator<Item = &'a Self>, steps: u32) -> Self {
        let parts: Vec<&Self> = parts.collect();
        let stride = parts.iter().map(|part| part.stride).max().unwrap_or(1);
        let mut sum = Self { stride, ..Self::default() };
        for step in (0..steps).step_by(stride as usize) {
            let mut all = BlockTotals::default();
            for held in parts.iter().map(|part| part.at(step)) {
                all.bytes = all.bytes.saturating_add(held.bytes);
                all.blocks = all.blocks.saturating_add(held.blocks);
            }
            sum.record(step, all);
        }
        sum
    }

    fn thin(&mut self) {
        self.stride *= 2;
        let mut kept: Vec<(u32, BlockTotals)> = Vec::with_capacity(self.points.len());
        for (step, value) in self.points.drain(..) {
            let step = step.next_multiple_of(self.stride);
            match kept.last_mut() {
                Some((last, held)) if *last == step => *held = value,
                _ => kept.push((step, value)),
            }
        }
        self.points = kept;
    }

    /// Of how many step ends one is kept.
    pub(crate) fn stride(&self) -> u32 {
        self.stride
    }

    /// True when it never was anything but zero.
    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The stride and the values at step ends 0, `stride`, 2 `stride`, ... below `steps`, with `stride` at least so large
    /// that there are at most twice [`MAX_POINTS`].
    pub(crate) fn values(&self, steps: u32) -> (u32, Vec<BlockTotals>) {
        let mut stride = self.stride;
        while steps / stride > 2 * MAX_POINTS as u32 {
            stride *= 2;
        }
        let mut points = self.points.iter().peekable();
        let mut value = BlockTotals::default();
        let mut values = Vec::new();
        let mut step = 0u64;
        while step < u64::from(steps) {
            while let Some((_, held)) = points.next_if(|(at, _)| u64::from(*at) <= step) {
                value = *held;
            }
            values.push(value);
            step += u64::from(stride);
        }
        (stride, values)
    }

    /// As [`Self::values`], of the ends of step `first` and later ones; and how many values come before them.
    pub(crate) fn values_from(&self, first: u32, steps: u32) -> (u32, usize, Vec<BlockTotals>) {
        let (stride, mut values) = self.values(steps);
        let before = (first.div_ceil(stride) as usize).min(values.len());
        values.drain(..before);
        (stride, before, values)
    }

    /// The value at the end of a step.
    pub(crate) fn at(&self, step: u32) -> BlockTotals {
        let after = self.points.partition_point(|(at, _)| *at <= step);
        after.checked_sub(1).map_or(BlockTotals::default(), |index| self.points[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(blocks: u64) -> BlockTotals {
        BlockTotals { bytes: blocks * 512, blocks }
    }

    #[test]
    fn a_million_steps_of_growth_keep_their_slope_in_bounded_memory() {
        let mut series = StepSeries::default();
        for step in 0..1_000_000u32 {
            series.record(step, held(u64::from(step) + 1));
        }
        assert!(series.points.len() <= MAX_POINTS);
        let (stride, values) = series.values(1_000_000);
        assert!(values.len() <= 2 * MAX_POINTS + 1);
        for (index, value) in values.iter().enumerate() {
            assert_eq!(*value, held(index as u64 * u64::from(stride) + 1));
        }
    }

    #[test]
    fn between_changes_the_value_holds() {
        let mut series = StepSeries::default();
        series.record(0, held(0));
        assert!(series.is_empty());
        series.record(2, held(3));
        series.record(5, held(3));
        series.record(6, held(1));
        assert_eq!(series.values(8).1, [0, 0, 3, 3, 3, 3, 1, 1].map(held));
        assert_eq!((series.at(1), series.at(5), series.at(100)), (held(0), held(3), held(1)));
    }
}
