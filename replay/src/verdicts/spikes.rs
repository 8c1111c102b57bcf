//! What stands out of a run's course: a moment that is like no other, and memory that nobody asked for and that rises.
//!
//! Constraint: a mean and a deviation are moved by what they are to judge. Consequence: ranks alone: what was held 95 % of the
//! time is what is usual, and a rise is one by Mann and Kendall.

use serde_json::json;

use super::VerdictDraft;
use crate::leak::statistics;
use crate::report::Severity;
use crate::report::display::format_bytes;

/// Share of the time that is usual.
const USUAL: f64 = 0.95;
/// A moment stands out from this many times what is usual on, if it is also this share of the device more.
const STANDS_OUT: (f64, f64) = (1.5, 0.05);
/// Fewer parts of the run say nothing of what is usual.
const FEWEST_PARTS: usize = 40;
/// Fewer samples say nothing of a trend.
const FEWEST_SAMPLES: usize = 12;
/// A rise is one from here on: Kendall's tau, chance, share of the device.
const RISES: (f64, f64, f64) = (0.6, 0.01, 0.01);

/// The part of the run whose highest moment is the highest of 95 % of them, if the highest of all stands out from it.
/// `highs` are of parts of equal length.
pub(super) fn usual_part(highs: &[u64], capacity: u64) -> Option<usize> {
    let peak = *highs.iter().max()?;
    let mut order: Vec<usize> = (0..highs.len()).collect();
    order.sort_by_key(|part| highs[*part]);
    let rank = (highs.len() as f64 * USUAL).ceil() as usize;
    let usual = *order.get(rank.checked_sub(1)?)?;
    let more = peak - highs[usual];
    let stands_out = highs.len() >= FEWEST_PARTS
        && peak as f64 >= STANDS_OUT.0 * highs[usual] as f64
        && more as f64 >= STANDS_OUT.1 * capacity as f64
        && capacity > 0;
    stands_out.then_some(usual)
}

/// A moment that stands out: the device, most bytes and in which step, usual bytes, and by whom they were more.
pub(super) fn spike(
    (ordinal, capacity): (u8, u64),
    (peak, step, usual): (u64, Option<u64>, u64),
    sites: &[(String, u64)],
) -> VerdictDraft {
    let when = step.map(|step| format!(" (step {step})")).unwrap_or_default();
    let whose = match sites.first() {
        Some((place, bytes)) => format!("; {place} held {} more then", format_bytes(*bytes)),
        None => String::new(),
    };
    let summary = format!(
        "tensors on device {ordinal} took {} once{when}, and no more than {} for 95 % of the run{whose}",
        format_bytes(peak),
        format_bytes(usual)
    );
    // What is nearly full only once is what to look at first.
    let is_full = peak as f64 >= 0.8 * capacity as f64;
    let sites: Vec<_> =
        sites.iter().map(|(place, bytes)| json!({ "place": place, "bytes": bytes })).collect();
    let evidence = json!({
        "device": ordinal, "peak_bytes": peak, "usual_bytes": usual, "step": step, "more_by_site": sites,
    });
    let severity = if is_full { Severity::Warning } else { Severity::Info };
    VerdictDraft { kind: "transient_spike", severity, summary, evidence }
}

/// What is in use and in no call, in the order of the samples.
pub(super) fn drift(
    (ordinal, capacity): (u8, u64),
    residuals: &[u64],
    witness: &str,
) -> Option<VerdictDraft> {
    let (first, last) = (*residuals.first()?, *residuals.last()?);
    let statistics::TrendFit { trend, slope } = statistics::fit_trend(residuals);
    let (tau, p, share) = RISES;
    let rises = residuals.len() >= FEWEST_SAMPLES
        && trend.tau >= tau
        && trend.p <= p
        && last.saturating_sub(first) as f64 >= share * capacity as f64
        && slope.interval[0] > 0.0
        && capacity > 0;
    let whose = if witness == "nvml" { "" } else { ", in this process or in others on the device" };
    let summary = format!(
        "memory of device {ordinal} that no recorded call shows rose from {} to {}{whose}",
        format_bytes(first),
        format_bytes(last)
    );
    let evidence = json!({
        "device": ordinal, "first_bytes": first, "last_bytes": last, "samples": residuals.len(), "tau": trend.tau,
        "p_value": trend.p, "witness": witness,
    });
    rises.then_some(VerdictDraft { kind: "persistent_drift", severity: Severity::Warning, summary, evidence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: u64 = 1000;

    #[test]
    fn what_was_held_once_stands_out_from_what_is_usual() {
        let mut highs = vec![100; 200];
        highs[120..125].fill(400);
        assert_eq!(usual_part(&highs, CAPACITY).map(|part| highs[part]), Some(100));
        highs[120..140].fill(400);
        assert_eq!(usual_part(&highs, CAPACITY), None, "a tenth of the time is usual");
        assert_eq!(usual_part(&[100, 400], CAPACITY), None, "too few to tell");
    }

    #[test]
    fn what_grows_to_the_end_does_not_stand_out() {
        let ramp: Vec<u64> = (0..500).map(|part| 10 * part).collect();
        assert_eq!(usual_part(&ramp, CAPACITY), None);
    }

    proptest! {
        #[test]
        fn steps_of_any_noise_do_not_stand_out(highs in prop::collection::vec(700u64..1000, 40..512)) {
            prop_assert_eq!(usual_part(&highs, CAPACITY), None);
        }
    }

    #[test]
    fn a_rise_that_no_call_shows_is_told() {
        let rising: Vec<u64> = (0..40).map(|sample| 100 + 3 * sample + sample % 3).collect();
        let finding = drift((0, CAPACITY), &rising, "driver").unwrap();
        assert!(finding.summary.contains("in others on the device"));
        let flat: Vec<u64> = (0..40).map(|sample| 100 + 20 * (sample % 7)).collect();
        assert!(drift((0, CAPACITY), &flat, "nvml").is_none());
        let once: Vec<u64> = (0..40).map(|sample| if sample < 20 { 100 } else { 150 }).collect();
        assert!(drift((0, CAPACITY), &once, "nvml").is_none(), "a context more is no drift");
        assert!(drift((0, CAPACITY), &rising[..8], "nvml").is_none());
    }
}
