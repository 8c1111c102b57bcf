//! Hash maps and sets with keys that come from the trace.
//!
//! Constraint: a hostile trace can choose keys that collide under a known hash function. 350 bytes
//! of a compressed trace once kept the reader busy for hours. Consequence: each map multiplies by
//! random numbers of its own, at the cost of one 128-bit multiplication per word. Iteration order
//! is therefore random: sort before showing anything. `crates/replay/tests/hostile.rs` analyses
//! each trace twice and compares the reports.
//!
//! Not foldhash: with its quality hasher, replay of the synthesized trace took 839 instructions per
//! event instead of 833 (`scripts/benchmarks/instructions`).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

/// A hash map with a random seed of its own.
pub(crate) type SeededMap<K, V> = HashMap<K, V, SeededState>;
/// A hash set with a random seed of its own.
pub(crate) type SeededSet<K> = HashSet<K, SeededState>;

/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The random seed of one map.
#[derive(Clone, Debug)]
pub struct SeededState {
    begin: u64,
    factor: u64,
}

impl Default for SeededState {
    fn default() -> Self {
        let random = RandomState::new();
        Self { begin: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl BuildHasher for SeededState {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        SeededHasher { hash: self.begin, factor: self.factor }
    }
}

/// For each word: multiplies to 128 bits and folds the product to 64.
#[derive(Debug)]
pub struct SeededHasher {
    hash: u64,
    factor: u64,
}

impl Hasher for SeededHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word) * u128::from(self.factor);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    /// Multiplies once more by a constant with bits throughout: some random factors spread
    /// neighbouring keys poorly.
    #[inline]
    fn finish(&self) -> u64 {
        let product = u128::from(self.hash) * u128::from(MIX);
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiples of this collide under rustc-hash: its product differs only in bits 8 and above,
    /// and its final rotation moves those out of the bucket index.
    const RUSTC_HASH_COLLIDING_STRIDE: u64 = 0x1494_a55d_aaed_0d00;

    #[test]
    fn keys_at_any_stride_spread_over_buckets() {
        let strides: [u64; 5] = [1, 512, 1 << 44, 1 << 20, RUSTC_HASH_COLLIDING_STRIDE];
        let cases = strides.into_iter().flat_map(|stride| [(0, stride), (u64::MAX, stride)]);
        // 100 random seeds for each case.
        for (first, stride) in cases.flat_map(|case| [case; 100]) {
            let seed = SeededState::default();
            let key = |number: u64| stride.wrapping_mul(number).wrapping_add(first);
            let buckets: HashSet<u64> = (0..4096).map(|number| seed.hash_one(key(number)) & 0xffff).collect();
            assert!(buckets.len() > 3000, "{stride:#x}: {}", buckets.len());
        }
    }

    #[test]
    fn byte_strings_of_different_lengths_hash_differently() {
        let seed = SeededState::default();
        let hashes: HashSet<u64> =
            (0..100).map(|len| seed.hash_one("\0".repeat(len))).chain([seed.hash_one("\0a")]).collect();
        assert_eq!(hashes.len(), 101);
    }
}
