use super::*;
use proptest::prelude::*;

fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn scaled(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| (value * 1e6) as u64).collect()
}

#[test]
fn the_normal_tail_is_that_of_the_tables() {
    for (z, p) in [(0.0, 0.5), (1.644_854, 0.05), (1.959_964, 0.025), (3.090_232, 0.001), (4.753_424, 1e-6)] {
        assert!((upper_tail(z) / p - 1.0).abs() < 2e-3, "{z}: {}", upper_tail(z));
    }
    assert!((upper_tail(-1.644_854) - 0.95).abs() < 1e-4);
}

#[test]
fn a_worked_example_of_mann_kendall_has_its_numbers() {
    // Gilbert (1987): 23 24 29 6 29 24 5: S = -3; with two pairs of ties the variance is (7*6*19 - 2*18) / 18 = 42.33.
    let (balance, variance) = kendall(&[23.0, 24.0, 29.0, 6.0, 29.0, 24.0, 5.0]);
    assert_eq!(balance as i64, -3);
    assert!((variance - 42.333).abs() < 1e-3);
    let plain = trend(&[1, 2, 3, 4, 5]);
    assert!((plain.tau - 1.0).abs() < 1e-12);
    // z = (10 - 1) / sqrt(16.67) = 2.2045
    assert!((plain.p - 0.013_74).abs() < 1e-4, "{}", plain.p);
}

#[test]
fn independent_noise_passes_as_often_as_the_level_says() {
    let passed = (1..=2000).filter(|seed| trend(&scaled(&noise(*seed, 40))).p < 0.05).count();
    assert!((60..=140).contains(&passed), "{passed} of 2000 at 5 %");
}

#[test]
fn noise_that_follows_itself_is_not_taken_for_a_trend_as_often_with_the_correction() {
    let follow = |seed: u64| {
        let mut value = 0.0;
        let series = noise(seed, 100).into_iter().map(|new| {
            value = 0.8 * value + new - 0.5;
            value + 10.0
        });
        scaled(&series.collect::<Vec<_>>())
    };
    let plain = (1..=400).filter(|seed| trend(&follow(*seed)).p < 0.01).count();
    let corrected = (1..=400).filter(|seed| corrected(&follow(*seed)).0.p < 0.01).count();
    assert!(plain > 60 && corrected * 2 < plain, "{plain} without, {corrected} with the correction");
}

#[test]
fn the_slope_lies_in_its_interval_as_often_as_it_says() {
    let mut inside = 0;
    for seed in 1..=400 {
        let series: Vec<f64> =
            noise(seed, 50).iter().zip(0..).map(|(n, at)| 3.0 * n + 0.1 * f64::from(at)).collect();
        let (_, slope) = corrected(&scaled(&series));
        let [least, most] = slope.interval;
        assert!(least <= slope.per_value && slope.per_value <= most);
        inside += usize::from((least..=most).contains(&1e5));
    }
    assert!(inside >= 360, "{inside} of 400 at 95 %");
}

#[test]
fn an_exact_line_has_no_doubt_and_long_series_are_thinned() {
    let (trend, slope) = corrected(&(0..5000).map(|k| 7 * k).collect::<Vec<_>>());
    assert!((trend.tau - 1.0).abs() < 1e-12 && trend.p < 1e-30);
    assert!((slope.per_value - 7.0).abs() < 1e-9);
    assert!(slope.interval.iter().all(|bound| (bound - 7.0).abs() < 1e-9));
}

#[test]
fn rates_of_false_discovery_are_those_of_the_method() {
    // Benjamini and Hochberg (1995), table 1: the four smallest of fifteen pass at 0.05.
    let chances = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
        0.6528, 0.7590, 1.0,
    ];
    let rates = false_discovery_rates(&chances);
    assert_eq!(rates.iter().filter(|rate| **rate <= 0.05).count(), 4);
    assert!((rates[0] - 0.0015).abs() < 1e-9 && (rates[3] - 0.035_625).abs() < 1e-9);
    assert!(false_discovery_rates(&[]).is_empty());
}

proptest! {
    #[test]
    fn counting_while_sorting_counts_every_pair(values in proptest::collection::vec(0u64..20, 0..60)) {
        let mut expected = 0i64;
        for (at, a) in values.iter().enumerate() {
            expected += values[at + 1..].iter().map(|b| i64::from(b > a) - i64::from(b < a)).sum::<i64>();
        }
        let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
        prop_assert_eq!(kendall(&values).0 as i64, expected);
    }

    #[test]
    fn whatever_the_values_the_statistics_are_numbers(values in proptest::collection::vec(any::<u64>(), 0..40)) {
        let (trend, slope) = corrected(&values);
        prop_assert!((0.0..=1.0).contains(&trend.p) && (-1.0..=1.0).contains(&trend.tau));
        prop_assert!(slope.interval[0] <= slope.per_value && slope.per_value <= slope.interval[1]);
    }
}
