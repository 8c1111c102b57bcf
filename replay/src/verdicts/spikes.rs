//! Verdicts on the course of a run: short spikes, and a steady rise outside recorded calls.
//!
//! Both use ranks only, because outliers would move a mean and a deviation: the usual level is the
//! 95th percentile over time, and a rise is one by Mann and Kendall.
//! `steps_of_any_noise_do_not_stand_out` checks the first on noise.

use super::VerdictDraft;
use crate::leak::statistics;
use crate::report::{ResidualSource, Severity, SiteBytes, VerdictEvidence};

/// The share of the time that is usual.
const USUAL: f64 = 0.95;
/// A spike is at least so many times the usual level, and higher by this share of the device.
const SPIKE: (f64, f64) = (1.5, 0.05);
/// Fewer bins do not define a usual level.
const MIN_BINS: usize = 40;
/// Fewer samples do not show a trend.
const MIN_SAMPLES: usize = 12;
/// The least rise: Kendall's tau, the largest p value, and the share of the device.
const RISE: (f64, f64, f64) = (0.6, 0.01, 0.01);
/// A spike to this share of the device is a warning.
const NEARLY_FULL: f64 = 0.8;

/// The index of the bin at the usual level, if the highest bin is a spike above it. `highs` are
/// maxima of bins of equal duration.
pub(super) fn usual_bin(highs: &[u64], capacity: u64) -> Option<usize> {
    let peak = *highs.iter().max()?;
    let mut order: Vec<usize> = (0..highs.len()).collect();
    order.sort_by_key(|bin| highs[*bin]);
    let rank = (highs.len() as f64 * USUAL).ceil() as usize;
    let usual = *order.get(rank.checked_sub(1)?)?;
    let more = peak - highs[usual];
    let is_spike = highs.len() >= MIN_BINS
        && peak as f64 >= SPIKE.0 * highs[usual] as f64
        && more as f64 >= SPIKE.1 * capacity as f64
        && capacity > 0;
    is_spike.then_some(usual)
}

/// The verdict on a spike: peak, its step, usual level, and the call sites that held more at the
/// peak.
pub(super) fn spike(
    (ordinal, capacity): (u8, u64),
    (peak_bytes, step, usual_bytes): (u64, Option<u64>, u64),
    more_by_site: Vec<SiteBytes>,
) -> VerdictDraft {
    let is_nearly_full = peak_bytes as f64 >= NEARLY_FULL * capacity as f64;
    let severity = if is_nearly_full { Severity::Warning } else { Severity::Info };
    let device = u32::from(ordinal);
    (severity, VerdictEvidence::TransientSpike { device, peak_bytes, usual_bytes, step, more_by_site })
}

/// The verdict on residuals in the order of the samples; `None` unless they rise.
pub(super) fn drift(
    (ordinal, capacity): (u8, u64),
    residuals: &[u64],
    source: ResidualSource,
) -> Option<VerdictDraft> {
    let (first_bytes, last_bytes) = (*residuals.first()?, *residuals.last()?);
    let statistics::TrendFit { trend, slope } = statistics::fit_trend(residuals);
    let (min_tau, max_p, min_share) = RISE;
    let rises = residuals.len() >= MIN_SAMPLES
        && trend.tau >= min_tau
        && trend.p <= max_p
        && last_bytes.saturating_sub(first_bytes) as f64 >= min_share * capacity as f64
        && slope.interval[0] > 0.0
        && capacity > 0;
    let evidence = VerdictEvidence::PersistentDrift {
        device: u32::from(ordinal),
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

    #[test]
    fn spike_is_reported_unless_it_lasts_or_bins_are_few() {
        let mut highs = vec![100; 200];
        highs[120..125].fill(400);
        assert_eq!(usual_bin(&highs, CAPACITY).map(|bin| highs[bin]), Some(100));
        highs[120..140].fill(400);
        assert_eq!(usual_bin(&highs, CAPACITY), None, "a tenth of the time is usual");
        assert_eq!(usual_bin(&[100, 400], CAPACITY), None, "too few to tell");
    }

    #[test]
    fn steady_growth_is_not_a_spike() {
        let ramp: Vec<u64> = (0..500).map(|bin| 10 * bin).collect();
        assert_eq!(usual_bin(&ramp, CAPACITY), None);
    }

    proptest! {
        #[test]
        fn steps_of_any_noise_do_not_stand_out(highs in prop::collection::vec(700u64..1000, 40..512)) {
            prop_assert_eq!(usual_bin(&highs, CAPACITY), None);
        }
    }

    #[test]
    fn drift_needs_a_steady_rise_over_enough_samples() {
        let rising: Vec<u64> = (0..40).map(|sample| 100 + 3 * sample + sample % 3).collect();
        assert!(drift((0, CAPACITY), &rising, ResidualSource::Recorder).is_some());
        let flat: Vec<u64> = (0..40).map(|sample| 100 + 20 * (sample % 7)).collect();
        assert!(drift((0, CAPACITY), &flat, ResidualSource::Nvml).is_none());
        let once: Vec<u64> = (0..40).map(|sample| if sample < 20 { 100 } else { 150 }).collect();
        assert!(drift((0, CAPACITY), &once, ResidualSource::Nvml).is_none(), "one more context is no drift");
        assert!(drift((0, CAPACITY), &rising[..8], ResidualSource::Nvml).is_none());
    }
}
