//! Maps and sets whose keys a file chooses.
//!
//! Constraint: hostile keys can be chosen so that a known hash function puts all of them into one place: 350 bytes of a packed trace
//! kept the reader busy for hours. Consequence: a multiplication by numbers that are drawn anew for each map. What comes out of
//! a map in its own order must be sorted before it is shown (`replay/tests/hostile.rs` compares two readings of a trace).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map.
pub(crate) type SeededMap<K, V> = HashMap<K, V, SeededState>;
/// A set.
pub(crate) type SeededSet<K> = HashSet<K, SeededState>;

/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes the hashers of one map.
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

/// Multiplies to 128 bits and folds these in half, word by word.
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

    /// Once more, by a number with bits everywhere: some of the numbers that are drawn spread neighbours poorly.
    #[inline]
    fn finish(&self) -> u64 {
        let product = u128::from(self.hash) * u128::from(MIX);
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplied with what rustc-hash multiplies with, these differ in bits 8 and above alone, which it turns out of sight.
    const ONE_PLACE_FOR_ALL: u64 = 0x1494_a55d_aaed_0d00;

    #[test]
    fn keys_at_any_distance_are_spread() {
        let steps: [u64; 5] = [1, 512, 1 << 44, 1 << 20, ONE_PLACE_FOR_ALL];
        let begun = steps.into_iter().flat_map(|step| [(0, step), (u64::MAX, step)]);
        // Whatever is drawn.
        for (begin, step) in begun.flat_map(|one| [one; 100]) {
            let keys = SeededState::default();
            let key = |number: u64| step.wrapping_mul(number).wrapping_add(begin);
            let places: HashSet<u64> = (0..4096).map(|number| keys.hash_one(key(number)) & 0xffff).collect();
            assert!(places.len() > 3000, "{step:#x}: {}", places.len());
        }
    }

    #[test]
    fn texts_of_one_beginning_are_told_apart() {
        let keys = SeededState::default();
        let hashes: HashSet<u64> =
            (0..100).map(|len| keys.hash_one("\0".repeat(len))).chain([keys.hash_one("\0a")]).collect();
        assert_eq!(hashes.len(), 101);
    }
}
