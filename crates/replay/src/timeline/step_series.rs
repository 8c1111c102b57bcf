//! A series of values at step ends that stores only changes.
//!
//! A run may have millions of steps, and most call sites hold the same bytes at the end of each.
//! [`StepSeries`] stores a point only where the value changes. Beyond its limit of points it
//! doubles its stride: it then represents every second step end of before. Each series has its own
//! stride, so memory is bounded and short series stay exact.

use crate::util::block_totals::BlockTotals;

/// Default limit of the points of a series.
pub(crate) const MAX_POINTS: usize = 2048;

/// Values at step ends 0, `stride`, 2 `stride`, ... A point holds until the next one; the value
/// before the first point is zero.
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
    /// An empty series with its own limit of points.
    pub(crate) fn with_max_points(max_points: usize) -> Self {
        Self { points: Vec::new(), stride: 1, max_points: max_points as u32 }
    }

    /// Sets the value from the end of `step` on. Steps must ascend.
    pub(crate) fn record(&mut self, step: u32, value: BlockTotals) {
        let step = represented_step(step, self.stride);
        match self.points.last_mut() {
            Some((last, last_value)) if *last == step => *last_value = value,
            Some((_, last_value)) if *last_value == value => return,
            None if value == BlockTotals::default() => return,
            _ => self.points.push((step, value)),
        }
        if self.points.len() > self.max_points as usize {
            self.double_stride();
        }
    }

    fn double_stride(&mut self) {
        self.stride *= 2;
        let mut points: Vec<(u32, BlockTotals)> = Vec::with_capacity(self.points.len());
        for (step, value) in self.points.drain(..) {
            let step = represented_step(step, self.stride);
            match points.last_mut() {
                Some((last, last_value)) if *last == step => *last_value = value,
                _ => points.push((step, value)),
            }
        }
        self.points = points;
    }

    /// The distance of two represented step ends.
    pub(crate) fn stride(&self) -> u32 {
        self.stride
    }

    /// True if the value was always zero.
    pub(crate) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The stride, and the values at step ends 0, `stride`, 2 `stride`, ... below `steps`. The
    /// stride is large enough for at most twice [`MAX_POINTS`] values.
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
            while let Some((_, next_value)) = points.next_if(|(at, _)| u64::from(*at) <= step) {
                value = *next_value;
            }
            values.push(value);
            step += u64::from(stride);
        }
        (stride, values)
    }

    /// Like [`Self::values`], but only from the end of step `first` on. The second number is the
    /// count of values before them.
    pub(crate) fn values_from(&self, first: u32, steps: u32) -> (u32, usize, Vec<BlockTotals>) {
        let (stride, mut values) = self.values(steps);
        let before = (first.div_ceil(stride) as usize).min(values.len());
        values.drain(..before);
        (stride, before, values)
    }

    /// The value at the end of `step`.
    pub(crate) fn at(&self, step: u32) -> BlockTotals {
        let after = self.points.partition_point(|(at, _)| *at <= step);
        after.checked_sub(1).map_or(BlockTotals::default(), |index| self.points[index].1)
    }
}

/// The first step end from `step` on that a series with this stride, a power of two, represents.
#[inline]
fn represented_step(step: u32, stride: u32) -> u32 {
    (step + (stride - 1)) & !(stride - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(blocks: u64) -> BlockTotals {
        BlockTotals { bytes: blocks * 512, blocks }
    }

    #[test]
    fn million_step_growth_keeps_its_slope_in_bounded_memory() {
        let mut series = StepSeries::default();
        for step in 0..1_000_000u32 {
            series.record(step, totals(u64::from(step) + 1));
        }
        assert!(series.points.len() <= MAX_POINTS);
        let (stride, values) = series.values(1_000_000);
        assert!(values.len() <= 2 * MAX_POINTS + 1);
        for (index, value) in values.iter().enumerate() {
            assert_eq!(*value, totals(index as u64 * u64::from(stride) + 1));
        }
    }

    #[test]
    fn value_holds_until_the_next_change() {
        let mut series = StepSeries::default();
        series.record(0, totals(0));
        assert!(series.is_empty());
        series.record(2, totals(3));
        series.record(5, totals(3));
        series.record(6, totals(1));
        assert_eq!(series.values(8).1, [0, 0, 3, 3, 3, 3, 1, 1].map(totals));
        assert_eq!((series.at(1), series.at(5), series.at(100)), (totals(0), totals(3), totals(1)));
    }
}
