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

/// Mann-Kendall's test, assuming that values are independent.
fn mann_kendall(values: &[u64]) -> Trend {
    let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
    let score = KendallScore::of_series(&values);
    Trend { tau: score.s / (values.len() * (values.len() - 1) / 2) as f64, p: score.p_value() }
}

#[test]
fn normal_upper_tail_matches_published_quantiles() {
    for (z, p) in [(0.0, 0.5), (1.644_854, 0.05), (1.959_964, 0.025), (3.090_232, 0.001), (4.753_424, 1e-6)] {
        assert!((normal_upper_tail(z) / p - 1.0).abs() < 2e-3, "{z}: {}", normal_upper_tail(z));
    }
    assert!((normal_upper_tail(-1.644_854) - 0.95).abs() < 1e-4);
}

#[test]
fn mann_kendall_matches_worked_example_of_gilbert() {
    // Gilbert (1987): 23 24 29 6 29 24 5 have S = -3. With two tied pairs the variance is
    // (7*6*19 - 2*18) / 18 = 42.33.
    let score = KendallScore::of_series(&[23.0, 24.0, 29.0, 6.0, 29.0, 24.0, 5.0]);
    assert_eq!(score.s as i64, -3);
    assert!((score.variance - 42.333).abs() < 1e-3);
    let line = mann_kendall(&[1, 2, 3, 4, 5]);
    assert!((line.tau - 1.0).abs() < 1e-12);
    // z = (10 - 1) / sqrt(16.67) = 2.2045
    assert!((line.p - 0.013_74).abs() < 1e-4, "{}", line.p);
}

#[test]
fn mann_kendall_on_independent_noise_passes_at_its_level() {
    let passed = (1..=2000).filter(|seed| mann_kendall(&scaled(&noise(*seed, 40))).p < 0.05).count();
    assert!((60..=140).contains(&passed), "{passed} of 2000 at 5%");
}

#[test]
fn correction_halves_false_trends_in_autocorrelated_noise() {
    let autocorrelated = |seed: u64| {
        let mut value = 0.0;
        let series = noise(seed, 100).into_iter().map(|new| {
            value = 0.8 * value + new - 0.5;
            value + 10.0
        });
        scaled(&series.collect::<Vec<_>>())
    };
    let plain = (1..=400).filter(|seed| mann_kendall(&autocorrelated(*seed)).p < 0.01).count();
    let corrected = (1..=400).filter(|seed| fit_trend(&autocorrelated(*seed)).trend.p < 0.01).count();
    assert!(plain > 60 && corrected * 2 < plain, "{plain} without, {corrected} with the correction");
}

#[test]
fn theil_sen_interval_covers_the_true_slope() {
    let mut inside = 0;
    for seed in 1..=400 {
        let series: Vec<f64> =
            noise(seed, 50).iter().zip(0..).map(|(n, at)| 3.0 * n + 0.1 * f64::from(at)).collect();
        let slope = fit_trend(&scaled(&series)).slope;
        let [least, most] = slope.interval;
        assert!(least <= slope.per_value && slope.per_value <= most);
        inside += usize::from((least..=most).contains(&1e5));
    }
    assert!(inside >= 360, "{inside} of 400 at 95%");
}

#[test]
fn exact_line_has_an_exact_slope_after_thinning() {
    let TrendFit { trend, slope } = fit_trend(&(0..5000).map(|k| 7 * k).collect::<Vec<_>>());
    assert!((trend.tau - 1.0).abs() < 1e-12 && trend.p < 1e-30);
    assert!((slope.per_value - 7.0).abs() < 1e-9);
    assert!(slope.interval.iter().all(|bound| (bound - 7.0).abs() < 1e-9));
}
proptest! {
    #[test]
#[test]
    fn kendall_s_matches_count_over_all_pairs(values in proptest::collection::vec(0u64..20, 0..60)) {
        let mut expected = 0i64;
        for (at, a) in values.iter().enumerate() {
            expected += values[at + 1..].iter().map(|b| i64::from(b > a) - i64::from(b < a)).sum::<i64>();
        }
        let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
        prop_assert_eq!(KendallScore::of_series(&values).s as i64, expected);
    }

    #[test]
    fn fit_trend_is_finite_and_ordered_for_any_values(values in proptest::collection::vec(any::<u64>(), 0..40)) {
        let TrendFit { trend, slope } = fit_trend(&values);
        prop_assert!((0.0..=1.0).contains(&trend.p) && (-1.0..=1.0).contains(&trend.tau));
        prop_assert!(slope.interval[0] <= slope.per_value && slope.per_value <= slope.interval[1]);
    }
}
