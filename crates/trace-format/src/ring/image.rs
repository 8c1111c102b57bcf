//! Reading a ring file: of a process that has ended, or of one that goes on.
//!
//! The process may have been killed at any instruction, and any bit of the file may have flipped
//! since. The reader counts and leaves out what fails its check. The tail of each ring and the
//! counters are stored twice; of two values that differ, the reader takes the one that loses
//! nothing.
//!
//! Page 0 is read first: an event with a number below its `next_seq` then is in the rings, in the
//! trace, or in a call that has not returned. Of each ring only the records between tail and head
//! are read, which are few. [`RingImage::read_new`] leaves out those that an earlier reading has
//! passed on.

use std::io::ErrorKind;

use thiserror::Error;

use super::check::{decode_end_word, unseal};
use super::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT, RING_MAGIC,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, RING_VERSION, RecordDecoder,
    RingLayout, RingRecord, STOPPED_WITHOUT_WRITER, TRACE_BYTES_AT, header_crc, u32_at,
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
    /// The file cannot be read.
    #[error("cannot be read ({0})")]
    Unreadable(ErrorKind),
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
    /// The recording stopped because the recorder's thread had ended.
    pub has_lost_writer: bool,
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

/// The bytes of a ring file.
pub trait RingSource {
    /// Reads the bytes from `at` on. Returns their number: fewer than asked for only at the end.
    fn read_at(&mut self, at: u64, into: &mut [u8]) -> std::io::Result<usize>;

    /// The length of the file.
    fn length_bytes(&mut self) -> std::io::Result<u64>;
}

impl RingSource for &[u8] {
    fn read_at(&mut self, at: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let read = rest.len().min(into.len());
        into[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn length_bytes(&mut self) -> std::io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// How far a ring file has been read: of each ring, its thread and the first record that an earlier
/// reading has not passed on for good. A record in flight changes, so it is read again.
#[derive(Clone, Debug, Default)]
pub struct RingProgress {
    trace_id: [u8; 16],
    rings: Vec<(u32, u64)>,
}

impl RingImage {
    /// Decodes a ring file.
    pub fn decode(bytes: &[u8]) -> Result<Self, RingError> {
        Self::read_new(&mut &bytes[..], &mut RingProgress::default(), |_| false)
    }

    /// Reads a ring file, without the records that an earlier reading with this `progress` has
    /// passed on. If page 0 satisfies `is_known`, reads no rings: the image then has no records.
    pub fn read_new(
        source: &mut impl RingSource,
        progress: &mut RingProgress,
        is_known: impl FnOnce(&Self) -> bool,
    ) -> Result<Self, RingError> {
        let mut header = [0; PAGE_BYTES];
        if read_fully(source, 0, &mut header)? < PAGE_BYTES {
            return Err(RingError::NotARing);
        }
        let layout = Self::layout(&header)?;
        let file_bytes = layout.file_bytes();
        if file_bytes > MAX_RING_FILE_BYTES {
            return Err(RingError::TooLarge(file_bytes));
        }
        let mut image = Self::from_header(&header);
        if is_known(&image) {
            return Ok(image);
        }
        if progress.trace_id != image.trace_id {
            *progress = RingProgress { trace_id: image.trace_id, rings: Vec::new() };
        }
        image.malformed += u64::from(
            source.length_bytes().map_err(|error| RingError::Unreadable(error.kind()))? < file_bytes,
        );
        for (index, (at, records)) in (0..).map_while(|index| Some((index, layout.ring(index)?))) {
            if progress.rings.len() <= index {
                progress.rings.push((0, 0));
            }
            let mut ring = Ring::new(source, at, records);
            image.read_ring(&mut ring, &mut progress.rings[index])?;
        }
        let seqs = image.records.iter().filter_map(|record| match record {
            RingRecord::Event(event) if event.seq != NO_SEQ => Some(event.seq),
            _ => None,
        });
        image.malformed += u64::from(seqs.max().is_some_and(|seq| seq >= image.next_seq));
        Ok(image)
    }

    fn layout(header: &[u8; PAGE_BYTES]) -> Result<RingLayout, RingError> {
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

    fn from_header(header: &[u8; PAGE_BYTES]) -> Self {
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
        image
    }

    fn read_end(&mut self, header: &[u8]) {
        let (end, time_ns) = (u64_at(header, END_AT), u64_at(header, END_TIME_AT));
        self.end = decode_end_word(end, time_ns);
        let status = (end >> 32) as i32;
        self.has_lost_writer = self.end == Some(EndReason::Stopped) && status == STOPPED_WITHOUT_WRITER;
        // The process stores the time first and may have been killed before the end word.
        if self.end.is_some() {
            self.end_time_ns = time_ns;
        }
        self.malformed += u64::from(self.end.is_none() && end != 0);
    }

    fn read_ring<S: RingSource>(
        &mut self,
        ring: &mut Ring<'_, S>,
        progress: &mut (u32, u64),
    ) -> Result<(), RingError> {
        let Some(header) = ring.header()? else { return Ok(()) };
        let (thread, per_ring) = (u32_at(&header, RING_THREAD_AT), ring.records);
        let (head, mut tail) = (u64_at(&header, RING_HEAD_AT), u64_at(&header, RING_TAIL_AT));
        let is_within = |tail: &u64| head.checked_sub(*tail).is_some_and(|used| used <= per_ring);
        let both = [tail, u64_at(&header, RING_TAIL_AGAIN_AT)];
        tail = both.into_iter().filter(is_within).min().unwrap_or(tail);
        if thread == 0 {
            self.malformed += u64::from(head | tail != 0);
            return Ok(());
        }
        if !is_within(&tail) {
            self.malformed += 1;
            return Ok(());
        }
        let (earlier_thread, earlier) = *progress;
        let begin = if earlier_thread == thread && earlier <= head { tail.max(earlier) } else { tail };
        let mut decoder = RecordDecoder::new(ThreadId(thread));
        // All records before `settled` are complete and will not change.
        let (mut settled, mut is_settled) = (begin, true);
        for number in begin..head {
            match ring.words(number, thread)? {
                Some(words) => {
                    let record = decoder.push(&words);
                    is_settled &= !matches!(&record, Some(RingRecord::Event(event)) if event.in_flight);
                    self.records.extend(record);
                }
                None => decoder.skip(),
            }
            if is_settled && decoder.is_between_records() {
                settled = number + 1;
            }
        }
        *progress = (thread, settled);
        // Records that were stored before the kill, but not yet published by moving the head.
        for number in head..tail.saturating_add(per_ring) {
            let Some(words) = ring.words(number, thread)? else { break };
            self.records.extend(decoder.push(&words));
        }
        self.malformed += decoder.malformed();
        Ok(())
    }
}

/// Records that are read at once: 16 KiB.
const CHUNK_RECORDS: u64 = 256;

/// One ring of a file, of which parts are read as they are needed.
struct Ring<'a, S> {
    source: &'a mut S,
    at: u64,
    records: u64,
    /// Slots from `chunk_begin` on.
    chunk: Vec<u8>,
    chunk_begin: u64,
}

impl<'a, S: RingSource> Ring<'a, S> {
    fn new(source: &'a mut S, at: u64, records: u32) -> Self {
        Self { source, at, records: u64::from(records), chunk: Vec::new(), chunk_begin: 0 }
    }

    /// The bytes before its records; `None` if the file ends before.
    fn header(&mut self) -> Result<Option<[u8; RING_RECORDS_AT]>, RingError> {
        let mut header = [0; RING_RECORDS_AT];
        let read = read_fully(self.source, self.at, &mut header)?;
        Ok((read == RING_RECORDS_AT).then_some(header))
    }

    /// The words of record `number` of this thread; `None` if they are damaged, or of another
    /// record.
    fn words(&mut self, number: u64, thread: u32) -> Result<Option<[u64; RECORD_WORDS]>, RingError> {
        let slot = number % self.records;
        let in_chunk = |chunk: &[u8], begin: u64| {
            let at = usize::try_from(slot.checked_sub(begin)?).ok()?.checked_mul(RECORD_BYTES)?;
            let bytes = chunk.get(at..at + RECORD_BYTES)?;
            Some(std::array::from_fn::<u64, RECORD_WORDS, _>(|word| u64_at(bytes, 8 * word)))
        };
        if let Some(words) = in_chunk(&self.chunk, self.chunk_begin) {
            return Ok(unseal(&words, number, thread));
        }
        let slots = CHUNK_RECORDS.min(self.records - slot);
        self.chunk.resize(slots as usize * RECORD_BYTES, 0);
        let at = self.at + RING_RECORDS_AT as u64 + slot * RECORD_BYTES as u64;
        let read = read_fully(self.source, at, &mut self.chunk)?;
        self.chunk.truncate(read);
        self.chunk_begin = slot;
        Ok(in_chunk(&self.chunk, slot).and_then(|words| unseal(&words, number, thread)))
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
fn read_fully(source: &mut impl RingSource, at: u64, into: &mut [u8]) -> Result<usize, RingError> {
    let mut read = 0;
    while read < into.len() {
        match source.read_at(at + read as u64, &mut into[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(RingError::Unreadable(error.kind())),
        }
    }
    Ok(read)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests;
