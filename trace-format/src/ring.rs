//! The ring file `<trace>.ring`: where records are from the moment they happen until they are in the trace.
//!
//! Constraint: the traced process may be killed at any instruction, and its threads never wait for each other. Consequence:
//! the file is mapped shared (the kernel keeps what was stored), there is one ring per thread, written by that thread and
//! emptied by the writer thread, and the writer moves a ring's tail only after the records are in the trace. A reader of
//! what a killed process left takes the trace and then, from each ring, the records between tail and head. If the process
//! died between writing a block and moving the tail, those records are there twice; their `seq` says so.
//!
//! ```text
//! file = page 0, then ring 0, ring 1, ...          all numbers little-endian; offsets in bytes
//! page 0 (4096): 0 magic:8 "gpumtrr\n"   8 version:u32   12 crc32c(bytes 0..12 and 16..48):u32
//!                16 trace_id:16   32 pid:u32   36 rings:u32   40 records_per_ring:u32   44 record_bytes:u32
//!                64 end:u64 (kind low 32 bits | status << 32)   72 end_time_ns:u64
//!                512 next_seq:u64          1024 counters:u64 x 64
//! ring (256 + records * 64, rounded up to 4096):
//!                0 thread:u32 (0 = never used)   64 head:u64   128 tail:u64   256 records
//! ```
//! Record number n is at slot n mod records_per_ring. Definitions travel as records too:
//!
//! ```text
//! CODE_DEF   word 0 id, 1 payload bytes, 2 first line (signed), 3 python | truncated << 16; then ceil(bytes / 56)
//! CODE_DATA  words 0 to 6: payload = file_len:u32 name_len:u32 table_len:u32 file name table
//! PY_NODE    word 0 id | parent << 32, 1 code, 2 offset (signed)
//! NATIVE_NODE word 0 id | parent << 32, 1 return address
//! DETAIL     word 0 bytes asked for, 1 stream, 2 pool: of the event in the next record, if it does not fit into that
//! ```

use thiserror::Error;

use crate::defs::{CodeDef, CodeId, MAX_TEXT_BYTES, NativeNode, NodeId, PyNode};
use crate::event::{Detail, Event, EventKind, RECORD_BYTES, RECORD_WORDS, ThreadId};
use crate::links::Link;
use crate::meta::{Counter, Counters, EndReason};

/// First bytes of a ring file.
pub const RING_MAGIC: [u8; 8] = *b"gpumtrr\n";
/// Version of this layout. 1 had no details; it is read as it was.
pub const RING_VERSION: u32 = 2;
/// Size of page 0, and what rings are rounded up to.
pub const PAGE_BYTES: usize = 4096;
/// Offset of the end word in page 0.
pub const END_AT: usize = 64;
/// Offset of the time of the end.
pub const END_TIME_AT: usize = 72;
/// Offset of the counter that orders all events.
pub const NEXT_SEQ_AT: usize = 512;
/// Offset of the counters.
pub const COUNTERS_AT: usize = 1024;
/// Offset of the owner in a ring.
pub const RING_THREAD_AT: usize = 0;
/// Offset of the head in a ring.
pub const RING_HEAD_AT: usize = 64;
/// Offset of the tail in a ring.
pub const RING_TAIL_AT: usize = 128;
/// Offset of the records in a ring.
pub const RING_RECORDS_AT: usize = 256;
/// Payload bytes in one `CODE_DATA` record.
pub const DATA_BYTES_PER_RECORD: usize = RECORD_BYTES - 8;

/// End word: the process has not said that it ends.
pub const END_NONE: u32 = 0;
/// End word: `exit` ran to its end.
pub const END_EXIT: u32 = 1;
/// End word: `_exit`, status in the high half.
pub const END_QUICK_EXIT: u32 = 2;
/// End word: recording stopped first.
pub const END_STOPPED: u32 = 3;

/// Bytes from one ring to the next.
pub const fn ring_stride(records_per_ring: usize) -> usize {
    (RING_RECORDS_AT + records_per_ring * RECORD_BYTES).next_multiple_of(PAGE_BYTES)
}

/// The fixed part of page 0.
pub fn encode_header(trace_id: [u8; 16], pid: u32, rings: u32, records_per_ring: u32) -> [u8; 48] {
    let mut header = [0u8; 48];
    header[..8].copy_from_slice(&RING_MAGIC);
    header[8..12].copy_from_slice(&RING_VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&trace_id);
    header[32..36].copy_from_slice(&pid.to_le_bytes());
    header[36..40].copy_from_slice(&rings.to_le_bytes());
    header[40..44].copy_from_slice(&records_per_ring.to_le_bytes());
    header[44..48].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    let crc = header_crc(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

fn header_crc(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..48])
}

/// One step of a ring, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Something the program did.
    Event(Event),
    /// A code object.
    Code(CodeDef),
    /// A Python frame.
    PyNode(PyNode),
    /// A native frame.
    NativeNode(NativeNode),
}

/// Puts the records of one ring back together, in order. The writer thread and the reader of a ring file both use it.
#[derive(Debug)]
pub struct RecordDecoder {
    thread: ThreadId,
    code: Option<(CodeDef, Vec<u8>, usize)>,
    detail: Option<Detail>,
    malformed: u64,
}

impl RecordDecoder {
    /// For the ring of this thread.
    pub fn new(thread: ThreadId) -> Self {
        Self { thread, code: None, detail: None, malformed: 0 }
    }

    /// True when no definition is half read: a safe place to stop.
    pub fn is_between_records(&self) -> bool {
        self.code.is_none() && self.detail.is_none()
    }

    /// Records that made no sense.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Takes the next record.
    pub fn push(&mut self, words: &[u64; RECORD_WORDS]) -> Option<Record> {
        let kind = EventKind(words[7] as u8);
        if self.code.is_some() && kind != EventKind::CODE_DATA {
            self.code = None;
            self.malformed += 1;
        }
        let detail = self.detail.take();
        self.malformed += u64::from(detail.is_some() && kind.is_definition());
        match kind {
            EventKind::DETAIL => {
                self.detail = Some(Detail::from_words(words));
                None
            }
            EventKind::CODE_DEF => {
                let len = words[1] as usize;
                if words[1] > (3 * MAX_TEXT_BYTES) as u64 || len < 12 {
                    self.malformed += 1;
                    return None;
                }
                let code = CodeDef {
                    id: CodeId(words[0] as u32),
                    first_line: words[2] as i32,
                    python: words[3] as u16,
                    truncated: words[3] >> 16 & 1 != 0,
                    ..CodeDef::default()
                };
                self.code = Some((code, Vec::new(), len));
                None
            }
            EventKind::CODE_DATA => {
                let Some((mut code, mut payload, len)) = self.code.take() else {
                    self.malformed += 1;
                    return None;
                };
                let chunk: Vec<u8> = words[..7].iter().flat_map(|word| word.to_le_bytes()).collect();
                payload.extend_from_slice(&chunk[..(len - payload.len()).min(DATA_BYTES_PER_RECORD)]);
                if payload.len() < len {
                    self.code = Some((code, payload, len));
                    return None;
                }
                if fill_code(&mut code, &payload).is_none() {
                    self.malformed += 1;
                    return None;
                }
                Some(Record::Code(code))
            }
            EventKind::PY_NODE_DEF => Some(Record::PyNode(PyNode {
                id: NodeId(words[0] as u32),
                parent: NodeId((words[0] >> 32) as u32),
                code: CodeId(words[1] as u32),
                offset_bytes: words[2] as i32,
                link: Link::of_number(words[3] as u8),
            })),
            EventKind::NATIVE_NODE_DEF => Some(Record::NativeNode(NativeNode {
                id: NodeId(words[0] as u32),
                parent: NodeId((words[0] >> 32) as u32),
                return_address: words[1],
            })),
            _ => {
                let event = Event::from_words(words, self.thread);
                self.malformed += u64::from(event.is_none());
                event.map(|event| Record::Event(Event { detail: detail.or(event.detail), ..event }))
            }
        }
    }
}

fn fill_code(code: &mut CodeDef, payload: &[u8]) -> Option<()> {
    let len_at = |at: usize| Some(u32::from_le_bytes(payload.get(at..at + 4)?.try_into().ok()?) as usize);
    let (file, name, table) = (len_at(0)?, len_at(4)?, len_at(8)?);
    let rest = payload.get(12..)?;
    let (file, rest) = rest.split_at_checked(file)?;
    let (name, rest) = rest.split_at_checked(name)?;
    code.file = String::from_utf8_lossy(file).into_owned();
    code.name = String::from_utf8_lossy(name).into_owned();
    code.line_table = rest.get(..table)?.to_vec();
    Some(())
}

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
    /// Records and rings that made no sense.
    pub malformed: u64,
}

impl RingImage {
    /// How long a ring file with this first page is at most. Ask before reading the rest: a file of that name may be anything.
    pub fn file_bytes(first_page: &[u8]) -> Result<u64, RingError> {
        let header = first_page.get(..PAGE_BYTES).ok_or(RingError::NotARing)?;
        if header[..8] != RING_MAGIC || u32_at(header, 12) != header_crc(header) {
            return Err(RingError::NotARing);
        }
        if !(1..=RING_VERSION).contains(&u32_at(header, 8)) || u32_at(header, 44) as usize != RECORD_BYTES {
            return Err(RingError::Version(u32_at(header, 8)));
        }
        let stride = (u64::from(u32_at(header, 40)) * RECORD_BYTES as u64 + RING_RECORDS_AT as u64)
            .next_multiple_of(PAGE_BYTES as u64);
        let bytes = stride.saturating_mul(u64::from(u32_at(header, 36))).saturating_add(PAGE_BYTES as u64);
        if bytes > MAX_RING_FILE_BYTES { Err(RingError::TooLarge(bytes)) } else { Ok(bytes) }
    }

    /// Reads the bytes of a ring file. Allocates in proportion to them.
    pub fn decode(bytes: &[u8]) -> Result<Self, RingError> {
        Self::file_bytes(bytes)?;
        let header = &bytes[..PAGE_BYTES];
        let (rings, per_ring) = (u32_at(header, 36) as usize, u32_at(header, 40) as usize);
        let end = u64_at(header, END_AT);
        let mut image = Self {
            trace_id: header[16..32].try_into().unwrap_or_default(),
            pid: u32_at(header, 32),
            end: match end as u32 {
                END_EXIT => Some(EndReason::Exit),
                END_QUICK_EXIT => Some(EndReason::QuickExit((end >> 32) as i32)),
                END_STOPPED => Some(EndReason::Stopped),
                _ => None,
            },
            end_time_ns: u64_at(header, END_TIME_AT),
            next_seq: u64_at(header, NEXT_SEQ_AT),
            ..Self::default()
        };
        for (counter, _) in Counter::ALL {
            image.counters.set(*counter, u64_at(header, COUNTERS_AT + 8 * *counter as usize));
        }
        // Rings that were never used lie past the end of what was ever allocated: the file may be shorter than its geometry.
        for ring in bytes[PAGE_BYTES..].chunks(ring_stride(per_ring).max(PAGE_BYTES)).take(rings) {
            image.decode_ring(ring, per_ring);
        }
        Ok(image)
    }

    fn decode_ring(&mut self, ring: &[u8], per_ring: usize) {
        if ring.len() < RING_RECORDS_AT || u32_at(ring, RING_THREAD_AT) == 0 {
            return;
        }
        let (head, tail) = (u64_at(ring, RING_HEAD_AT), u64_at(ring, RING_TAIL_AT));
        if head < tail || head - tail > per_ring as u64 {
            self.malformed += 1;
            return;
        }
        let mut decoder = RecordDecoder::new(ThreadId(u32_at(ring, RING_THREAD_AT)));
        for number in tail..head {
            let at = RING_RECORDS_AT + (number % per_ring as u64) as usize * RECORD_BYTES;
            let Some(bytes) = ring.get(at..at + RECORD_BYTES) else {
                self.malformed += 1;
                continue;
            };
            let mut words = [0u64; RECORD_WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64_at(bytes, 0);
            }
            self.records.extend(decoder.push(&words));
        }
        self.malformed += decoder.malformed();
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The records of a code definition, for the hook's tests and for tools; the hook itself makes them without allocating.
pub fn encode_code_records(code: &CodeDef) -> Vec<[u64; RECORD_WORDS]> {
    let mut payload = Vec::new();
    for len in [code.file.len(), code.name.len(), code.line_table.len()] {
        payload.extend_from_slice(&(len as u32).to_le_bytes());
    }
    payload.extend_from_slice(code.file.as_bytes());
    payload.extend_from_slice(code.name.as_bytes());
    payload.extend_from_slice(&code.line_table);
    let mut records =
        vec![code_head_words(code.id, payload.len(), code.first_line, code.python, code.truncated)];
    for chunk in payload.chunks(DATA_BYTES_PER_RECORD) {
        let mut words = [0u64; RECORD_WORDS];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(8)) {
            let mut full = [0; 8];
            full[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(full);
        }
        words[7] = u64::from(EventKind::CODE_DATA.0);
        records.push(words);
    }
    records
}

/// The head record of a code definition.
pub fn code_head_words(
    id: CodeId,
    payload_bytes: usize,
    first_line: i32,
    python: u16,
    truncated: bool,
) -> [u64; RECORD_WORDS] {
    let version = u64::from(python) | u64::from(truncated) << 16;
    let kind = u64::from(EventKind::CODE_DEF.0);
    [u64::from(id.0), payload_bytes as u64, i64::from(first_line) as u64, version, 0, 0, 0, kind]
}

/// The record of a Python node.
pub fn py_node_words(node: PyNode) -> [u64; RECORD_WORDS] {
    let ids = u64::from(node.id.0) | u64::from(node.parent.0) << 32;
    let offset = i64::from(node.offset_bytes) as u64;
    let link = u64::from(node.link.number());
    [ids, u64::from(node.code.0), offset, link, 0, 0, 0, u64::from(EventKind::PY_NODE_DEF.0)]
}

/// The record of a native node.
pub fn native_node_words(node: NativeNode) -> [u64; RECORD_WORDS] {
    let ids = u64::from(node.id.0) | u64::from(node.parent.0) << 32;
    [ids, node.return_address, 0, 0, 0, 0, 0, u64::from(EventKind::NATIVE_NODE_DEF.0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A ring file with one ring per list of records, as a recorder would leave it.
    fn image_bytes(per_ring: usize, rings: &[(u64, Vec<[u64; RECORD_WORDS]>)]) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES + rings.len() * ring_stride(per_ring)];
        bytes[..48].copy_from_slice(&encode_header([7; 16], 42, rings.len() as u32, per_ring as u32));
        for (index, (tail, records)) in rings.iter().enumerate() {
            let ring = &mut bytes[PAGE_BYTES + index * ring_stride(per_ring)..];
            ring[..4].copy_from_slice(&(100 + index as u32).to_le_bytes());
            ring[RING_HEAD_AT..][..8].copy_from_slice(&(tail + records.len() as u64).to_le_bytes());
            ring[RING_TAIL_AT..][..8].copy_from_slice(&tail.to_le_bytes());
            for (number, words) in (*tail..).zip(records) {
                let at = RING_RECORDS_AT + (number % per_ring as u64) as usize * RECORD_BYTES;
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

    #[test]
    fn a_ring_of_version_1_is_read() {
        let mut bytes = image_bytes(8, &[(0, vec![block_event(0).to_words()])]);
        bytes[8] = 1;
        let crc = header_crc(&bytes[..48]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(RingImage::decode(&bytes).unwrap().records, [Record::Event(block_event(0))]);
        bytes[8] = 3;
        let crc = header_crc(&bytes[..48]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(RingImage::decode(&bytes), Err(RingError::Version(3)));
    }

    #[test]
    fn a_foreign_or_damaged_file_is_refused() {
        assert_eq!(RingImage::decode(b"hello"), Err(RingError::NotARing));
        let mut bytes = image_bytes(8, &[]);
        bytes[40] ^= 1;
        assert_eq!(RingImage::decode(&bytes), Err(RingError::NotARing));
    }

    #[test]
    fn the_first_page_says_how_much_there_is_to_read() {
        let bytes = image_bytes(8, &[(0, vec![]), (0, vec![])]);
        assert_eq!(RingImage::file_bytes(&bytes[..PAGE_BYTES]), Ok(bytes.len() as u64));
        assert_eq!(RingImage::file_bytes(&bytes[..100]), Err(RingError::NotARing));
        let mut page = vec![0; PAGE_BYTES];
        page[..48].copy_from_slice(&encode_header([0; 16], 1, u32::MAX, u32::MAX));
        assert!(matches!(RingImage::file_bytes(&page), Err(RingError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn any_ring_contents_are_read_without_panic(
            garbage in vec(any::<u8>(), 0..3000), per_ring in 0u32..32, rings in 0u32..4,
        ) {
            let mut bytes = vec![0; PAGE_BYTES];
            bytes[..48].copy_from_slice(&encode_header([0; 16], 1, rings, per_ring));
            bytes.extend_from_slice(&garbage);
            let image = RingImage::decode(&bytes).unwrap();
            prop_assert!(image.records.len() <= bytes.len() / RECORD_BYTES + 1);
        }
    }
}
