//! How evenly ranks use memory, with statistics that a few ranks cannot move.
//!
//! The modified z-score of a value is its distance from the median in units of 1.4826 times the
//! median absolute deviation, which is the standard deviation of a normal distribution. Boris
//! Iglewicz and David Hoaglin (How to Detect and Handle Outliers, 1993) call values beyond 3.5
//! outliers. Where most ranks are equal the deviation is 0, so an outlier must also be 5% away.

use schemars::JsonSchema;
use serde::Serialize;

const DEVIATIONS: f64 = 3.5;
const NORMAL: f64 = 1.4826;
const LEAST_SHARE: f64 = 0.05;

/// A quantity over all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Spread {
    /// The median, in bytes.
    pub median_bytes: u64,
    /// The median of the distances from it.
    pub median_deviation_bytes: u64,
    /// The least value, in bytes.
    pub least_bytes: u64,
    /// The largest value, in bytes.
    pub most_bytes: u64,
}

/// A rank that differs from the others.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outlier {
    /// Index in the summary's list of traces.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// Its value, in bytes.
    pub bytes: u64,
    /// Its value divided by the median, minus 1.
    pub excess: f64,
}

/// The median of sorted values; `None` without any.
pub(crate) fn median(sorted: &[u64]) -> Option<u64> {
    let lower = sorted.get((sorted.len().max(1) - 1) / 2)?;
    Some(lower.midpoint(*sorted.get(sorted.len() / 2)?))
}

impl Spread {
    /// The spread of values; `None` without any.
    pub(crate) fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let (least, most, middle) = (*values.first()?, *values.last()?, median(&values)?);
        let mut distances: Vec<u64> = values.iter().map(|value| value.abs_diff(middle)).collect();
        distances.sort_unstable();
        Some(Self {
            median_bytes: middle,
            median_deviation_bytes: median(&distances)?,
            least_bytes: least,
            most_bytes: most,
        })
    }

    /// By how much of the median a value differs, if it is an outlier.
    pub(crate) fn excess_of(&self, bytes: u64) -> Option<f64> {
        let distance = bytes.abs_diff(self.median_bytes) as f64;
        let deviation = self.median_deviation_bytes as f64 * NORMAL;
        let is_outlier =
            distance > DEVIATIONS * deviation && distance >= LEAST_SHARE * self.median_bytes as f64;
        is_outlier.then(|| bytes as f64 / self.median_bytes.max(1) as f64 - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_among_equal_ones_is_an_outlier_from_five_percent_on() {
        let spread = |last| Spread::of(vec![1000, 1000, 1000, 1000, last]).expect("values");
        assert_eq!(spread(1100).excess_of(1100).map(|excess| (excess * 100.0).round()), Some(10.0));
        assert_eq!(spread(1049).excess_of(1049), None);
        assert_eq!(spread(900).excess_of(900).map(|excess| (excess * 100.0).round()), Some(-10.0));
    }

    #[test]
    fn values_that_vary_widely_have_no_outlier_nearby() {
        let values: Vec<u64> = (0..100).map(|value| 1000 + 10 * value).collect();
        let spread = Spread::of(values).expect("values");
        assert_eq!((spread.median_bytes, spread.median_deviation_bytes), (1495, 250));
        // 3.5 x 1.4826 x 250 is 1,297.
        assert_eq!(spread.excess_of(1495 + 1297), None);
        assert!(spread.excess_of(1495 + 1298).is_some());
    }

    #[test]
    fn few_ranks_do_not_move_the_median() {
        let mut values = vec![100; 60];
        values.extend([u64::MAX; 40]);
        assert_eq!(Spread::of(values).expect("values").median_bytes, 100);
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
