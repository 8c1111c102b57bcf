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
    /// Number of values.
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
}

impl CounterBins {
    pub(super) fn new(max_bins: usize) -> Self {
        Self { bins: Vec::new(), max_bins: max_bins.max(2), width_ns: FIRST_WIDTH_NS, value: None, end: None }
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

    /// Says that the last value still holds at a later moment.
    pub(super) fn repeat_last(&mut self, time_ns: u64) {
        if let Some(bytes) = self.value
            && self.bins.last().is_some_and(|bin| bin.last.time_ns < time_ns)
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

    /// Width of the bins if they left out changes, else `None`.
    pub(super) fn summed_width_ns(&self) -> Option<u64> {
        self.bins.iter().any(|bin| bin.changes > bin.points().count() as u64).then_some(self.width_ns)
    }

    /// The points by time.
    pub(super) fn points(&self) -> impl Iterator<Item = CounterPoint> {
        self.bins.iter().flat_map(ValueBin::points).chain(self.end)
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
