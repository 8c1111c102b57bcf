//! How evenly ranks use memory, and which ranks differ from the others: the one rule for reports,
//! pages and questions in SQL (`python/gpumemtrace/sql/questions/rank_skew.sql`).
//!
//! The modified z-score of a value is its distance from the median in units of 1.4826 times the
//! median absolute deviation, which is the standard deviation of a normal distribution. Boris
//! Iglewicz and David Hoaglin (How to Detect and Handle Outliers, 1993) call values beyond 3.5
//! outliers. Where most ranks are equal the deviation is 0, so an outlier must also be 5% away.
//!
//! The median of an even number of values is the lower middle one, which some rank really has. The
//! deviation is the upper one: where half of the ranks have more, such as one of two stages of a
//! pipeline, none differs from the others. Of two ranks, the larger differs from the other one.

use schemars::JsonSchema;
use serde::Serialize;

const DEVIATIONS: f64 = 3.5;
const NORMAL: f64 = 1.4826;
const LEAST_SHARE: f64 = 0.05;

/// A quantity over all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Spread {
    /// The number of values.
    pub count: u64,
    /// The median, in bytes; of an even number, the lower middle value.
    pub median_bytes: u64,
    /// The median of the distances from it; of an even number, the upper middle value.
    pub median_deviation_bytes: u64,
    /// The least value, in bytes.
    pub least_bytes: u64,
    /// The largest value, in bytes.
    pub most_bytes: u64,
}

/// The median of sorted values, of an even number the lower middle one; `None` without any.
#[must_use]
pub fn lower_median(sorted: &[u64]) -> Option<u64> {
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

impl Spread {
    /// The spread of values; `None` without any.
    #[must_use]
    pub fn from_values(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let (least, most, middle) = (*values.first()?, *values.last()?, lower_median(&values)?);
        let mut distances: Vec<u64> = values.iter().map(|value| value.abs_diff(middle)).collect();
        distances.sort_unstable();
        Some(Self {
            count: values.len() as u64,
            median_bytes: middle,
            median_deviation_bytes: distances[values.len() / 2],
            least_bytes: least,
            most_bytes: most,
        })
    }

    /// The value divided by the median, minus 1.
    #[must_use]
    pub fn excess(&self, bytes: u64) -> f64 {
        bytes as f64 / self.median_bytes.max(1) as f64 - 1.0
    }

    /// True if a value of these differs from the others.
    #[must_use]
    pub fn is_outlier(&self, bytes: u64) -> bool {
        let distance = bytes.abs_diff(self.median_bytes) as f64;
        let deviation = if self.count == 2 { 0.0 } else { self.median_deviation_bytes as f64 * NORMAL };
        distance > DEVIATIONS * deviation && distance >= LEAST_SHARE * self.median_bytes as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_among_equal_ones_is_an_outlier_from_five_percent_on() {
        let spread = |last| Spread::from_values(vec![1000, 1000, 1000, 1000, last]).expect("values");
        for (last, differs, percent) in [(1100, true, 10.0), (1049, false, 5.0), (900, true, -10.0)] {
            let spread = spread(last);
            assert_eq!((spread.is_outlier(last), (spread.excess(last) * 100.0).round()), (differs, percent));
        }
        assert!(!spread(1100).is_outlier(1000));
    }

    #[test]
    fn values_that_vary_widely_have_no_outlier_nearby() {
        let values: Vec<u64> = (0..100).map(|value| 1000 + 10 * value).collect();
        let spread = Spread::from_values(values).expect("values");
        assert_eq!((spread.median_bytes, spread.median_deviation_bytes), (1490, 250));
        // 3.5 x 1.4826 x 250 is 1,297.
        assert!(!spread.is_outlier(1490 + 1297) && spread.is_outlier(1490 + 1298));
    }

    #[test]
    fn of_two_ranks_the_larger_differs_and_of_two_halves_none() {
        let spread = |values: &[u64]| Spread::from_values(values.to_vec()).expect("values");
        let two = spread(&[12, 8]);
        assert_eq!((two.median_bytes, two.is_outlier(12), two.is_outlier(8)), (8, true, false));
        let halves = spread(&[8, 12, 12, 8]);
        assert_eq!((halves.median_bytes, halves.is_outlier(12)), (8, false), "no GPU had 10");
        assert!(spread(&[8, 8, 12, 8, 8]).is_outlier(12));
        assert!(!spread(&[7]).is_outlier(7) && !spread(&[0, 0, 0]).is_outlier(0));
    }

    #[test]
    fn few_ranks_do_not_move_the_median() {
        let mut values = vec![100; 60];
        values.extend([u64::MAX; 40]);
        assert_eq!(Spread::from_values(values).expect("values").median_bytes, 100);
        assert_eq!(Spread::from_values(Vec::new()), None);
    }
}
