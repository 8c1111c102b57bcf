//! Numbers, byte by byte.
//!
//! Constraint: the first byte of a number says nothing of its second, and a packer that sees them mixed packs neither.
//! Consequence: LEB128, but all first bytes stand together, then all second bytes, and so on. How many there are of each, the high
//! bits of those before tell.

use crate::wire::{Cursor, WireError, put_varint};

/// Bytes that a number may have.
const PLANES: usize = 10;
const GOES_ON: u8 = 0x80;
const ALL_GO_ON: u64 = 0x8080_8080_8080_8080;

/// A column that is being written.
#[derive(Default)]
pub(super) struct Planes {
    /// Numbers before the first that is not 0: most columns have no other.
    zeros: usize,
    by_place: [Vec<u8>; PLANES],
    rest: Vec<u64>,
}

impl Planes {
    #[inline]
    pub(super) fn put_all(&mut self, values: &[u64]) {
        let bits = values.iter().fold(0, |bits, value| bits | value);
        if bits == 0 && self.is_zero() {
            self.zeros += values.len();
            return;
        }
        if self.zeros > 0 {
            self.by_place[0].resize(self.zeros, 0);
            self.zeros = 0;
        }
        if bits < u64::from(GOES_ON) {
            self.by_place[0].extend(values.iter().map(|value| *value as u8));
            return;
        }
        self.rest.clear();
        self.rest.extend_from_slice(values);
        for plane in &mut self.by_place {
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

    /// True where every number is 0.
    pub(super) fn is_zero(&self) -> bool {
        self.by_place[0].is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.zeros = 0;
        self.by_place.iter_mut().for_each(Vec::clear);
    }

    /// The bytes of the column, and where in `out` each plane begins.
    pub(super) fn put_into(&self, out: &mut Vec<u8>, cuts: &mut Vec<usize>) {
        let mut count = Vec::new();
        put_varint(&mut count, self.by_place[0].len() as u64);
        let len = count.len() + self.by_place.iter().map(Vec::len).sum::<usize>();
        put_varint(out, len as u64);
        out.extend(count);
        for plane in self.by_place.iter().take_while(|plane| !plane.is_empty()) {
            cuts.push(out.len());
            out.extend_from_slice(plane);
        }
    }
}

/// Rows that are decoded together.
pub(super) const CHUNK_ROWS: usize = 128;
/// The numbers of so many.
pub(super) type Chunk = [u64; CHUNK_ROWS];

/// A column that is being read.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    /// Not there: as many zeros as are asked for.
    Zeros,
    Planes([&'a [u8]; PLANES]),
}

impl<'a> Numbers<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        let mut len = cursor.count(1)?;
        let mut planes: [&[u8]; PLANES] = [&[]; PLANES];
        for plane in &mut planes {
            *plane = cursor.take(len)?;
            len = count_going_on(plane);
        }
        let fits = len == 0 && planes[PLANES - 1].iter().all(|byte| *byte <= 1);
        if !fits {
            return Err(WireError::Overlong);
        }
        if cursor.is_empty() { Ok(Self::Planes(planes)) } else { Err(WireError::Range) }
    }

    /// How many numbers are left, if that is known.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Zeros => None,
            Self::Planes(planes) => Some(planes[0].len()),
        }
    }

    /// True where nothing is left of it.
    pub(super) fn is_used_up(&self) -> bool {
        self.len().is_none_or(|len| len == 0)
    }

    /// The next `len` numbers, in the place of what the column gave before: of one that is not there, zeros.
    #[inline]
    pub(super) fn fill(&mut self, values: &mut Chunk, len: usize) -> Result<(), WireError> {
        match self {
            Self::Zeros => {
                values[..len].fill(0);
                Ok(())
            }
            Self::Planes(planes) => fill_from(planes, values, len),
        }
    }

    /// Passes over so many numbers if all of them are 0.
    #[inline]
    pub(super) fn zeros(&mut self, len: usize) -> bool {
        let Self::Planes(planes) = self else { return true };
        let Some((zeros, rest)) = planes[0].split_at_checked(len) else { return false };
        let are_zeros = all_bits(zeros) == 0;
        if are_zeros {
            planes[0] = rest;
        }
        are_zeros
    }
}

/// Plane by plane, and of each all bytes at once: there is nothing to guess wrong. Two planes make 14 bits before they are spread
/// over the numbers, eight at a time, because that is what costs most.
fn fill_from(planes: &mut [&[u8]; PLANES], values: &mut Chunk, len: usize) -> Result<(), WireError> {
    let mut bytes = [0; CHUNK_ROWS];
    bytes[..len].copy_from_slice(take(&mut planes[0], len)?);
    let eights = len.div_ceil(8);
    let (values, _) = values.as_chunks_mut::<8>();
    if all_bits(&bytes) < GOES_ON {
        for (eight, bytes) in values.iter_mut().zip(bytes.as_chunks::<8>().0).take(eights) {
            *eight = bytes.map(u64::from);
        }
        return Ok(());
    }
    let values = &mut values[..eights];
    let mut planes = planes[1..].iter_mut();
    for shift in (0..).step_by(14) {
        let mut pairs = bytes.map(|byte| u16::from(byte & !GOES_ON));
        if let Some(plane) = planes.next() {
            next_bytes(plane, &mut bytes, eights)?;
            for (pair, byte) in pairs.iter_mut().zip(&bytes) {
                *pair |= u16::from(byte & !GOES_ON) << 7;
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
        let Some(plane) = planes.next().filter(|_| all_bits(&bytes) >= GOES_ON) else { break };
        next_bytes(plane, &mut bytes, eights)?;
    }
    Ok(())
}

/// Puts in the place of each byte the one that follows it, or 0 where none does.
fn next_bytes(plane: &mut &[u8], bytes: &mut [u8; CHUNK_ROWS], eights: usize) -> Result<(), WireError> {
    for eight in bytes.as_chunks_mut::<8>().0.iter_mut().take(eights) {
        let going_on = u64::from_le_bytes(*eight) & ALL_GO_ON;
        if going_on == 0 {
            *eight = [0; 8];
            continue;
        }
        let following = plane
            .first_chunk()
            .copied()
            .unwrap_or_else(|| std::array::from_fn(|at| plane.get(at).copied().unwrap_or(0)));
        if going_on == ALL_GO_ON {
            *eight = following;
            take(plane, 8)?;
            continue;
        }
        let mut at = 0;
        for byte in eight {
            let goes_on = *byte >> 7;
            *byte = following[at & 7] & goes_on.wrapping_neg();
            at += usize::from(goes_on);
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

/// Bytes after which another follows. Some at a time, so that a byte holds how many there are.
fn count_going_on(bytes: &[u8]) -> usize {
    bytes
        .chunks(usize::from(u8::MAX))
        .map(|some| usize::from(some.iter().map(|byte| byte >> 7).sum::<u8>()))
        .sum()
}
