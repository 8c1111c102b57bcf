//! Varints, deltas and length-prefixed bytes.
//!
//! A varint is LEB128: seven bits a byte, lowest first, the high bit set in every byte but the
//! last, at most 10 bytes. A signed number is first folded (zigzag): 0, -1, 1, -2 become 0, 1, 2,
//! 3.
//!
//! The input may be damaged or hostile: [`Cursor`] never reads past its slice, never allocates, and
//! checks every length against the bytes that are left.

use thiserror::Error;

/// The bit that says "another byte follows", in each of eight bytes.
const CONTINUATION_BITS: u64 = 0x8080_8080_8080_8080;

/// Why a payload does not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The data ends inside a value.
    #[error("data ends inside a value")]
    UnexpectedEnd,
    /// A varint has more than 64 bits.
    #[error("a number has more than 64 bits")]
    Overlong,
    /// A length or count exceeds a limit of the format or the data that follows.
    #[error("a length is larger than the data that follows or than the format's limit")]
    Limit,
    /// Text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
    /// A value is outside its documented range.
    #[error("a value is outside its range")]
    Range,
}

/// Appends a LEB128 varint of at most 10 bytes.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the folded difference `value - previous`. It wraps, so any two values have one.
pub fn put_delta(out: &mut Vec<u8>, previous: u64, value: u64) {
    put_varint(out, zigzag(value.wrapping_sub(previous) as i64));
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Folds a signed number so that a small magnitude becomes a small number.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Decodes what [`zigzag`] encodes.
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Undoes the folding of [`put_delta`].
#[inline]
pub(crate) fn add_delta(previous: u64, folded: u64) -> u64 {
    previous.wrapping_add(unzigzag(folded) as u64)
}

/// Splits off the varint at the start of `bytes`. One byte is the common case. A varint of two to
/// eight bytes is read at once: the first clear high bit gives its length, then three masks close
/// the gaps between groups of 7, 14 and 28 bits.
#[inline(always)]
#[allow(clippy::inline_always)] // For `Cursor::varint`.
fn split_varint(bytes: &[u8]) -> Result<(u64, &[u8]), WireError> {
    if let [first @ 0..0x80, rest @ ..] = bytes {
        return Ok((u64::from(*first), rest));
    }
    let Some(eight) = bytes.first_chunk::<8>() else { return split_varint_by_bytes(bytes) };
    let word = u64::from_le_bytes(*eight);
    let ends = !word & CONTINUATION_BITS;
    if ends == 0 {
        return split_varint_by_bytes(bytes);
    }
    // All bits up to and with the lowest clear high bit.
    let within = ends ^ (ends - 1);
    let value = word & within & !CONTINUATION_BITS;
    let value = (value & 0x7f00_7f00_7f00_7f00) >> 1 | value & 0x007f_007f_007f_007f;
    let value = (value & 0x3fff_0000_3fff_0000) >> 2 | value & 0x0000_3fff_0000_3fff;
    let value = (value & 0x0fff_ffff_0000_0000) >> 4 | value & 0x0fff_ffff;
    Ok((value, &bytes[ends.trailing_zeros() as usize / 8 + 1..]))
}

#[cold]
fn split_varint_by_bytes(bytes: &[u8]) -> Result<(u64, &[u8]), WireError> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        if at == 9 && *byte > 1 {
            return Err(WireError::Overlong);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((value, &bytes[at + 1..]));
        }
    }
    Err(if bytes.len() < 10 { WireError::UnexpectedEnd } else { WireError::Overlong })
}

/// A bounded reader over a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        let (&first, rest) = self.rest.split_first().ok_or(WireError::UnexpectedEnd)?;
        self.rest = rest;
        Ok(first)
    }

    // A cursor stays in registers only if nothing takes its address.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let (value, rest) = split_varint(self.rest)?;
        self.rest = rest;
        Ok(value)
    }

    /// A varint that must fit 32 bits.
    #[inline]
    pub(crate) fn varint_u32(&mut self) -> Result<u32, WireError> {
        u32::try_from(self.varint()?).map_err(|_| WireError::Range)
    }

    /// A value that is stored as its difference from `previous`.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As for `varint`.
    pub(crate) fn delta(&mut self, previous: u64) -> Result<u64, WireError> {
        Ok(add_delta(previous, self.varint()?))
    }

    /// A count of items that take at least `min_bytes_each` (1 or more) bytes each. A count that
    /// the remaining bytes cannot hold is an error, so callers may allocate for it.
    pub(crate) fn count(&mut self, min_bytes_each: usize) -> Result<usize, WireError> {
        let count = usize::try_from(self.varint()?).map_err(|_| WireError::Limit)?;
        if count > self.rest.len() / min_bytes_each.max(1) {
            return Err(WireError::Limit);
        }
        Ok(count)
    }

    /// The next `len` bytes; an error if fewer are left.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        if len > self.rest.len() {
            return Err(WireError::UnexpectedEnd);
        }
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    /// A length and that many bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.count(1)?;
        self.take(len)
    }

    /// A length and that many bytes of UTF-8.
    pub(crate) fn text(&mut self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::NotUtf8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_and_deltas_round_trip(value: u64, previous: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_delta(&mut out, previous, value);
            let mut cursor = Cursor::new(&out);
            prop_assert_eq!(cursor.varint(), Ok(value));
            prop_assert_eq!(cursor.delta(previous), Ok(value));
            prop_assert!(cursor.is_empty());
        }

        #[test]
        fn varints_of_every_length_round_trip_before_any_number_of_bytes(
            value: u64, bits in 0u32..64, after in proptest::collection::vec(any::<u8>(), 0..12),
        ) {
            let value = value >> bits;
            let mut out = Vec::new();
            put_varint(&mut out, value);
            out.extend(&after);
            let mut cursor = Cursor::new(&out);
            prop_assert_eq!(cursor.varint(), Ok(value));
            prop_assert_eq!(cursor.remaining(), after.len());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let mut cursor = Cursor::new(&bytes);
            while cursor.varint().is_ok() {}
            let mut cursor = Cursor::new(&bytes);
            while cursor.text().is_ok() && !cursor.is_empty() {}
        }
    }

    #[test]
    fn varint_with_eleventh_byte_or_65th_bit_is_refused() {
        assert_eq!(Cursor::new(&[0xff; 11]).varint(), Err(WireError::Overlong));
        let mut max = Vec::new();
        put_varint(&mut max, u64::MAX);
        assert_eq!(max.len(), 10);
        max[9] = 2;
        assert_eq!(Cursor::new(&max).varint(), Err(WireError::Overlong));
    }

    #[test]
    fn count_is_limited_by_remaining_bytes() {
        assert_eq!(Cursor::new(&[200, 1, 0, 0]).count(1), Err(WireError::Limit));
        assert_eq!(Cursor::new(&[2, 0, 0]).count(1), Ok(2));
        assert_eq!(Cursor::new(&[2, 0, 0]).count(2), Err(WireError::Limit));
    }
}
