//! Reading the ring file that a process left behind.
//!
//! The process may have been killed at any instruction, and any bit of the file may have flipped
//! since. The reader counts and leaves out what fails its check. The tail of each ring and the
//! counters are stored twice; of two values that differ, the reader takes the one that loses
//! nothing.

use thiserror::Error;

use super::check::{decode_end_word, unseal};
use super::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT, RING_MAGIC,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, RING_VERSION, RecordDecoder,
    RingLayout, RingRecord, TRACE_BYTES_AT, header_crc, ring_bytes, u32_at,
};
use crate::event::{NO_SEQ, RECORD_BYTES, RECORD_WORDS};
use crate::ids::ThreadId;
use crate::meta::{Counter, Counters, EndReason};

/// Why a ring file cannot be used. The text continues a sentence that begins with the file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// Too short, or the magic or the checksum of its header is wrong.
    #[error("is not a gpumemtrace ring file, or its header is damaged")]
    NotARing,
    /// A version that this crate does not read.
    #[error("has ring version {0}, but this gpumemtrace reads version {RING_VERSION}: use a newer one")]
    Version(u32),
    /// Its header claims more bytes than [`MAX_RING_FILE_BYTES`].
    #[error("claims to be {0} bytes long in its header, more than any recorder makes")]
    TooLarge(u64),
}

/// Largest ring file that is read, in bytes. The recorder makes one of about 50 MiB.
pub const MAX_RING_FILE_BYTES: u64 = 1 << 30;

/// The contents of a ring file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingImage {
    /// Equal to the `trace_id` in the metadata of its trace.
    pub trace_id: [u8; 16],
    /// The process that recorded.
    pub pid: u32,
    /// How the process ended; `None` if it did not record that.
    pub end: Option<EndReason>,
    /// When it ended, in `CLOCK_MONOTONIC`; 0 if `end` is `None`.
    pub end_time_ns: u64,
    /// Number of values of `seq` that were given out.
    pub next_seq: u64,
    /// The counters at the end.
    pub counters: Counters,
    /// Records that are not in the trace, ring by ring. Some may be in the trace too.
    pub records: Vec<RingRecord>,
    /// Length of the trace when the process last wrote to it; 0 if unknown.
    pub trace_bytes: u64,
    /// Number of records, rings and values that could not be used.
    pub malformed: u64,
}

impl RingImage {
    /// Length of a ring file with this first page. Callers check it before they read the rest,
    /// because any file may have that name.
    pub fn expected_file_bytes(first_page: &[u8]) -> Result<u64, RingError> {
        let bytes = Self::layout(first_page)?.file_bytes();
        if bytes > MAX_RING_FILE_BYTES { Err(RingError::TooLarge(bytes)) } else { Ok(bytes) }
    }

    fn layout(first_page: &[u8]) -> Result<RingLayout, RingError> {
        let header = first_page.get(..PAGE_BYTES).ok_or(RingError::NotARing)?;
        let version = u32_at(header, 8);
        // The checksum of a newer version may cover other bytes.
        let is_intact = version > RING_VERSION || u32_at(header, 12) == header_crc(header);
        if header[..8] != RING_MAGIC || !is_intact {
            return Err(RingError::NotARing);
        }
        if version != RING_VERSION || u32_at(header, 44) as usize != RECORD_BYTES {
            return Err(RingError::Version(version));
        }
        Ok(RingLayout::decode(header))
    }

    /// Decodes a ring file. Allocates in proportion to its length.
    pub fn decode(bytes: &[u8]) -> Result<Self, RingError> {
        let file_bytes = Self::expected_file_bytes(bytes)?;
        let (header, layout) = (&bytes[..PAGE_BYTES], Self::layout(bytes)?);
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
        for (at, records) in (0..).map_while(|index| layout.ring(index)) {
            let Some(ring) = bytes.get(at as usize..) else { break };
            let ring = &ring[..ring.len().min(ring_bytes(records) as usize)];
            image.decode_ring(ring, records as usize);
        }
        let seqs = image.records.iter().filter_map(|record| match record {
            RingRecord::Event(event) if event.seq != NO_SEQ => Some(event.seq),
            _ => None,
        });
        image.malformed += u64::from(seqs.max().is_some_and(|seq| seq >= image.next_seq));
        Ok(image)
    }

    fn read_end(&mut self, header: &[u8]) {
        let (end, time_ns) = (u64_at(header, END_AT), u64_at(header, END_TIME_AT));
        self.end = decode_end_word(end, time_ns);
        // The process stores the time first and may have been killed before the end word.
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
        // Records that were stored before the kill, but not yet published by moving the head.
        let unpublished = head..tail.saturating_add(per_ring as u64);
        for words in unpublished.map_while(words_of) {
            self.records.extend(decoder.push(&words));
        }
        self.malformed += decoder.malformed();
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests;
