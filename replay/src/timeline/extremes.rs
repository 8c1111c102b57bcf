//! The least and the greatest values of several series in bins of equal width.
//!
//! As in [`super::bins`], the bins are merged in pairs when they are full. The extremes of each bin
//! are exact, so those of any span of whole bins are, too. A bin begins with the state before it.

/// Limit on the number of bins.
pub(crate) const MAX_FINE_BINS: usize = 4096;
const INITIAL_WIDTH_NS: u64 = 1 << 11;

/// The extremes of `N` series over a run.
#[derive(Clone, Debug)]
pub(crate) struct ExtremeSeries<const N: usize> {
    start_ns: u64,
    width_ns: u64,
    /// End of the current bin, which is the last; 0 before the first event.
    end_ns: u64,
    last: [u64; N],
    least: Vec<[u64; N]>,
    most: Vec<[u64; N]>,
}

impl<const N: usize> ExtremeSeries<N> {
    /// Bins for a run of the given length, with the final width from the start. With 0, for an
    /// unknown length, the bins begin narrow.
    pub(crate) fn for_span(span_ns: u64) -> Self {
        let width_ns = (span_ns / MAX_FINE_BINS as u64 + 1).next_power_of_two().max(INITIAL_WIDTH_NS);
        Self { start_ns: 0, width_ns, end_ns: 0, last: [0; N], least: Vec::new(), most: Vec::new() }
    }

    /// Records the values after an event. Times ascend.
    #[inline]
    pub(crate) fn observe(&mut self, time_ns: u64, values: [u64; N]) {
        if time_ns >= self.end_ns {
            self.append_until(time_ns);
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
    fn append_until(&mut self, time_ns: u64) {
        if self.least.is_empty() {
            self.start_ns = time_ns;
        }
        let index = |width_ns: u64| ((time_ns - self.start_ns) / width_ns) as usize;
        while index(self.width_ns) >= MAX_FINE_BINS {
            self.least.resize(MAX_FINE_BINS, self.last);
            self.most.resize(MAX_FINE_BINS, self.last);
            self.least = merge_pairs(&self.least, u64::min);
            self.most = merge_pairs(&self.most, u64::max);
            self.width_ns = self.width_ns.saturating_mul(2);
        }
        let len = index(self.width_ns) + 1;
        self.least.resize(len.max(self.least.len()), self.last);
        self.most.resize(len.max(self.most.len()), self.last);
        let span = (self.least.len() as u64).saturating_mul(self.width_ns);
        self.end_ns = self.start_ns.saturating_add(span);
    }

    /// Time of the first event, on the clock of the trace.
    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Width of a bin.
    pub(crate) fn width_ns(&self) -> u64 {
        self.width_ns
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
            let mut series = ExtremeSeries::<1>::for_span(0);
            let mut events = Vec::new();
            let mut time_ns = first_ns;
            for (delay_ns, value) in steps {
                time_ns += delay_ns * delay_ns / 100;
                series.observe(time_ns, [value]);
                events.push((time_ns, value));
            }
            let bins = series.least(0).zip(series.most(0)).zip(0u64..);
            for ((least, most), bin) in bins {
                let begin_ns = series.start_ns() + bin * series.width_ns();
                let end_ns = begin_ns + series.width_ns();
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
