//! A ring file, read: what a process left.
//!
//! Constraint: the process may have been killed at any instruction, and any bit of the file may have flipped since. Consequence:
//! what a check does not vouch for is counted and left out; what is there twice (how far a ring is written into the trace, the
//! counters) is compared, and of two the one is taken that loses nothing.

use thiserror::Error;

use super::check::{end_of, end_reason, unseal};
use super::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT, RING_MAGIC,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, RING_VERSION, Record, RecordDecoder,
    SHAPED_SINCE, Shape, TRACE_BYTES_AT, header_crc, ring_bytes,
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

/// First version with checks.
const CHECKED_SINCE: u32 = 3;

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
        let is_intact = version > RING_VERSION || u32_at(header, 12) == header_crc(header, version);
        if header[..8] != RING_MAGIC || !is_intact {
            return Err(RingError::NotARing);
        }
        if !(1..=RING_VERSION).contains(&version) || u32_at(header, 44) as usize != RECORD_BYTES {
            return Err(RingError::Version(version));
        }
        let is_shaped = version >= SHAPED_SINCE;
        Ok(if is_shaped {
            Shape::decode(header)
        } else {
            Shape::uniform(u32_at(header, 36), u32_at(header, 40))
        })
    }

    /// Reads the bytes of a ring file. Allocates in proportion to them.
    pub fn decode(bytes: &[u8]) -> Result<Self, RingError> {
        let file_bytes = Self::file_bytes(bytes)?;
        let (header, shape) = (&bytes[..PAGE_BYTES], Self::shape(bytes)?);
        let is_checked = u32_at(header, 8) >= CHECKED_SINCE;
        let mut image = Self {
            trace_id: header[16..32].try_into().unwrap_or_default(),
            pid: u32_at(header, 32),
            next_seq: u64_at(header, NEXT_SEQ_AT),
            ..Self::default()
        };
        image.read_end(header, is_checked);
        for (counter, _) in Counter::ALL {
            let at = 8 * *counter as usize;
            let (once, again) = (u64_at(header, COUNTERS_AT + at), u64_at(header, COUNTERS_AGAIN_AT + at));
            image.counters.set(*counter, if is_checked { once.max(again) } else { once });
            image.malformed += u64::from(is_checked && once != again);
        }
        if is_checked {
            image.trace_bytes = u64_at(header, TRACE_BYTES_AT);
            image.malformed += u64::from((bytes.len() as u64) < file_bytes);
        }
        // Before that, rings that were never used could lie past the end of the file.
        for (at, records) in (0..).map_while(|index| shape.ring(index)) {
            let Some(ring) = bytes.get(at as usize..) else { break };
            let ring = &ring[..ring.len().min(ring_bytes(records) as usize)];
            image.decode_ring(ring, records as usize, is_checked);
        }
        let seqs = image.records.iter().filter_map(|record| match record {
            Record::Event(event) if event.seq != NO_SEQ => Some(event.seq),
            _ => None,
        });
        image.malformed += u64::from(is_checked && seqs.max().is_some_and(|seq| seq >= image.next_seq));
        Ok(image)
    }

    fn read_end(&mut self, header: &[u8], is_checked: bool) {
        let (end, time_ns) = (u64_at(header, END_AT), u64_at(header, END_TIME_AT));
        self.end = if is_checked { end_of(end, time_ns) } else { end_reason(end as u32, (end >> 32) as i32) };
        // The time comes first: a process may have been killed before it said the rest.
        if !is_checked || self.end.is_some() {
            self.end_time_ns = time_ns;
        }
        self.malformed += u64::from(is_checked && self.end.is_none() && end != 0);
    }

    fn decode_ring(&mut self, ring: &[u8], per_ring: usize, is_checked: bool) {
        if ring.len() < RING_RECORDS_AT {
            return;
        }
        let thread = u32_at(ring, RING_THREAD_AT);
        let (head, mut tail) = (u64_at(ring, RING_HEAD_AT), u64_at(ring, RING_TAIL_AT));
        let is_within = |tail: &u64| head.checked_sub(*tail).is_some_and(|used| used <= per_ring as u64);
        if is_checked {
            let both = [tail, u64_at(ring, RING_TAIL_AGAIN_AT)];
            tail = both.into_iter().filter(is_within).min().unwrap_or(tail);
        }
        if thread == 0 {
            self.malformed += u64::from(is_checked && head | tail != 0);
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
            if is_checked { unseal(&words, number, thread) } else { Some(words) }
        };
        let mut decoder = RecordDecoder::new(ThreadId(thread));
        for number in tail..head {
            match words_of(number) {
                Some(words) => self.records.extend(decoder.push(&words)),
                None => decoder.skip(),
            }
        }
        // What was stored and not shown yet, when the process was killed.
        let not_shown = if is_checked { head..tail.saturating_add(per_ring as u64) } else { 0..0 };
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
mod tests {
    use super::*;
    use crate::defs::{CodeDef, CodeId, NativeNode, NodeId, PyNode};
    use crate::event::{Detail, Event, EventKind};
    use crate::links::Link;
    use crate::ring::check::seal;
    use crate::ring::shape::{CLASSES_AT, CLASSES_END};
    use crate::ring::{HEADER_BYTES, encode_code_records, encode_header, native_node_words, py_node_words};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A ring file with one ring per list of records, as a recorder would leave it.
    fn image_bytes(per_ring: usize, rings: &[(u64, Vec<[u64; RECORD_WORDS]>)]) -> Vec<u8> {
        let shape = Shape::uniform(rings.len() as u32, per_ring as u32);
        let mut bytes = vec![0; shape.file_bytes() as usize];
        bytes[..HEADER_BYTES].copy_from_slice(&encode_header([7; 16], 42, &shape));
        bytes[NEXT_SEQ_AT..][..8].copy_from_slice(&100u64.to_le_bytes());
        for (index, (tail, records)) in rings.iter().enumerate() {
            let ring = &mut bytes[shape.ring(index).unwrap().0 as usize..];
            ring[..4].copy_from_slice(&(100 + index as u32).to_le_bytes());
            ring[RING_HEAD_AT..][..8].copy_from_slice(&(tail + records.len() as u64).to_le_bytes());
            ring[RING_TAIL_AT..][..8].copy_from_slice(&tail.to_le_bytes());
            ring[RING_TAIL_AGAIN_AT..][..8].copy_from_slice(&tail.to_le_bytes());
            for (number, words) in (*tail..).zip(records) {
                let at = RING_RECORDS_AT + (number % per_ring as u64) as usize * RECORD_BYTES;
                let mut words = *words;
                words[7] = seal(&words, number, 100 + index as u32);
                for (word, place) in words.iter().zip(ring[at..].chunks_exact_mut(8)) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        bytes
    }

    #[test]
    fn what_a_killed_process_left_is_read_from_wrapped_rings() {
        let code = CodeDef {
            id: CodeId(9),
            first_line: -3,
            python: 0x030b,
            truncated: true,
            file: "train.py".into(),
            name: "Net.forward".into(),
            line_table: (0..200).collect(),
        };
        let node =
            PyNode { id: NodeId(2), parent: NodeId(1), code: CodeId(9), offset_bytes: -1, link: Link::C };
        let native = NativeNode { id: NodeId(5), parent: NodeId::NONE, return_address: 0x7fff_1234_5678 };
        let mut records = encode_code_records(&code);
        records.push(py_node_words(node));
        records.push(native_node_words(native));
        // Tail 6 in a ring of 8: the records wrap.
        let image = RingImage::decode(&image_bytes(8, &[(6, records)])).unwrap();
        assert_eq!(image.records, [Record::Code(code), Record::PyNode(node), Record::NativeNode(native)]);
        assert_eq!((image.trace_id, image.pid, image.malformed), ([7; 16], 42, 0));
    }

    #[test]
    fn a_torn_definition_is_counted_and_what_follows_it_is_kept() {
        let code = CodeDef { file: "x".repeat(100), ..CodeDef::default() };
        let mut records = encode_code_records(&code);
        records.truncate(2);
        let node =
            PyNode { id: NodeId(2), parent: NodeId(1), code: CodeId(0), offset_bytes: 4, link: Link::Python };
        records.push(py_node_words(node));
        let image = RingImage::decode(&image_bytes(8, &[(0, records)])).unwrap();
        assert_eq!((image.records, image.malformed), (vec![Record::PyNode(node)], 1));
    }

    fn block_event(seq: u64) -> Event {
        Event {
            seq,
            time_ns: 5,
            thread: ThreadId(100),
            kind: EventKind::BLOCK_ALLOC,
            device: 0,
            api: crate::ApiId(0),
            flags: 0,
            result: 0,
            in_flight: false,
            addr: 0x1000,
            size: 512,
            aux: [512, 1024],
            python_stack: NodeId(1),
            native_stack: NodeId::NONE,
            detail: None,
        }
    }

    #[test]
    fn a_detail_belongs_to_the_event_after_it_and_to_no_other() {
        let detail = Detail { requested_bytes: 500, stream: 7, pool: 1 << 32 };
        let node =
            PyNode { id: NodeId(2), parent: NodeId(1), code: CodeId(0), offset_bytes: 4, link: Link::Python };
        let records = vec![
            detail.to_words(),
            block_event(0).to_words(),
            block_event(1).to_words(),
            detail.to_words(),
            py_node_words(node),
            block_event(2).to_words(),
        ];
        let image = RingImage::decode(&image_bytes(8, &[(0, records)])).unwrap();
        let with_detail = Event { detail: Some(detail), ..block_event(0) };
        let expected = [
            Record::Event(with_detail),
            Record::Event(block_event(1)),
            Record::PyNode(node),
            Record::Event(block_event(2)),
        ];
        assert_eq!((image.records.as_slice(), image.malformed), (&expected[..], 1));
    }

    /// As an earlier recorder would have said it, with rings of 8 records.
    fn with_version(mut bytes: Vec<u8>, version: u8) -> Vec<u8> {
        bytes[8] = version;
        if u32::from(version) < SHAPED_SINCE {
            bytes[CLASSES_AT..CLASSES_END].fill(0);
            bytes[36..40].copy_from_slice(&1u32.to_le_bytes());
            bytes[40..44].copy_from_slice(&8u32.to_le_bytes());
        }
        let crc = header_crc(&bytes, u32::from(version));
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn rings_without_checks_are_read_as_they_were() {
        let mut bytes = image_bytes(8, &[(0, vec![block_event(0).to_words()])]);
        bytes[PAGE_BYTES + RING_RECORDS_AT + 56..][..8]
            .copy_from_slice(&block_event(0).to_words()[7].to_le_bytes());
        bytes.truncate(PAGE_BYTES + RING_RECORDS_AT + RECORD_BYTES);
        for version in [1, 2] {
            let image = RingImage::decode(&with_version(bytes.clone(), version)).unwrap();
            assert_eq!((image.records, image.malformed), (vec![Record::Event(block_event(0))], 0));
        }
        assert_eq!(RingImage::decode(&with_version(bytes, 5)), Err(RingError::Version(5)));
    }

    #[test]
    fn a_record_of_an_earlier_round_or_another_thread_is_none() {
        let sound = image_bytes(2, &[(4, vec![block_event(0).to_words(); 2])]);
        let at = |at: usize| PAGE_BYTES + at;
        for (place, value) in [(at(RING_HEAD_AT), 7u8), (at(RING_THREAD_AT), 99), (at(RING_THREAD_AT), 0)] {
            let mut bytes = sound.clone();
            bytes[place] = value;
            assert!(RingImage::decode(&bytes).unwrap().malformed > 0, "{place} {value}");
        }
        let rest = RingImage::decode(&sound).unwrap();
        for (place, value) in [(at(RING_HEAD_AT), 5u8), (at(RING_TAIL_AT), 5), (at(RING_TAIL_AGAIN_AT), 6)] {
            let mut bytes = sound.clone();
            bytes[place] = value;
            assert_eq!(RingImage::decode(&bytes), Ok(rest.clone()), "{place} {value}: told twice");
        }
    }

    #[test]
    fn a_file_that_is_too_short_says_so() {
        let sound = image_bytes(2, &[(0, vec![]), (0, vec![])]);
        assert_eq!(RingImage::decode(&sound).unwrap().malformed, 0);
        assert_eq!(RingImage::decode(&sound[..sound.len() - PAGE_BYTES]).unwrap().malformed, 1);
    }

    #[test]
    fn a_foreign_or_damaged_file_is_refused() {
        assert_eq!(RingImage::decode(b"hello"), Err(RingError::NotARing));
        let mut bytes = image_bytes(8, &[]);
        bytes[CLASSES_AT] ^= 1;
        assert_eq!(RingImage::decode(&bytes), Err(RingError::NotARing));
    }

    #[test]
    fn the_first_page_says_how_much_there_is_to_read() {
        let bytes = image_bytes(8, &[(0, vec![]), (0, vec![])]);
        assert_eq!(RingImage::file_bytes(&bytes[..PAGE_BYTES]), Ok(bytes.len() as u64));
        assert_eq!(RingImage::file_bytes(&bytes[..100]), Err(RingError::NotARing));
        let mut page = vec![0; PAGE_BYTES];
        page[..HEADER_BYTES].copy_from_slice(&encode_header([0; 16], 1, &Shape::uniform(u32::MAX, u32::MAX)));
        assert!(matches!(RingImage::file_bytes(&page), Err(RingError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn any_ring_contents_are_read_without_panic(
            garbage in vec(any::<u8>(), 0..9000), classes in prop::array::uniform8((0u32..3, 0u32..32)),
        ) {
            let mut bytes = vec![0; PAGE_BYTES];
            bytes[..HEADER_BYTES].copy_from_slice(&encode_header([0; 16], 1, &Shape::new(classes)));
            bytes.extend_from_slice(&garbage);
            let image = RingImage::decode(&bytes).unwrap();
            prop_assert!(image.records.len() <= bytes.len() / RECORD_BYTES + 1);
        }
    }
}
