//! A device over time in a fixed number of bins.
//!
//! Constraint: nobody knows how long a run will be, and a chart that averages hides the peak. Consequence: when the bins
//! are full their width doubles; each bin keeps the exact maximum and minimum of each series, and the moments of the
//! highest and lowest live bytes as marks, so that sites can say what they held then.

use std::ops::RangeInclusive;

/// Most bins.
pub(crate) const MAX_BINS: usize = 512;
const FIRST_WIDTH_NS: u64 = 1 << 14;

/// All series of a device at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemorySample {
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
    /// What the book counts.
    pub live: u64,
    /// Held by PyTorch; 0 until known.
    pub reserved: u64,
    /// Handed out by the driver.
    pub device: u64,
}

/// One bin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimelineBin {
    /// The moment of the highest live bytes.
    pub high: MemorySample,
    /// The moment of the lowest live bytes.
    pub low: MemorySample,
    /// Maxima of the other series.
    pub max_reserved: u64,
    /// Maxima of the other series.
    pub max_device: u64,
    /// Minima of the other series.
    pub min_reserved: u64,
    /// Minima of the other series.
    pub min_device: u64,
    /// Mark clock of `high`.
    pub high_clock: u64,
    /// Mark clock of `low`.
    pub low_clock: u64,
}

/// What a sample did to the bins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BinEffect {
    /// This moment is the highest of its bin.
    pub is_high: bool,
    /// This moment is the lowest of its bin.
    pub is_low: bool,
}

/// Which of a pair of bins gave the merged one its high and its low.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergedExtremes {
    /// 0 or 1.
    pub high: usize,
    /// 0 or 1.
    pub low: usize,
}

/// The bins.
#[derive(Clone, Debug)]
pub(crate) struct TimelineBins {
    start_ns: Option<u64>,
    width_ns: u64,
    all: Vec<TimelineBin>,
    /// Where the bin that is being filled ends: asked for at every event, as are its lowest and its highest live bytes.
    end_ns: u64,
    live: RangeInclusive<u64>,
}

impl Default for TimelineBins {
    fn default() -> Self {
        // Nothing is within.
        #[allow(clippy::reversed_empty_ranges)]
        let live = 1..=0;
        Self { start_ns: None, width_ns: FIRST_WIDTH_NS, all: Vec::new(), end_ns: 0, live }
    }
}

impl TimelineBins {
    /// For a run that is known to last so long: what these bins would come to by halving, without the halving.
    pub(crate) fn for_span(span_ns: u64) -> Self {
        let width_ns = (span_ns / MAX_BINS as u64 + 1).next_power_of_two().max(FIRST_WIDTH_NS);
        Self { width_ns, ..Self::default() }
    }

    /// Index of the bin that is being filled.
    pub(crate) fn current(&self) -> usize {
        self.all.len().saturating_sub(1)
    }

    /// The bins so far; a bin without any event repeats the state before it.
    pub(crate) fn all(&self) -> &[TimelineBin] {
        &self.all
    }

    /// True when `time_ns` lies past the bins there can be: call [`Self::halve`] until it does not.
    pub(crate) fn is_full(&self, time_ns: u64) -> bool {
        self.index(time_ns) >= MAX_BINS
    }

    fn index(&self, time_ns: u64) -> usize {
        (time_ns.saturating_sub(self.start_ns.unwrap_or(time_ns)) / self.width_ns) as usize
    }

    /// True when `time_ns` lies past the bin that is being filled.
    #[inline]
    pub(crate) fn begins_new(&self, time_ns: u64) -> bool {
        time_ns >= self.end_ns
    }

    /// Begins the bins up to `time_ns`, all with the state before it; `clock` is that of both marks, just set.
    pub(crate) fn begin(&mut self, before: MemorySample, time_ns: u64, clock: u64) {
        self.start_ns.get_or_insert(time_ns);
        self.begin_until(self.index(time_ns).min(MAX_BINS - 1) + 1, before, time_ns, clock);
    }

    /// Begins all bins there can be, with the state before them.
    pub(crate) fn pad(&mut self, before: MemorySample, clock: u64) {
        self.begin_until(MAX_BINS, before, u64::MAX, clock);
    }

    fn begin_until(&mut self, len: usize, before: MemorySample, time_ns: u64, clock: u64) {
        while self.all.len() < len {
            let begin_ns = self.start_ns.unwrap_or(0).saturating_add(self.all.len() as u64 * self.width_ns);
            let state = MemorySample { time_ns: begin_ns.min(time_ns), ..before };
            self.all.push(TimelineBin {
                high: state,
                low: state,
                max_reserved: state.reserved,
                max_device: state.device,
                min_reserved: state.reserved,
                min_device: state.device,
                high_clock: clock,
                low_clock: clock,
            });
        }
        self.update_end();
    }

    fn update_end(&mut self) {
        let span = (self.all.len() as u64).saturating_mul(self.width_ns);
        self.end_ns = self.start_ns.unwrap_or(0).saturating_add(span);
        if let Some(bin) = self.all.last() {
            self.live = bin.low.live..=bin.high.live;
        }
    }

    /// True when so many live bytes are no extreme of the current bin, as nearly always.
    #[inline]
    pub(crate) fn has_live(&self, bytes: u64) -> bool {
        self.live.contains(&bytes)
    }

    /// Takes a moment into the current bin.
    #[inline] // A sample that is passed in memory costs more than all that is done with it.
    pub(crate) fn observe(&mut self, sample: MemorySample) -> BinEffect {
        let Some(bin) = self.all.last_mut() else { return BinEffect::default() };
        bin.max_reserved = bin.max_reserved.max(sample.reserved);
        bin.min_reserved = bin.min_reserved.min(sample.reserved);
        bin.max_device = bin.max_device.max(sample.device);
        bin.min_device = bin.min_device.min(sample.device);
        let effect = BinEffect { is_high: sample.live > bin.high.live, is_low: sample.live < bin.low.live };
        if effect.is_high {
            bin.high = sample;
        }
        if effect.is_low {
            bin.low = sample;
        }
        self.live = bin.low.live..=bin.high.live;
        effect
    }

    /// Tells the current bin on which tick of the clock its marks stand.
    #[inline]
    pub(crate) fn marked(&mut self, effect: BinEffect, high_clock: u64, low_clock: u64) {
        if let Some(bin) = self.all.last_mut() {
            if effect.is_high {
                bin.high_clock = high_clock;
            }
            if effect.is_low {
                bin.low_clock = low_clock;
            }
        }
    }

    /// Joins bins in pairs. Whoever keeps values per bin does the same with the winners.
    pub(crate) fn halve(&mut self) -> Vec<MergedExtremes> {
        self.width_ns = self.width_ns.saturating_mul(2);
        let mut winners = Vec::new();
        let mut joined = Vec::with_capacity(self.all.len() / 2 + 1);
        for pair in self.all.chunks(2) {
            let first = pair[0];
            let second = pair.get(1).copied().unwrap_or(first);
            let high = usize::from(second.high.live > first.high.live);
            let low = usize::from(second.low.live < first.low.live);
            winners.push(MergedExtremes { high, low });
            let pick = [first, second];
            joined.push(TimelineBin {
                high: pick[high].high,
                low: pick[low].low,
                max_reserved: first.max_reserved.max(second.max_reserved),
                max_device: first.max_device.max(second.max_device),
                min_reserved: first.min_reserved.min(second.min_reserved),
                min_device: first.min_device.min(second.min_device),
                high_clock: pick[high].high_clock,
                low_clock: pick[low].low_clock,
            });
        }
        self.all = joined;
        self.update_end();
        winners
    }
}

/// One site's bytes at the high and the low of each finished bin.
pub(crate) type BinValues = Vec<[u64; 2]>;

/// Does to a site's values what [`TimelineBins::halve`] did to the bins.
pub(crate) fn halve_values(values: &mut BinValues, winners: &[MergedExtremes]) {
    let joined = values
        .chunks(2)
        .zip(winners)
        .map(|(pair, winner)| {
            let pick = [pair[0], pair.get(1).copied().unwrap_or(pair[0])];
            [pick[winner.high][0], pick[winner.low][1]]
        })
        .collect();
    *values = joined;
}
