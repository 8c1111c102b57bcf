//! How fast a finding grows: an expected rate and its bounds.

/// Growth per step (bytes, unless a caller says otherwise).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GrowthRate {
    pub(crate) expected: f64,
    /// Lower bound, at most `expected`. May be negative where the series is noisy.
    pub(crate) least: f64,
    /// Upper bound, at least `expected`.
    pub(crate) most: f64,
}

impl GrowthRate {
    /// A rate with its interval, which is widened where it does not contain the rate.
    pub(crate) fn with_interval(expected: f64, [least, most]: [f64; 2]) -> Self {
        Self { expected, least: least.min(expected), most: most.max(expected) }
    }

    pub(crate) fn divided_by(self, divisor: f64) -> Self {
        Self { expected: self.expected / divisor, least: self.least / divisor, most: self.most / divisor }
    }
}

/// Rates of findings that grow at the same time. The bounds are added too, as if all erred
/// together.
impl std::ops::AddAssign for GrowthRate {
    fn add_assign(&mut self, other: Self) {
        self.expected += other.expected;
        self.least += other.least;
        self.most += other.most;
    }
}
