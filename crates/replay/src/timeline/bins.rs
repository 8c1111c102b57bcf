//! The timeline of one device in at most [`MAX_BINS`] bins.
//!
//! The bins have equal widths on a [`BinAxis`], so they follow events as well as time.
//!
//! Constraint: the length of a run is unknown in advance, and averaging would hide the peak.
//! Consequence: when the bins are full, [`TimelineBins::halve`] merges them in pairs and doubles
//! their width. Each bin keeps the exact maximum and minimum of each series. It also keeps the
//! checkpoint clocks of its highest and lowest live bytes. From them, each call site can tell its
//! own bytes at those moments ([`crate::state::live_set::lazy_counter`]). An event that sets no
//! extreme costs two comparisons.

use std::ops::RangeInclusive;

use crate::timeline::bin_axis::BinAxis;

/// Limit on the number of bins.
pub(crate) const MAX_BINS: usize = 512;

/// All series of a device at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemorySample {
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes reserved by PyTorch's allocator; 0 until known.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device: u64,
}

/// The extremes of one bin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimelineBin {
    /// The bin's first event comes not before this time, and all earlier events do.
    pub begin_ns: u64,
    /// The moment of the highest live bytes.
    pub high: MemorySample,
    /// The moment of the lowest live bytes.
    pub low: MemorySample,
    pub max_reserved: u64,
    pub max_device: u64,
    pub min_reserved: u64,
    pub min_device: u64,
    /// Checkpoint clock at `high`.
    pub high_clock: u64,
    /// Checkpoint clock at `low`.
    pub low_clock: u64,
}

/// The extremes of the current bin that a sample replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BinEffect {
    /// The sample is the highest of its bin.
    pub is_high: bool,
    /// The sample is the lowest of its bin.
    pub is_low: bool,
}

/// The bins of a merged pair, by index 0 or 1, that supplied its high and its low.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergedExtremes {
    pub high: usize,
    pub low: usize,
}

/// Consecutive bins of equal width.
#[derive(Clone, Debug)]
pub(crate) struct TimelineBins {
    /// Position of the first event.
    start: Option<u64>,
    width: u64,
    all: Vec<TimelineBin>,
    /// End of the current bin, which is the last. Compared at every event, like `live`.
    end: u64,
    /// Lowest to highest live bytes of the current bin.
    live: RangeInclusive<u64>,
}

impl Default for TimelineBins {
    fn default() -> Self {
        Self::on_axis(&BinAxis::default())
    }
}

impl TimelineBins {
    /// Bins on an axis. They are halved as needed: rarely, if the length of the run is known.
    pub(crate) fn on_axis(axis: &BinAxis) -> Self {
        #[allow(clippy::reversed_empty_ranges)] // Empty, so that the first sample is an extreme.
        let live = 1..=0;
        Self { start: None, width: axis.coarse_width_for(MAX_BINS), all: Vec::new(), end: 0, live }
    }

    /// Index of the current bin.
    pub(crate) fn current(&self) -> usize {
        self.all.len().saturating_sub(1)
    }

    /// The bins so far. A bin without events repeats the state before it.
    pub(crate) fn all(&self) -> &[TimelineBin] {
        &self.all
    }

    /// True if `position` lies past the last possible bin: call [`Self::halve`] until it does not.
    pub(crate) fn needs_halving(&self, position: u64) -> bool {
        self.index_of(position) >= MAX_BINS
    }

    fn index_of(&self, position: u64) -> usize {
        (position.saturating_sub(self.start.unwrap_or(position)) / self.width) as usize
    }

    /// True if `position` lies past the current bin.
    #[inline]
    pub(crate) fn needs_new_bin(&self, position: u64) -> bool {
        position >= self.end
    }

    /// Appends bins up to the position of the last event, filled with the state before it. `clock`
    /// is the checkpoint clock of both extremes, which the caller has just set.
    pub(crate) fn append_until_event(&mut self, before: MemorySample, axis: &BinAxis, clock: u64) {
        let start = *self.start.get_or_insert(axis.position());
        let len = self.index_of(axis.position()).min(MAX_BINS - 1) + 1;
        self.append_until_len(len, before, (start, axis), clock);
    }

    /// Appends bins up to [`MAX_BINS`], filled with the state before the last event.
    pub(crate) fn append_all(&mut self, before: MemorySample, axis: &BinAxis, clock: u64) {
        let start = self.start.unwrap_or(axis.position());
        self.append_until_len(MAX_BINS, before, (start, axis), clock);
    }

    fn append_until_len(
        &mut self,
        len: usize,
        before: MemorySample,
        (start, axis): (u64, &BinAxis),
        clock: u64,
    ) {
        while self.all.len() < len {
            let begin = start.saturating_add((self.all.len() as u64).saturating_mul(self.width));
            let begin_ns = axis.time_of(begin);
            let state = MemorySample { time_ns: begin_ns, ..before };
            self.all.push(TimelineBin {
                begin_ns,
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
        let length = (self.all.len() as u64).saturating_mul(self.width);
        self.end = self.start.unwrap_or(0).saturating_add(length);
        if let Some(bin) = self.all.last() {
            self.live = bin.low.live..=bin.high.live;
        }
    }

    /// True if `bytes` live bytes are within the extremes of the current bin, as they mostly are.
    #[inline]
    pub(crate) fn contains_live(&self, bytes: u64) -> bool {
        self.live.contains(&bytes)
    }

    /// Adds a sample to the current bin. If it is an extreme, call [`Self::set_clocks`] next.
    #[inline] // Passing the sample in memory would cost more than the work below.
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

    /// Stores the checkpoint clocks of the extremes that `effect` names.
    #[inline]
    pub(crate) fn set_clocks(&mut self, effect: BinEffect, high_clock: u64, low_clock: u64) {
        if let Some(bin) = self.all.last_mut() {
            if effect.is_high {
                bin.high_clock = high_clock;
            }
            if effect.is_low {
                bin.low_clock = low_clock;
            }
        }
    }

    /// Merges the bins in pairs. [`BinValues::halve`] must follow for values that are kept per bin.
    pub(crate) fn halve(&mut self) -> Vec<MergedExtremes> {
        self.width = self.width.saturating_mul(2);
        let mut extremes = Vec::new();
        let mut merged = Vec::with_capacity(self.all.len() / 2 + 1);
        for pair in self.all.chunks(2) {
            let first = pair[0];
            let second = pair.get(1).copied().unwrap_or(first);
            let high = usize::from(second.high.live > first.high.live);
            let low = usize::from(second.low.live < first.low.live);
            extremes.push(MergedExtremes { high, low });
            let pair = [first, second];
            merged.push(TimelineBin {
                begin_ns: first.begin_ns,
                high: pair[high].high,
                low: pair[low].low,
                max_reserved: first.max_reserved.max(second.max_reserved),
                max_device: first.max_device.max(second.max_device),
                min_reserved: first.min_reserved.min(second.min_reserved),
                min_device: first.min_device.min(second.min_device),
                high_clock: pair[high].high_clock,
                low_clock: pair[low].low_clock,
            });
        }
        self.all = merged;
        self.update_end();
        extremes
    }
}

/// The bytes of one call site at the high (index 0) and the low (index 1) of each finished bin.
///
/// A trace may have very many call sites with few changes each, so consecutive bins with the same
/// bytes take the memory of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BinValues {
    /// The bin after the last one of a run, and the bytes in each of its bins.
    runs: Vec<(u32, [u64; 2])>,
}

impl BinValues {
    /// Number of finished bins.
    pub(crate) fn len(&self) -> usize {
        self.runs.last().map_or(0, |(end, _)| *end as usize)
    }

    /// Appends a bin with the bytes at its high and its low.
    pub(crate) fn push(&mut self, bytes: [u64; 2]) {
        self.push_run(1, bytes);
    }

    fn push_run(&mut self, bins: u32, bytes: [u64; 2]) {
        match self.runs.last_mut() {
            Some((end, last)) if *last == bytes => *end += bins,
            last => {
                let end = last.map_or(0, |(end, _)| *end);
                self.runs.push((end + bins, bytes));
            }
        }
    }

    /// The bytes in a bin.
    pub(crate) fn get(&self, bin: usize) -> Option<[u64; 2]> {
        let run = self.runs.partition_point(|(end, _)| *end as usize <= bin);
        self.runs.get(run).map(|(_, bytes)| *bytes)
    }

    /// The most bytes in any bin.
    pub(crate) fn max(&self) -> u64 {
        self.runs.iter().flat_map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    /// Merges the bins in pairs, as [`TimelineBins::halve`] merged those of the set.
    pub(crate) fn halve(&mut self, extremes: &[MergedExtremes]) {
        let mut merged = Self::default();
        let mut bin = 0;
        for (end, bytes) in &self.runs {
            // Pairs with the same bytes, whichever of them has the extreme.
            let pairs = end.saturating_sub(bin) / 2;
            if pairs > 0 {
                merged.push_run(pairs, *bytes);
                bin += 2 * pairs;
            }
            if bin < *end {
                let pair = [*bytes, self.get(bin as usize + 1).unwrap_or(*bytes)];
                let extreme = extremes.get(bin as usize / 2).unwrap_or(&MergedExtremes { high: 0, low: 0 });
                merged.push([pair[extreme.high][0], pair[extreme.low][1]]);
                bin += 2;
            }
        }
        *self = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_in_runs_equal_values_of_each_bin(
            bins in prop::collection::vec((0u64..3, 0u64..3), 0..40),
            sides in prop::collection::vec((0usize..2, 0usize..2), 20),
        ) {
            let mut each: Vec<[u64; 2]> = bins.into_iter().map(|(high, low)| [high, low]).collect();
            let extremes: Vec<MergedExtremes> =
                sides.into_iter().map(|(high, low)| MergedExtremes { high, low }).collect();
            let mut runs = BinValues::default();
            for bytes in &each {
                runs.push(*bytes);
            }
            for _ in 0..3 {
                prop_assert_eq!((runs.len(), runs.get(each.len())), (each.len(), None));
                prop_assert_eq!(runs.max(), each.iter().flatten().copied().max().unwrap_or(0));
                for (bin, bytes) in each.iter().enumerate() {
                    prop_assert_eq!(runs.get(bin), Some(*bytes));
                }
                runs.halve(&extremes);
                let merge = |(pair, extreme): (&[[u64; 2]], &MergedExtremes)| {
                    let pair = [pair[0], *pair.last().unwrap()];
                    [pair[extreme.high][0], pair[extreme.low][1]]
                };
                each = each.chunks(2).zip(&extremes).map(merge).collect();
            }
        }
    }
}
