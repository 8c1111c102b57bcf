//! Numbers, byte by byte.
//!
//! Constraint: the first byte of a number says nothing of its second, and a packer that sees them mixed packs neither.
//! Consequence: LEB128, but all first bytes stand together, then all second bytes, and so on. How many there are of each, the high
//! bits of those before tell.

use crate::wire::{Cursor, WireError, put_varint};

/// Bytes that a number may have.
const PLANES: usize = 10;
const GOES_ON: u8 = 0x80;
/// Numbers that are put together at a time: a power of two.
const MOST_AT_A_TIME: usize = 128;
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

    /// The next numbers, in the place of what the column gave before: of one that is not there, zeros.
    #[inline]
    pub(super) fn fill(&mut self, values: &mut [u64]) -> Result<(), WireError> {
        let Self::Planes(planes) = self else { return Ok(()) };
        for values in values.chunks_mut(MOST_AT_A_TIME) {
            fill_from(planes, values)?;
        }
        Ok(())
    }
}

/// At most [`MOST_AT_A_TIME`] numbers. Plane by plane, with those that go on noted: there is nothing to guess wrong.
#[inline]
fn fill_from(planes: &mut [&[u8]; PLANES], values: &mut [u64]) -> Result<(), WireError> {
    let mut going_on = [0u8; MOST_AT_A_TIME];
    let mut count = 0;
    let firsts = take(&mut planes[0], values.len())?;
    let (eights, last_values) = values.as_chunks_mut::<8>();
    let (eights_of_bytes, last_bytes) = firsts.as_chunks::<8>();
    for (at, (eight, bytes)) in eights.iter_mut().zip(eights_of_bytes).enumerate() {
        *eight = bytes.map(|byte| u64::from(byte & !GOES_ON));
        let mut bits = u64::from_le_bytes(*bytes) & ALL_GO_ON;
        while bits != 0 {
            going_on[count & (MOST_AT_A_TIME - 1)] = (8 * at) as u8 + (bits.trailing_zeros() / 8) as u8;
            count += 1;
            bits &= bits - 1;
        }
    }
    for (at, (value, byte)) in last_values.iter_mut().zip(last_bytes).enumerate() {
        *value = u64::from(*byte & !GOES_ON);
        going_on[count & (MOST_AT_A_TIME - 1)] = (8 * eights_of_bytes.len() + at) as u8;
        count += usize::from(*byte >= GOES_ON);
    }
    for (plane, shift) in planes[1..].iter_mut().zip((7..).step_by(7)) {
        if count == 0 {
            break;
        }
        let bytes = take(plane, count)?;
        count = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let number = going_on[at & (MOST_AT_A_TIME - 1)];
            if let Some(value) = values.get_mut(usize::from(number)) {
                *value |= u64::from(*byte & !GOES_ON) << shift;
            }
            going_on[count & (MOST_AT_A_TIME - 1)] = number;
            count += usize::from(*byte >= GOES_ON);
        }
    }
    Ok(())
}

fn take<'a>(plane: &mut &'a [u8], len: usize) -> Result<&'a [u8], WireError> {
    let (these, rest) = plane.split_at_checked(len).ok_or(WireError::UnexpectedEnd)?;
    *plane = rest;
    Ok(these)
}

/// Bytes after which another follows.
fn count_going_on(bytes: &[u8]) -> usize {
    let (eights, rest) = bytes.as_chunks::<8>();
    let of_eight = |eight: &[u8; 8]| {
        // The eight highest bits, each in a byte of its own, summed up into the highest byte.
        let bits = (u64::from_le_bytes(*eight) & ALL_GO_ON) >> 7;
        (bits.wrapping_mul(0x0101_0101_0101_0101) >> 56) as usize
    };
    eights.iter().map(of_eight).sum::<usize>() + rest.iter().filter(|byte| **byte >= GOES_ON).count()
}
