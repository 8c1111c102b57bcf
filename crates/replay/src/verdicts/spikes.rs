//! Verdicts on the course of a run: short spikes, and a steady rise outside recorded calls.
//!
//! Both use ranks only, because outliers would move a mean and a deviation: the usual level is the
//! 95th percentile over time, and a rise is one by Mann and Kendall.
//! `steps_of_any_noise_do_not_stand_out` checks the first on noise.

use super::{DeviceCapacity, VerdictDraft};
use crate::leak::statistics;
use crate::report::{ResidualSource, Severity, SiteBytes, VerdictEvidence};

/// The share of the time that is usual.
const USUAL: f64 = 0.95;
/// A spike is at least this multiple of the usual level, and higher by this share of the device.
const SPIKE: (f64, f64) = (1.5, 0.05);
/// Fewer bins do not define a usual level.
const MIN_BINS: usize = 40;
/// Fewer samples do not show a trend.
const MIN_SAMPLES: usize = 12;
/// The least rise: Kendall's tau, the largest p value, and the share of the device.
const RISE: (f64, f64, f64) = (0.6, 0.01, 0.01);
/// A spike to this share of the device is a warning.
const NEARLY_FULL: f64 = 0.8;

/// The highest memory in a part of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct BinLevel {
    pub(super) high_bytes: u64,
    pub(super) duration_ns: u64,
}

/// The index of the bin at the usual level, if the highest bin is a spike above it.
pub(super) fn usual_bin(bins: &[BinLevel], capacity: u64) -> Option<usize> {
    let peak = bins.iter().map(|bin| bin.high_bytes).max()?;
    let mut order: Vec<usize> = (0..bins.len()).collect();
    order.sort_by_key(|bin| bins[*bin].high_bytes);
    let duration = |bin: usize| u128::from(bins[bin].duration_ns.max(1));
    let usual_ns = order.iter().map(|bin| duration(*bin)).sum::<u128>() as f64 * USUAL;
    let mut passed_ns = 0;
    let usual = order.into_iter().find(|bin| {
        passed_ns += duration(*bin);
        passed_ns as f64 >= usual_ns
    })?;
    let usual_bytes = bins[usual].high_bytes;
    let more = peak - usual_bytes;
    let is_spike = bins.len() >= MIN_BINS
        && peak as f64 >= SPIKE.0 * usual_bytes as f64
        && more as f64 >= SPIKE.1 * capacity as f64
        && capacity > 0;
    is_spike.then_some(usual)
}

/// A spike and the level that is usual.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpikeLevels {
    pub(super) peak_bytes: u64,
    /// The step of the peak; `None` if the run has no steps.
    pub(super) step: Option<u64>,
    pub(super) usual_bytes: u64,
}

/// The verdict on a spike. `more_by_site` are the call sites that held more at the peak.
pub(super) fn spike(
    capacity: DeviceCapacity,
    levels: SpikeLevels,
    more_by_site: Vec<SiteBytes>,
) -> VerdictDraft {
    let SpikeLevels { peak_bytes, step, usual_bytes } = levels;
    let is_nearly_full = peak_bytes as f64 >= NEARLY_FULL * capacity.bytes as f64;
    let severity = if is_nearly_full { Severity::Warning } else { Severity::Info };
    let device = u32::from(capacity.ordinal);
    (severity, VerdictEvidence::TransientSpike { device, peak_bytes, usual_bytes, step, more_by_site })
}

/// The verdict on residuals in the order of the samples; `None` unless they rise.
pub(super) fn drift(
    capacity: DeviceCapacity,
    residuals: &[u64],
    source: ResidualSource,
) -> Option<VerdictDraft> {
    let (first_bytes, last_bytes) = (*residuals.first()?, *residuals.last()?);
    let statistics::TrendFit { trend, slope } = statistics::fit_trend(residuals);
    let (min_tau, max_p, min_share) = RISE;
    let rises = residuals.len() >= MIN_SAMPLES
        && trend.tau >= min_tau
        && trend.p <= max_p
        && last_bytes.saturating_sub(first_bytes) as f64 >= min_share * capacity.bytes as f64
        && slope.interval[0] > 0.0
        && capacity.bytes > 0;
    let evidence = VerdictEvidence::PersistentDrift {
        device: u32::from(capacity.ordinal),
        first_bytes,
        last_bytes,
        samples: residuals.len(),
        tau: trend.tau,
        p_value: trend.p,
        source,
    };
    rises.then_some((Severity::Warning, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: u64 = 1000;
    const DEVICE: DeviceCapacity = DeviceCapacity { ordinal: 0, bytes: CAPACITY };

    fn levels(highs: &[u64]) -> Vec<BinLevel> {
        highs.iter().map(|high| BinLevel { high_bytes: *high, duration_ns: 1 }).collect()
    }

    fn usual_of(highs: &[u64]) -> Option<usize> {
        usual_bin(&levels(highs), CAPACITY)
    }

    #[test]
    fn spike_is_reported_unless_it_lasts_or_bins_are_few() {
        let mut highs = vec![100; 200];
        highs[120..125].fill(400);
        assert_eq!(usual_of(&highs).map(|bin| highs[bin]), Some(100));
        highs[120..140].fill(400);
        assert_eq!(usual_of(&highs), None, "a tenth of the time is usual");
        assert_eq!(usual_of(&[100, 400]), None, "too few to tell");
    }

    #[test]
    fn usual_level_is_one_of_time_and_not_of_bins() {
        let mut bins = levels(&[100; 200]);
        for bin in &mut bins[120..125] {
            *bin = BinLevel { high_bytes: 400, duration_ns: 10 };
        }
        assert_eq!(usual_bin(&bins, CAPACITY), None, "a fifth of the time in few bins");
        for bin in &mut bins[20..125] {
            bin.high_bytes = 400;
            bin.duration_ns = 1;
        }
        bins[0].duration_ns = 10_000;
        assert!(usual_bin(&bins, CAPACITY).is_some(), "half of the bins in a moment");
    }

    #[test]
    fn steady_growth_is_not_a_spike() {
        let ramp: Vec<u64> = (0..500).map(|bin| 10 * bin).collect();
        assert_eq!(usual_of(&ramp), None);
    }

    proptest! {
        #[test]
        fn steps_of_any_noise_do_not_stand_out(highs in prop::collection::vec(700u64..1000, 40..512)) {
            prop_assert_eq!(usual_of(&highs), None);
        }
    }

    #[test]
    fn drift_needs_a_steady_rise_over_enough_samples() {
        let rising: Vec<u64> = (0..40).map(|sample| 100 + 3 * sample + sample % 3).collect();
        assert!(drift(DEVICE, &rising, ResidualSource::Recorder).is_some());
        let flat: Vec<u64> = (0..40).map(|sample| 100 + 20 * (sample % 7)).collect();
        assert!(drift(DEVICE, &flat, ResidualSource::Nvml).is_none());
        let once: Vec<u64> = (0..40).map(|sample| if sample < 20 { 100 } else { 150 }).collect();
        assert!(drift(DEVICE, &once, ResidualSource::Nvml).is_none(), "one more context is no drift");
        assert!(drift(DEVICE, &rising[..8], ResidualSource::Nvml).is_none());
    }
}
