use super::*;

fn find_growth(values: &[u64]) -> Option<Growth> {
    judge_series(values).growth()
}

/// Grows by `per_step` in every step.
fn stairs(steps: u64, per_step: u64) -> Vec<u64> {
    (1..=steps).map(|k| k * per_step).collect()
}

#[test]
fn constant_growth_is_found_from_five_step_ends_on() {
    for steps in 5..200 {
        let growth = find_growth(&stairs(steps, 512)).unwrap();
        assert_eq!((growth.period, growth.per_value, growth.base), (Some(1), 512.0, 0), "{steps}");
    }
    assert_eq!(find_growth(&stairs(4, 512)), None);
}

#[test]
fn growth_after_warm_up_starts_at_its_first_growth_step() {
    let mut values = vec![900, 100, 100, 100];
    values.extend(stairs(20, 7).iter().map(|v| v + 100));
    let growth = find_growth(&values).unwrap();
    assert_eq!((growth.base, growth.first, growth.per_value), (3, 4, 7.0));
}

#[test]
fn growth_every_fourth_step_has_period_four() {
    let values: Vec<u64> = (0..60).map(|k| 1000 + k / 4 * 44).collect();
    let growth = find_growth(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(4), 11.0));
}

#[test]
fn periodic_leak_has_its_exact_period_from_six_repetitions_on() {
    for period in 2..=40u64 {
        for steps in [5 * period + 3, 7 * period, 7 * period + period / 2, 12 * period + 1] {
            for (start, blocks) in [(0, 1), (period / 2, 1), (period - 1, 3)] {
                let values: Vec<u64> =
                    (0..steps).map(|k| 4 + (k + period - start) / period * blocks).collect();
                let growth = find_growth(&values);
                // A leak that begins during warm-up may have one repetition fewer after it.
                let Some(growth) = growth else {
                    assert!(steps < 6 * period, "a leak every {period} steps in {steps} is missed");
                    continue;
                };
                assert_eq!(
                    (growth.period, growth.per_value),
                    (Some(period as usize), blocks as f64 / period as f64),
                    "every {period} in {steps} from {start}"
                );
            }
        }
    }
}

#[test]
fn inexact_period_must_have_the_rate_of_the_series() {
    // One block a step and ten more every twelfth: 11 of 12 differences follow period 1, at half
    // the rate.
    let values: Vec<u64> = (0..120).map(|k| k + (k + 3) / 12 * 10).collect();
    let growth = find_growth(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(12), 22.0 / 12.0));
    // The same with bursts at irregular steps: only the times have a period, and the rate is the
    // mean.
    let bursts = [5, 19, 24, 40, 47, 62, 70, 83, 99, 104, 118];
    let values: Vec<u64> =
        (0..120).map(|k| k + bursts.iter().filter(|at| **at <= k).count() as u64 * 10).collect();
    let growth = find_growth(&values).unwrap();
    assert_eq!((growth.period, growth.is_exact), (Some(1), false));
    assert!((growth.per_value - 229.0 / 119.0).abs() < 0.2, "{}", growth.per_value);
    // A single disturbance changes neither period nor rate.
    let values: Vec<u64> = (0..120).map(|k| k / 10 + u64::from(k > 77) * 40).collect();
    let growth = find_growth(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(10), 0.1));
    // Nor do four, which are a tenth of the changes: the rate is that of the series.
    let at = [47, 133, 218, 342];
    let values: Vec<u64> =
        (0..400).map(|k| k / 10 + at.iter().filter(|at| **at <= k).count() as u64).collect();
    assert_eq!(find_growth(&values).map(|growth| (growth.period, growth.per_value)), Some((Some(10), 0.1)));
}

#[test]
fn two_leaks_of_one_site_have_their_common_period() {
    let values: Vec<u64> = (0..80).map(|k| k * 10 + k / 4 * 1000).collect();
    let growth = find_growth(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(4), 260.0));
}

#[test]
fn saturating_series_are_silent() {
    let cache: Vec<u64> = (0..100).map(|k: u64| k.min(40) * 64).collect();
    assert_eq!(find_growth(&cache), None);
    let exponential: Vec<u64> =
        (0..200).map(|k| (1e6 * (1.0 - (-f64::from(k) / 40.0).exp())) as u64).collect();
    assert_eq!(find_growth(&exponential), None);
    let ratchet: Vec<u64> = (1..300).map(|k| (1e6 * f64::from(k).ln()) as u64).collect();
    assert_eq!(find_growth(&ratchet), None);
}

#[test]
fn warm_up_and_optimizer_state_are_silent() {
    let mut values = vec![100, 300, 300];
    values.resize(50, 300);
    assert_eq!(find_growth(&values), None);
    assert_eq!(find_growth(&[0, 89, 89, 89, 89, 89]), None);
    assert_eq!(find_growth(&[5, 5, 5, 5, 5]), None);
}

#[test]
fn sawtooth_that_was_reset_once_is_silent_at_its_top() {
    let values: Vec<u64> = (0..300).map(|k| k % 100 * 512).collect();
    assert_eq!(find_growth(&values), None);
}

#[test]
fn growth_of_varying_sizes_has_its_mean_rate() {
    let mut value = 0;
    let values: Vec<u64> = (0..100u64)
        .map(|k| {
            value += 1000 + k.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 500;
            value
        })
        .collect();
    let growth = find_growth(&values).unwrap();
    // The times of growth have a period, its amounts have none.
    assert_eq!((growth.period, growth.is_exact), (Some(1), false));
    assert!((1000.0..1500.0).contains(&growth.per_value));
}

#[test]
fn growth_that_speeds_up_accelerates() {
    let values: Vec<u64> = (0..60).map(|k: u64| k * k * 100).collect();
    assert!(find_growth(&values).is_some() && accelerates(&values));
    assert!(!accelerates(&stairs(60, 5)));
}

#[test]
fn rare_steps_that_are_never_undone_came_too_few_times() {
    for values in [staircase(80, 20, 11), staircase(60, 14, 5)] {
        let GrowthJudgement::Settled(settled) = judge_series(&values) else { panic!("{values:?}") };
        assert_eq!((settled.rule, settled.growth_steps, settled.goes_on), (GrowthRule::TooEarly, 4, true));
    }
}

/// Rises by 5 every `period` values, at first at `start`.
fn staircase(count: u64, period: u64, start: u64) -> Vec<u64> {
    (0..count).map(|at| if at < start { 0 } else { 5 * ((at - start) / period + 1) }).collect()
}
