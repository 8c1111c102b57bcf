//! What the fuzzers do with their bytes.
//!
//! Constraint: checksums and packing would stop nearly every changed byte at the door. Consequence: payloads are decoded on
//! their own, and whole files are made sound around whatever the fuzzer wants in them ([`files::sound_file`], [`rings`]).
#![forbid(unsafe_code)]

use std::fmt::Debug;

pub mod files;
pub mod rings;
pub mod seeds;

#[path = "../../replay/tests/synthetic/mod.rs"]
mod synthetic;

/// Decodes; what comes out must come out again after it was encoded.
pub fn again<T: PartialEq + Debug, E: Debug>(
    bytes: &[u8],
    decode: fn(&[u8]) -> Result<T, E>,
    encode: fn(&T) -> Vec<u8>,
) {
    if let Ok(value) = decode(bytes) {
        let encoded = encode(&value);
        match decode(&encoded) {
            Ok(second) => assert_eq!(value, second),
            Err(error) => panic!("{error:?}: {value:?}"),
        }
    }
}

/// Takes numbers and pieces off the front; zeros and nothing when there is no more.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// So many bytes, or what is left.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number of so many bytes.
    pub fn number(&mut self, len: usize) -> u64 {
        self.take(len).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
