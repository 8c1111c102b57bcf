//! The least and the greatest values of several series in many bins.
//!
//! As in [`super::bins`], the bins have equal widths on a [`BinAxis`], and are merged in pairs when
//! they are full. The extremes of each bin are exact, so those of any span of whole bins are, too.
//! A bin begins with the state before it.

use crate::timeline::bin_axis::BinAxis;

/// Limit on the number of bins.
pub(crate) const MAX_FINE_BINS: usize = 4096;

/// The extremes of `N` series over a run.
#[derive(Clone, Debug)]
pub(crate) struct ExtremeSeries<const N: usize> {
    /// Position of the first event.
    start: u64,
    width: u64,
    /// End of the current bin, which is the last; 0 before the first event.
    end: u64,
    /// Per bin a time: its first event comes not before it, and all earlier events do.
    begins_ns: Vec<u64>,
    last: [u64; N],
    least: Vec<[u64; N]>,
    most: Vec<[u64; N]>,
}

impl<const N: usize> ExtremeSeries<N> {
    /// Bins on an axis. They are merged as needed: rarely, if the length of the run is known.
    pub(crate) fn on_axis(axis: &BinAxis) -> Self {
        let width = axis.width_for(MAX_FINE_BINS);
        let (begins_ns, least, most) = (Vec::new(), Vec::new(), Vec::new());
        Self { start: 0, width, end: 0, begins_ns, last: [0; N], least, most }
    }

    /// Records the values after the last event that the axis passed.
    #[inline]
    pub(crate) fn observe(&mut self, axis: &BinAxis, values: [u64; N]) {
        if axis.position() >= self.end {
            self.append_until(axis);
        }
        for (series, value) in values.into_iter().enumerate() {
            // Most events change one of the series.
            if value != self.last[series] {
                self.set(series, value);
            }
        }
    }

    #[inline]
    fn set(&mut self, series: usize, value: u64) {
        self.last[series] = value;
        if let (Some(least), Some(most)) = (self.least.last_mut(), self.most.last_mut()) {
            least[series] = value.min(least[series]);
            most[series] = value.max(most[series]);
        }
    }

    #[inline(never)] // Once per bin.
    fn append_until(&mut self, axis: &BinAxis) {
        if self.least.is_empty() {
            self.start = axis.position();
        }
        let passed = axis.position().saturating_sub(self.start);
        while passed / self.width >= MAX_FINE_BINS as u64 {
            self.append_until_len(MAX_FINE_BINS, axis);
            self.least = merge_pairs(&self.least, u64::min);
            self.most = merge_pairs(&self.most, u64::max);
            self.begins_ns = self.begins_ns.iter().copied().step_by(2).collect();
            self.width = self.width.saturating_mul(2);
        }
        self.append_until_len((passed / self.width) as usize + 1, axis);
        let span = (self.least.len() as u64).saturating_mul(self.width);
        self.end = self.start.saturating_add(span);
    }

    fn append_until_len(&mut self, len: usize, axis: &BinAxis) {
        while self.least.len() < len {
            let begin = self.start.saturating_add((self.least.len() as u64).saturating_mul(self.width));
            self.begins_ns.push(axis.time_of(begin));
            self.least.push(self.last);
            self.most.push(self.last);
        }
    }

    /// Begins of the bins, on the clock of the trace.
    pub(crate) fn begins_ns(&self) -> &[u64] {
        &self.begins_ns
    }

    /// The least value of a series in each bin.
    pub(crate) fn least(&self, series: usize) -> impl Iterator<Item = u64> {
        self.least.iter().map(move |values| values[series])
    }

    /// The greatest value of a series in each bin.
    pub(crate) fn most(&self, series: usize) -> impl Iterator<Item = u64> {
        self.most.iter().map(move |values| values[series])
    }
}

fn merge_pairs<const N: usize>(all: &[[u64; N]], pick: impl Fn(u64, u64) -> u64) -> Vec<[u64; N]> {
    let merge = |pair: &[[u64; N]]| {
        let second = pair.get(1).unwrap_or(&pair[0]);
        std::array::from_fn(|series| pick(pair[0][series], second[series]))
    };
    all.chunks(2).map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extremes_of_each_bin_are_exact(
            steps in proptest::collection::vec((0u64..40_000, 0u64..100), 1..300),
            first_ns in 0u64..1000,
        ) {
            let mut axis = BinAxis::default();
            let mut series = ExtremeSeries::<1>::on_axis(&axis);
            let mut events = Vec::new();
            let mut time_ns = first_ns;
            for (delay_ns, value) in steps {
                time_ns += delay_ns * delay_ns / 100;
                axis.advance(time_ns);
                series.observe(&axis, [value]);
                events.push((time_ns, value));
            }
            let begins_ns = series.begins_ns();
            let bins = series.least(0).zip(series.most(0)).enumerate();
            for (bin, (least, most)) in bins {
                let begin_ns = begins_ns[bin];
                let end_ns = begins_ns.get(bin + 1).copied().unwrap_or(u64::MAX);
                let before = events.iter().rfind(|(at, _)| *at < begin_ns).map(|(_, value)| *value);
                let inside = events.iter().filter(|(at, _)| (begin_ns..end_ns).contains(at));
                let values: Vec<u64> = before
                    .or((bin == 0).then_some(0))
                    .into_iter()
                    .chain(inside.map(|(_, value)| *value))
                    .collect();
                prop_assert_eq!(Some(&least), values.iter().min());
                prop_assert_eq!(Some(&most), values.iter().max());
            }
        }
    }
}
