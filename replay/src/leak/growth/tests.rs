use super::*;

fn judged(values: &[u64]) -> Option<Growth> {
    judge(values, SurvivorEvidence::KEPT).growth()
}

fn stairs(steps: u64, per_step: u64) -> Vec<u64> {
    (1..=steps).map(|k| k * per_step).collect()
}

#[test]
fn plain_stairs_are_found_from_five_steps_with_their_exact_growth() {
    for steps in 5..200 {
        let growth = judged(&stairs(steps, 512)).unwrap();
        assert_eq!((growth.period, growth.per_value, growth.base), (Some(1), 512.0, 0), "{steps}");
    }
    assert_eq!(judged(&stairs(4, 512)), None);
}

#[test]
fn stairs_after_a_warm_up_begin_where_they_begin() {
    let mut values = vec![900, 100, 100, 100];
    values.extend(stairs(20, 7).iter().map(|v| v + 100));
    let growth = judged(&values).unwrap();
    assert_eq!((growth.base, growth.first, growth.per_value), (3, 4, 7.0));
}

#[test]
fn growth_every_fourth_step_has_period_four() {
    let values: Vec<u64> = (0..60).map(|k| 1000 + k / 4 * 44).collect();
    let growth = judged(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(4), 11.0));
}

#[test]
fn a_leak_every_so_many_steps_has_its_exact_period_from_five_repetitions_on() {
    for period in 2..=40u64 {
        for steps in [5 * period + 3, 7 * period, 7 * period + period / 2, 12 * period + 1] {
            for (start, blocks) in [(0, 1), (period / 2, 1), (period - 1, 3)] {
                let values: Vec<u64> =
                    (0..steps).map(|k| 4 + (k + period - start) / period * blocks).collect();
                let growth = judged(&values);
                // What began before the warm-up was over may have one repetition less to show.
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
fn a_period_that_only_most_steps_follow_must_have_the_rate_of_the_values() {
    // One block a step and ten more every twelfth: period 1 is followed by 11 of 12, at half the rate.
    let values: Vec<u64> = (0..120).map(|k| k + (k + 3) / 12 * 10).collect();
    let growth = judged(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(12), 22.0 / 12.0));
    // The same with bursts that come when they like: no period, and the rate is what came in all.
    let bursts = [5, 19, 24, 40, 47, 62, 70, 83, 99, 104, 118];
    let values: Vec<u64> =
        (0..120).map(|k| k + bursts.iter().filter(|at| **at <= k).count() as u64 * 10).collect();
    let growth = judged(&values).unwrap();
    assert_eq!(growth.period, None);
    assert!((growth.per_value - 229.0 / 119.0).abs() < 0.2, "{}", growth.per_value);
    // A single disturbance is not the leak's: its period and rate stay.
    let values: Vec<u64> = (0..120).map(|k| k / 10 + u64::from(k > 77) * 40).collect();
    let growth = judged(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(10), 0.1));
}

#[test]
fn a_pattern_of_two_leaks_is_one_period() {
    let values: Vec<u64> = (0..80).map(|k| k * 10 + k / 4 * 1000).collect();
    let growth = judged(&values).unwrap();
    assert_eq!((growth.period, growth.per_value), (Some(4), 260.0));
}

#[test]
fn what_saturates_is_silent() {
    let cache: Vec<u64> = (0..100).map(|k: u64| k.min(40) * 64).collect();
    assert_eq!(judged(&cache), None);
    let exponential: Vec<u64> =
        (0..200).map(|k| (1e6 * (1.0 - (-f64::from(k) / 40.0).exp())) as u64).collect();
    assert_eq!(judged(&exponential), None);
    let ratchet: Vec<u64> = (1..300).map(|k| (1e6 * f64::from(k).ln()) as u64).collect();
    assert_eq!(judged(&ratchet), None);
}

#[test]
fn warm_up_and_optimizer_state_are_silent() {
    let mut values = vec![100, 300, 300];
    values.resize(50, 300);
    assert_eq!(judged(&values), None);
    assert_eq!(judged(&[0, 89, 89, 89, 89, 89]), None);
    assert_eq!(judged(&[5, 5, 5, 5, 5]), None);
}

#[test]
fn a_saw_tooth_that_was_reset_once_is_silent_even_at_its_top() {
    let values: Vec<u64> = (0..300).map(|k| k % 100 * 512).collect();
    assert_eq!(judged(&values), None);
}

#[test]
fn growth_of_varying_sizes_is_found_with_its_mean() {
    let mut value = 0;
    let values: Vec<u64> = (0..100u64)
        .map(|k| {
            value += 1000 + k.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 500;
            value
        })
        .collect();
    let growth = judged(&values).unwrap();
    assert_eq!(growth.period, None);
    assert!((1000.0..1500.0).contains(&growth.per_value));
}

#[test]
fn growth_that_speeds_up_is_told() {
    let values: Vec<u64> = (0..60).map(|k: u64| k * k * 100).collect();
    assert!(judged(&values).unwrap().accelerates);
    assert!(!judged(&stairs(60, 5)).unwrap().accelerates);
}
