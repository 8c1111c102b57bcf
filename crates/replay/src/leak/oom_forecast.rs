//! Forecasts the step in which the device will be full.
//!
//! *Headroom* is the capacity of the device minus the residual (contexts and code, which no
//! recorded call shows) minus the peak of driver memory. PyTorch's cache at its own peak
//! (reserved minus allocated) may serve the leak, or may be in pieces too small for it. The lower
//! bound of the headroom counts none of the cache, the upper bound all, the expected value half.
//! Without PyTorch's allocator, the upper bound takes the peak of driver memory after the first
//! step: a framework may take its share of the device once, to free it into a pool that then serves
//! the leak.
//! All leaks of a device grow together; the bounds of their rates are those of the Theil-Sen
//! slope.
//!
//! Reserved bytes may grow faster than allocated ones, since segments have fixed sizes and holes
//! between pinned blocks fit no request. *Overhead* is the Theil-Sen slope of reserved bytes over
//! that of allocated bytes, in the last two thirds of the run. It is used if both grew by at
//! least [`FEW_SEGMENTS`] segments there. Above 1, it multiplies the rate of the leak, none of the
//! cache is counted, and the earliest step comes sooner. How later blocks will be placed is
//! unknown, so both bounds lie another [`MARGIN`] further out.
//!
//! `tests/leaks/accuracy.rs` forecasts generated runs at 30, 50 and 70% of the way to a full
//! device: `docs/accuracy.md` has the share of intervals that contain the true step.

use crate::device::DeviceState;
use crate::leak::rate::GrowthRate;
use crate::leak::statistics::fit_trend;
use crate::pass::Analysis;
use crate::report::OomForecast;

/// Growth by fewer segments does not show how blocks fill them
/// (`segment_overhead_counts_where_it_was_measured_over_enough_segments`).
const FEW_SEGMENTS: u64 = 4;
/// PyTorch's `kSmallSize`: the largest block of the small pool.
const SMALL_BYTES: u64 = 1 << 20;
/// Segment sizes of the small pool (`kSmallBuffer`) and the large pool (`kLargeBuffer`), in bytes.
const SEGMENT_BYTES: [u64; 2] = [2 << 20, 20 << 20];
/// Share by which both bounds are widened. Without it, fewer than 95% of the intervals contain
/// the true step (`tests/leaks/accuracy.rs`).
const MARGIN: f64 = 0.15;
/// Highest overhead that is believed. Without overhead, more than 2% of the forecasts are off by
/// more than a tenth (`tests/leaks/accuracy.rs`).
const MAX_OVERHEAD: f64 = 3.0;

/// Bytes that a leak can take before the device is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Headroom {
    least_bytes: f64,
    most_bytes: f64,
    overhead: SegmentOverhead,
}

/// How much faster reserved bytes grow than allocated ones.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SegmentOverhead {
    /// Reserved bytes per allocated byte, from 1 to [`MAX_OVERHEAD`].
    reserved_per_allocated: f64,
    /// What allocated and reserved bytes both grew by at least while it was measured.
    measured_over_bytes: u64,
}

/// Steps until the device is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepsUntilFull {
    pub(crate) expected: u64,
    pub(crate) earliest: u64,
    /// `None` if the leak may not grow at all.
    pub(crate) latest: Option<u64>,
}

impl Headroom {
    /// `None` if the capacity of the device is unknown, or only one stream is analysed: other
    /// streams share the device.
    pub(crate) fn of_device(analysis: &Analysis, ordinal: u8, device: &DeviceState) -> Option<Self> {
        if analysis.stream.is_some() {
            return None;
        }
        let capacity = analysis.capacity(ordinal)?;
        let residual = device.attribution.nearest().and_then(|sample| sample.residual()).unwrap_or(0);
        let reserved = device.reserved_peak.reserved;
        let used = reserved.max(device.driver_peak.bytes()).saturating_add(residual);
        let reusable = if device.has_torch() {
            reserved.saturating_sub(device.torch.peak().live)
        } else {
            device.driver_peak.bytes().saturating_sub(device.driver_peak.recurring_bytes())
        };
        let least_bytes = capacity.saturating_sub(used) as f64;
        let most_bytes = least_bytes + reusable as f64;
        Some(Self { least_bytes, most_bytes, overhead: SegmentOverhead::measure(device) })
    }

    /// The headroom for a leak of blocks of this size. Their pool decides if the overhead is known.
    pub(crate) fn for_block_size(self, bytes: u64) -> Self {
        let segment_bytes = SEGMENT_BYTES[usize::from(bytes > SMALL_BYTES)];
        let is_known = self.overhead.measured_over_bytes >= FEW_SEGMENTS * segment_bytes;
        let reserved_per_allocated = if is_known { self.overhead.reserved_per_allocated } else { 1.0 };
        Self { overhead: SegmentOverhead { reserved_per_allocated, ..self.overhead }, ..self }
    }

    /// Steps until the headroom is used up at this rate in bytes per step. `None` unless the
    /// expected rate is positive.
    pub(crate) fn steps_until_full(self, rate: GrowthRate) -> Option<StepsUntilFull> {
        let Self { least_bytes, most_bytes, overhead } = self;
        let overhead = overhead.reserved_per_allocated;
        let latest = (rate.least > 0.0).then(|| (most_bytes * (1.0 + MARGIN) / rate.least) as u64);
        let expected_bytes =
            if overhead > 1.0 { least_bytes / overhead } else { least_bytes.midpoint(most_bytes) };
        let earliest = (least_bytes * (1.0 - MARGIN) / overhead / rate.most.max(rate.expected)) as u64;
        let expected = (expected_bytes / rate.expected) as u64;
        (rate.expected > 0.0).then_some(StepsUntilFull { expected, earliest, latest })
    }

    /// The same as step numbers, counted from the last step that ended.
    pub(crate) fn forecast(self, rate: GrowthRate, last_step: u64) -> Option<OomForecast> {
        let StepsUntilFull { expected, earliest, latest } = self.steps_until_full(rate)?;
        let at = |steps: u64| last_step.saturating_add(1).saturating_add(steps);
        Some(OomForecast { expected: at(expected), earliest: at(earliest), latest: latest.map(at) })
    }
}

impl SegmentOverhead {
    /// Measures the last two thirds of the run.
    fn measure(device: &DeviceState) -> Self {
        let steps = device.torch.steps_ended();
        let (stride, before, allocated) = device.torch.series().values_from(device.torch.first_step, steps);
        let skipped = allocated.len() / 3;
        let allocated: Vec<u64> = allocated.iter().skip(skipped).map(|held| held.bytes).collect();
        let unused = device.unused.unused();
        let unused_at = |index: usize| unused.at((before + skipped + index) as u32 * stride).bytes;
        let reserved: Vec<u64> = allocated
            .iter()
            .zip(0..)
            .map(|(allocated, index)| allocated.saturating_add(unused_at(index)))
            .collect();
        let growth = |values: &[u64]| match (values.first(), values.last()) {
            (Some(first), Some(last)) => last.saturating_sub(*first),
            _ => 0,
        };
        let slope = |values: &[u64]| fit_trend(values).slope.per_value;
        let measured_over_bytes = growth(&allocated).min(growth(&reserved));
        let is_measured = measured_over_bytes >= FEW_SEGMENTS * SEGMENT_BYTES[0];
        let ratio = if is_measured { slope(&reserved) / slope(&allocated) } else { 1.0 };
        let reserved_per_allocated = if ratio.is_finite() { ratio.clamp(1.0, MAX_OVERHEAD) } else { 1.0 };
        Self { reserved_per_allocated, measured_over_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(expected: f64, least: f64, most: f64) -> GrowthRate {
        GrowthRate { expected, least, most }
    }

    fn steps(expected: u64, earliest: u64, latest: Option<u64>) -> StepsUntilFull {
        StepsUntilFull { expected, earliest, latest }
    }

    #[test]
    fn forecast_bounds_lie_around_the_expected_step() {
        let overhead = SegmentOverhead { reserved_per_allocated: 1.0, measured_over_bytes: 40 << 20 };
        let headroom = Headroom { least_bytes: 1000.0, most_bytes: 2000.0, overhead };
        let exact = rate(100.0, 100.0, 100.0);
        assert_eq!(headroom.steps_until_full(exact), Some(steps(15, 8, Some(23))));
        assert_eq!(headroom.steps_until_full(rate(100.0, 50.0, 200.0)), Some(steps(15, 4, Some(46))));
        assert_eq!(headroom.steps_until_full(rate(100.0, -1.0, 200.0)), Some(steps(15, 4, None)));
        assert_eq!(headroom.steps_until_full(GrowthRate::default()), None);
        let step = headroom.forecast(exact, 9).unwrap();
        assert_eq!((step.expected, step.earliest, step.latest), (25, 18, Some(33)));
    }

    #[test]
    fn segment_overhead_counts_where_it_was_measured_over_enough_segments() {
        let overhead = SegmentOverhead { reserved_per_allocated: 2.0, measured_over_bytes: 40 << 20 };
        let headroom = Headroom { least_bytes: 1000.0, most_bytes: 2000.0, overhead };
        let exact = rate(100.0, 100.0, 100.0);
        // 40 MiB are two segments of the large pool and twenty of the small one.
        assert_eq!(headroom.for_block_size(2 << 20).steps_until_full(exact), Some(steps(15, 8, Some(23))));
        assert_eq!(headroom.for_block_size(512).steps_until_full(exact), Some(steps(5, 4, Some(23))));
    }
}
