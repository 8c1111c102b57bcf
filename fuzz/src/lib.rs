//! What the fuzz targets do with their input.
//!
//! Checksums and compression would stop nearly every changed byte. So payloads are fuzzed on
//! their own, and whole files are built with correct checksums around the input
//! ([`files::valid_trace`], [`rings`]).
#![forbid(unsafe_code)]

use std::fmt::Debug;

pub mod files;
pub mod rings;
pub mod seeds;

/// Decodes the input; if that works, encoding and decoding the value must give it back.
pub fn round_trip<T: PartialEq + Debug, E: Debug>(
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

/// Takes numbers and slices off the front of the input; zeros and empty slices at its end.
pub struct FuzzInput<'a>(pub &'a [u8]);

impl<'a> FuzzInput<'a> {
    /// The next `len` bytes, or what is left of them.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A little-endian number of `len` bytes.
    pub fn number(&mut self, len: usize) -> u64 {
        self.take(len).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
