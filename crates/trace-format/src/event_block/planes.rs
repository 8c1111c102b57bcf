//! Columns of numbers in planes, one plane for each byte position.
//!
//! The first byte of a number says nothing about its second, and a packer that sees them mixed
//! packs neither. So all first bytes of the LEB128 numbers are stored together, then all second
//! bytes, and so on. The high bits of one plane give the length of the next.

use crate::wire::{Cursor, WireError, put_varint};

/// Bytes of the longest number.
const PLANES: usize = 10;
const CONTINUES: u8 = 0x80;
const ALL_CONTINUE: u64 = 0x8080_8080_8080_8080;

/// A column that is being written.
#[derive(Default)]
pub(super) struct PlaneWriter {
    /// Zeros before the first other number: most columns are all zeros.
    leading_zeros: usize,
    planes: [Vec<u8>; PLANES],
    rest: Vec<u64>,
}

impl PlaneWriter {
    #[inline]
    pub(super) fn put_all(&mut self, values: &[u64]) {
        let bits = values.iter().fold(0, |bits, value| bits | value);
        if bits == 0 && self.is_zero() {
            self.leading_zeros += values.len();
            return;
        }
        if self.leading_zeros > 0 {
            self.planes[0].resize(self.leading_zeros, 0);
            self.leading_zeros = 0;
        }
        if bits < u64::from(CONTINUES) {
            self.planes[0].extend(values.iter().map(|value| *value as u8));
            return;
        }
        self.rest.clear();
        self.rest.extend_from_slice(values);
        for plane in &mut self.planes {
            let first = |value: &u64| *value as u8 & 0x7f | u8::from(*value >= 0x80) << 7;
            plane.extend(self.rest.iter().map(first));
            let mut len = 0;
            for at in 0..self.rest.len() {
                let value = self.rest[at];
                self.rest[len] = value >> 7;
                len += usize::from(value >= 0x80);
            }
            self.rest.truncate(len);
            if len == 0 {
                break;
            }
        }
    }

    /// True if every number is 0.
    pub(super) fn is_zero(&self) -> bool {
        self.planes[0].is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.leading_zeros = 0;
        self.planes.iter_mut().for_each(Vec::clear);
    }

    /// Appends the column to `out`, and the offset of each plane in `out` to `split_offsets`.
    pub(super) fn append_to(&self, out: &mut Vec<u8>, split_offsets: &mut Vec<usize>) {
        let mut count = Vec::new();
        put_varint(&mut count, self.planes[0].len() as u64);
        let len = count.len() + self.planes.iter().map(Vec::len).sum::<usize>();
        put_varint(out, len as u64);
        out.extend(count);
        for plane in self.planes.iter().take_while(|plane| !plane.is_empty()) {
            split_offsets.push(out.len());
            out.extend_from_slice(plane);
        }
    }
}

/// Rows that are decoded together.
pub(super) const BATCH_ROWS: usize = 256;
/// The numbers of one column in those rows.
pub(super) type NumberBatch = [u64; BATCH_ROWS];

/// A column that is being read.
#[derive(Clone, Copy)]
pub(super) enum NumberColumn<'a> {
    /// The column is missing: any number of zeros.
    Missing,
    Planes([&'a [u8]; PLANES]),
}

impl<'a> NumberColumn<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        let mut len = cursor.count(1)?;
        let mut planes: [&[u8]; PLANES] = [&[]; PLANES];
        for plane in &mut planes {
            *plane = cursor.take(len)?;
            len = count_continuing(plane);
        }
        let fits = len == 0 && planes[PLANES - 1].iter().all(|byte| *byte <= 1);
        if !fits {
            return Err(WireError::Overlong);
        }
        if cursor.is_empty() { Ok(Self::Planes(planes)) } else { Err(WireError::Range) }
    }

    /// How many numbers are left; `None` for a missing column.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Missing => None,
            Self::Planes(planes) => Some(planes[0].len()),
        }
    }

    /// True if no number is left.
    pub(super) fn is_used_up(&self) -> bool {
        self.len().is_none_or(|len| len == 0)
    }

    /// Reads the next `len` numbers into the start of `values`.
    #[inline]
    pub(super) fn fill(&mut self, values: &mut NumberBatch, len: usize) -> Result<(), WireError> {
        match self {
            Self::Missing => {
                values[..len].fill(0);
                Ok(())
            }
            Self::Planes(planes) => fill_from(planes, values, len),
        }
    }

    /// Skips the next `len` numbers if all of them are 0, and returns whether it did.
    #[inline]
    pub(super) fn skip_zeros(&mut self, len: usize) -> bool {
        let Self::Planes(planes) = self else { return true };
        let Some((zeros, rest)) = planes[0].split_at_checked(len) else { return false };
        let are_zeros = all_bits(zeros) == 0;
        if are_zeros {
            planes[0] = rest;
        }
        are_zeros
    }
}

/// Reads plane by plane and all bytes of a plane at once, so that no branch is mispredicted. Two
/// planes are joined to 14 bits before they are spread over the numbers, eight at a time: spreading
/// costs most.
fn fill_from(planes: &mut [&[u8]; PLANES], values: &mut NumberBatch, len: usize) -> Result<(), WireError> {
    let mut bytes = [0; BATCH_ROWS];
    bytes[..len].copy_from_slice(take(&mut planes[0], len)?);
    let eights = len.div_ceil(8);
    let (values, _) = values.as_chunks_mut::<8>();
    if all_bits(&bytes) < CONTINUES {
        for (eight, bytes) in values.iter_mut().zip(bytes.as_chunks::<8>().0).take(eights) {
            *eight = bytes.map(u64::from);
        }
        return Ok(());
    }
    let values = &mut values[..eights];
    let mut planes = planes[1..].iter_mut();
    for shift in (0..).step_by(14) {
        let mut pairs = bytes.map(|byte| u16::from(byte & !CONTINUES));
        if let Some(plane) = planes.next() {
            next_bytes(plane, &mut bytes, eights)?;
            for (pair, byte) in pairs.iter_mut().zip(&bytes) {
                *pair |= u16::from(byte & !CONTINUES) << 7;
            }
        }
        for (eight, pairs) in values.iter_mut().zip(pairs.as_chunks::<8>().0) {
            if shift == 0 {
                *eight = pairs.map(u64::from);
            } else {
                let bits = pairs.map(|pair| u64::from(pair) << shift);
                *eight = std::array::from_fn(|at| eight[at] | bits[at]);
            }
        }
        let Some(plane) = planes.next().filter(|_| all_bits(&bytes) >= CONTINUES) else { break };
        next_bytes(plane, &mut bytes, eights)?;
    }
    Ok(())
}

/// Replaces each byte by the next byte of its number, or by 0 if there is none.
fn next_bytes(plane: &mut &[u8], bytes: &mut [u8; BATCH_ROWS], eights: usize) -> Result<(), WireError> {
    for eight in bytes.as_chunks_mut::<8>().0.iter_mut().take(eights) {
        let continuing = u64::from_le_bytes(*eight) & ALL_CONTINUE;
        if continuing == 0 {
            *eight = [0; 8];
            continue;
        }
        let following = plane
            .first_chunk()
            .copied()
            .unwrap_or_else(|| std::array::from_fn(|at| plane.get(at).copied().unwrap_or(0)));
        if continuing == ALL_CONTINUE {
            *eight = following;
            take(plane, 8)?;
            continue;
        }
        let mut at = 0;
        for byte in eight {
            let continues = *byte >> 7;
            *byte = following[at & 7] & continues.wrapping_neg();
            at += usize::from(continues);
        }
        take(plane, at)?;
    }
    Ok(())
}

fn all_bits(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |all, byte| all | byte)
}

fn take<'a>(plane: &mut &'a [u8], len: usize) -> Result<&'a [u8], WireError> {
    let (these, rest) = plane.split_at_checked(len).ok_or(WireError::UnexpectedEnd)?;
    *plane = rest;
    Ok(these)
}

/// Number of bytes that another byte follows. Counts in slices of 255, so that a byte holds each
/// count.
fn count_continuing(bytes: &[u8]) -> usize {
    bytes
        .chunks(usize::from(u8::MAX))
        .map(|some| usize::from(some.iter().map(|byte| byte >> 7).sum::<u8>()))
        .sum()
}
