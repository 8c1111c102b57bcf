//! The hash of block addresses.

use std::hash::Hasher;

/// Hashes block addresses; their low nine bits are 0.
#[derive(Debug, Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing. The rotation spreads the bits: the table uses both ends of the hash.
        self.0 = (self.0 ^ value >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
