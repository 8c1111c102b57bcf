//! A ring file, read: what a process left.
//!
//! Constraint: the process may have been killed at any instruction, and any bit of the file may have flipped since. Consequence:
//! what a check does not vouch for is counted and left out; what is there twice (how far a ring is written into the trace, the
//! counters) is compared, and of two the one is taken that loses nothing.

use thiserror::Error;

use super::check::{end_of, unseal};
use super::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT, RING_MAGIC,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, RING_VERSION, Record, RecordDecoder,
    Shape, TRACE_BYTES_AT, header_crc, ring_bytes,
};
use crate::event::{NO_SEQ, RECORD_BYTES, RECORD_WORDS, ThreadId};
use crate::meta::{Counter, Counters, EndReason};

/// Why a ring file cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// Too short, wrong magic or damaged header.
    #[error("is not a gpumemtrace ring file, or its header is damaged")]
    NotARing,
    /// Made by another version.
    #[error("has ring version {0}, which this version does not know")]
    Version(u32),
    /// Its header claims more than any recorder makes.
    #[error("would be {0} bytes long by its header, more than any recorder makes")]
    TooLarge(u64),
}

/// Largest ring file that is read, in bytes. Recorders make them of about 50 MiB.
pub const MAX_RING_FILE_BYTES: u64 = 1 << 30;

/// What a process left in its rings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingImage {
    /// Joins it to its trace.
    pub trace_id: [u8; 16],
    /// Whose.
    pub pid: u32,
    /// How the process said it ended, if it did.
    pub end: Option<EndReason>,
    /// When it said so.
    pub end_time_ns: u64,
    /// Number of places in the order that were given out.
    pub next_seq: u64,
    /// Counters as they stood.
    pub counters: Counters,
    /// What had not reached the trace (or, at the edge, also did), ring by ring.
    pub records: Vec<Record>,
    /// Length of the trace when the process last wrote to it; 0 where that is not known.
    pub trace_bytes: u64,
    /// Records and rings that made no sense.
    pub malformed: u64,
}

impl RingImage {
    /// How long a ring file with this first page is at most. Ask before reading the rest: a file of that name may be anything.
    pub fn file_bytes(first_page: &[u8]) -> Result<u64, RingError> {
        let bytes = Self::shape(first_page)?.file_bytes();
        if bytes > MAX_RING_FILE_BYTES { Err(RingError::TooLarge(bytes)) } else { Ok(bytes) }
    }

    fn shape(first_page: &[u8]) -> Result<Shape, RingError> {
        let header = first_page.get(..PAGE_BYTES).ok_or(RingError::NotARing)?;
        let version = u32_at(header, 8);
        // Of a version to come nobody knows what it checks.
        let is_intact = version > RING_VERSION || u32_at(header, 12) == header_crc(header);
        if header[..8] != RING_MAGIC || !is_intact {
            return Err(RingError::NotARing);
        }
        if version != RING_VERSION || u32_at(header, 44) as usize != RECORD_BYTES {
            return Err(RingError::Version(version));
        }
        Ok(Shape::decode(header))
    }

    /// Reads the bytes of a ring file. Allocates in proportion to them.
    pub fn decode(bytes: &[u8]) -> Result<Self, RingError> {
        let file_bytes = Self::file_bytes(bytes)?;
        let (header, shape) = (&bytes[..PAGE_BYTES], Self::shape(bytes)?);
        let mut image = Self {
            trace_id: header[16..32].try_into().unwrap_or_default(),
            pid: u32_at(header, 32),
            next_seq: u64_at(header, NEXT_SEQ_AT),
            trace_bytes: u64_at(header, TRACE_BYTES_AT),
            ..Self::default()
        };
        image.read_end(header);
        for (counter, _) in Counter::ALL {
            let at = 8 * *counter as usize;
            let (once, again) = (u64_at(header, COUNTERS_AT + at), u64_at(header, COUNTERS_AGAIN_AT + at));
            image.counters.set(*counter, once.max(again));
            image.malformed += u64::from(once != again);
        }
        image.malformed += u64::from((bytes.len() as u64) < file_bytes);
        for (at, records) in (0..).map_while(|index| shape.ring(index)) {
            let Some(ring) = bytes.get(at as usize..) else { break };
            let ring = &ring[..ring.len().min(ring_bytes(records) as usize)];
            image.decode_ring(ring, records as usize);
        }
        let seqs = image.records.iter().filter_map(|record| match record {
            Record::Event(event) if event.seq != NO_SEQ => Some(event.seq),
            _ => None,
        });
        image.malformed += u64::from(seqs.max().is_some_and(|seq| seq >= image.next_seq));
        Ok(image)
    }

    fn read_end(&mut self, header: &[u8]) {
        let (end, time_ns) = (u64_at(header, END_AT), u64_at(header, END_TIME_AT));
        self.end = end_of(end, time_ns);
        // The time comes first: a process may have been killed before it said the rest.
        if self.end.is_some() {
            self.end_time_ns = time_ns;
        }
        self.malformed += u64::from(self.end.is_none() && end != 0);
    }

    fn decode_ring(&mut self, ring: &[u8], per_ring: usize) {
        if ring.len() < RING_RECORDS_AT {
            return;
        }
        let thread = u32_at(ring, RING_THREAD_AT);
        let (head, mut tail) = (u64_at(ring, RING_HEAD_AT), u64_at(ring, RING_TAIL_AT));
        let is_within = |tail: &u64| head.checked_sub(*tail).is_some_and(|used| used <= per_ring as u64);
        let both = [tail, u64_at(ring, RING_TAIL_AGAIN_AT)];
        tail = both.into_iter().filter(is_within).min().unwrap_or(tail);
        if thread == 0 {
            self.malformed += u64::from(head | tail != 0);
            return;
        }
        if !is_within(&tail) {
            self.malformed += 1;
            return;
        }
        let words_of = |number: u64| {
            let at = RING_RECORDS_AT + (number % per_ring as u64) as usize * RECORD_BYTES;
            let bytes = ring.get(at..at + RECORD_BYTES)?;
            let words: [u64; RECORD_WORDS] = std::array::from_fn(|word| u64_at(bytes, 8 * word));
            unseal(&words, number, thread)
        };
        let mut decoder = RecordDecoder::new(ThreadId(thread));
        for number in tail..head {
            match words_of(number) {
                Some(words) => self.records.extend(decoder.push(&words)),
                None => decoder.skip(),
            }
        }
        // What was stored and not shown yet, when the process was killed.
        let not_shown = head..tail.saturating_add(per_ring as u64);
        for words in not_shown.map_while(words_of) {
            self.records.extend(decoder.push(&words));
        }
        self.malformed += decoder.malformed();
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests;
