//! The course of a value in a limited number of points.
//!
//! A bin holds the first moments of its least and its greatest value, and its last value. Only bins
//! with a change are kept, so bursts between long pauses stay fine. When the limit is reached, the
//! width of the bins doubles.

/// Width of the first bins. Times of a trace are multiples of about this.
const FIRST_WIDTH_NS: u64 = 1 << 10;
/// Most points that a bin gives.
pub(super) const POINTS_PER_BIN: usize = 3;

/// A value from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CounterPoint {
    pub(super) time_ns: u64,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct ValueBin {
    number: u64,
    least: CounterPoint,
    most: CounterPoint,
    last: CounterPoint,
    /// How many values it was given.
    changes: u64,
}

/// The bins of one value. Times ascend.
#[derive(Clone, Debug)]
pub(super) struct CounterBins {
    bins: Vec<ValueBin>,
    max_bins: usize,
    width_ns: u64,
    value: Option<u64>,
    end: Option<CounterPoint>,
    /// The bins before the last cut, and the greatest width of those that left out changes.
    done: Vec<ValueBin>,
    done_width_ns: Option<u64>,
}

impl CounterBins {
    pub(super) fn new(max_bins: usize) -> Self {
        Self {
            bins: Vec::new(),
            max_bins: max_bins.max(2),
            width_ns: FIRST_WIDTH_NS,
            value: None,
            end: None,
            done: Vec::new(),
            done_width_ns: None,
        }
    }

    /// Takes the value at a moment.
    pub(super) fn observe(&mut self, time_ns: u64, bytes: u64) {
        if self.value == Some(bytes) {
            return;
        }
        self.value = Some(bytes);
        let point = CounterPoint { time_ns, bytes };
        let number = time_ns / self.width_ns;
        match self.bins.last_mut() {
            Some(bin) if bin.number == number => bin.add(point),
            _ => self.append(point),
        }
    }

    /// Begins narrow bins anew: what follows is as fine as if nothing had been before.
    pub(super) fn cut(&mut self) {
        self.done_width_ns = self.summed_width_ns();
        self.done.append(&mut self.bins);
        self.width_ns = FIRST_WIDTH_NS;
    }

    /// Says that the last value still holds at a later moment.
    pub(super) fn repeat_last(&mut self, time_ns: u64) {
        if let Some(bytes) = self.value
            && self.bins.last().or(self.done.last()).is_some_and(|bin| bin.last.time_ns < time_ns)
        {
            self.end = Some(CounterPoint { time_ns, bytes });
        }
    }

    fn append(&mut self, point: CounterPoint) {
        while self.bins.len() >= self.max_bins {
            self.width_ns = self.width_ns.saturating_mul(2);
            self.merge();
        }
        let number = point.time_ns / self.width_ns;
        match self.bins.last_mut() {
            Some(bin) if bin.number == number => bin.add(point),
            _ => self.bins.push(ValueBin { number, least: point, most: point, last: point, changes: 1 }),
        }
    }

    /// Merges the bins that have become one.
    fn merge(&mut self) {
        for bin in &mut self.bins {
            bin.number /= 2;
        }
        self.bins.dedup_by(|later, bin| {
            let is_same = later.number == bin.number;
            if is_same {
                bin.append(later);
            }
            is_same
        });
    }

    /// Greatest width of bins that left out changes; `None` if none did.
    pub(super) fn summed_width_ns(&self) -> Option<u64> {
        let has_left_out = |bin: &ValueBin| bin.changes > bin.points().count() as u64;
        let width_ns = self.bins.iter().any(has_left_out).then_some(self.width_ns);
        width_ns.max(self.done_width_ns)
    }

    /// The points by time.
    pub(super) fn points(&self) -> impl Iterator<Item = CounterPoint> {
        self.done.iter().chain(&self.bins).flat_map(ValueBin::points).chain(self.end)
    }
}

impl ValueBin {
    fn add(&mut self, point: CounterPoint) {
        if point.bytes < self.least.bytes {
            self.least = point;
        }
        if point.bytes > self.most.bytes {
            self.most = point;
        }
        self.last = point;
        self.changes += 1;
    }

    /// Takes over a later bin.
    fn append(&mut self, later: &Self) {
        if later.least.bytes < self.least.bytes {
            self.least = later.least;
        }
        if later.most.bytes > self.most.bytes {
            self.most = later.most;
        }
        self.last = later.last;
        self.changes += later.changes;
    }

    fn points(&self) -> impl Iterator<Item = CounterPoint> + use<> {
        let mut points = [self.least, self.most, self.last];
        // Of equal times the last value is the one that holds.
        points[..2].sort_by_key(|point| point.time_ns);
        let mut before = None;
        points.into_iter().filter(move |point| before.replace(*point) != Some(*point))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points(bins: &CounterBins) -> Vec<(u64, u64)> {
        bins.points().map(|point| (point.time_ns, point.bytes)).collect()
    }

    #[test]
    fn few_changes_are_exact() {
        let mut bins = CounterBins::new(8);
        for (time_ns, bytes) in [(10, 5), (5_000, 7), (6_500, 7), (9_000, 0)] {
            bins.observe(time_ns, bytes);
        }
        bins.repeat_last(20_000);
        assert_eq!(points(&bins), [(10, 5), (5_000, 7), (9_000, 0), (20_000, 0)]);
        assert_eq!(bins.summed_width_ns(), None);
    }

    #[test]
    fn cut_keeps_what_follows_fine() {
        let mut bins = CounterBins::new(2);
        for step in 0..100u64 {
            bins.observe(step << 20, step % 7);
        }
        assert!(bins.summed_width_ns().is_some());
        bins.cut();
        bins.observe(1 << 30, 50);
        bins.observe((1 << 30) + 2_000, 60);
        assert_eq!(points(&bins)[points(&bins).len() - 2..], [(1 << 30, 50), ((1 << 30) + 2_000, 60)]);
    }

    proptest! {
        #[test]
        fn extremes_and_the_last_value_are_exact(
            max_bins in 2usize..20,
            changes in prop::collection::vec((0u64..100_000, 0u64..50), 1..200),
        ) {
            let mut bins = CounterBins::new(max_bins);
            let mut now_ns = 0;
            let mut all = Vec::new();
            for (pause_ns, bytes) in changes {
                now_ns += pause_ns;
                bins.observe(now_ns, bytes);
                all.push((now_ns, bytes));
            }
            let shown = points(&bins);
            prop_assert!(shown.len() <= max_bins * POINTS_PER_BIN);
            prop_assert!(shown.is_sorted_by_key(|(time_ns, _)| *time_ns));
            prop_assert!(shown.iter().all(|point| all.contains(point)), "no value is made up");
            let summary = |points: &[(u64, u64)]| {
                let bytes = || points.iter().map(|(_, bytes)| *bytes);
                (bytes().max(), bytes().min(), bytes().next_back())
            };
            prop_assert_eq!(summary(&shown), summary(&all));
        }
    }
}
