//! Random numbers that are the same on every machine (SplitMix64).

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `limit - 1`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// A number from `least` to `most`, both included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// A number from `least` to `most`, evenly distributed on a logarithmic scale.
    pub fn log(&mut self, least: u64, most: u64) -> u64 {
        let most = most.max(least);
        let share = self.next() as f64 / u64::MAX as f64;
        let value = (least as f64).ln() + share * ((most as f64).ln() - (least as f64).ln());
        (value.exp().round() as u64).clamp(least, most)
    }

    /// True with a probability of `1 / times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
