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
//! page 0 (4096): 0 magic:8 "gpumtrr\n"   8 version:u32   12 crc32c(bytes 0..12, 16..48 and 256..320):u32
//!                16 trace_id:16   32 pid:u32   44 record_bytes:u32
//!                64 end:u64 (`check.rs`)   72 end_time_ns:u64   80 trace_bytes:u64 (length of the trace when last written to)
//!                256 (rings:u32 records_per_ring:u32) x 8: classes of rings, one behind the other
//!                512 next_seq:u64          1024 counters:u64 x 64   1536 the counters again
//! ring (256 + records * 64, rounded up to 4096):
//!                0 thread:u32 (0 = never used)   64 head:u64   128 tail:u64   136 tail again   256 records
//! ```
//! Record number n is at slot n mod the ring's records; its last word has a check (`check.rs`). Definitions travel as records too:
//!
//! ```text
//! CODE_DEF   word 0 id, 1 payload bytes, 2 first line (signed), 3 python | truncated << 16; then ceil(bytes / 56)
//! CODE_DATA  words 0 to 6: payload = file_len:u32 name_len:u32 table_len:u32 file name table
//! PY_NODE    word 0 id | parent << 32, 1 code, 2 offset (signed)
//! NATIVE_NODE word 0 id | parent << 32, 1 return address
//! DETAIL     word 0 bytes asked for, 1 stream, 2 pool: of the event in the next record, if it does not fit into that
//! ```

mod check;
mod image;
mod shape;

pub use check::{end_of, end_word, is_in_flight, seal, seal_completing, unseal, without_check};
pub use image::{MAX_RING_FILE_BYTES, RingError, RingImage};
pub use shape::{CLASSES, Shape, ring_bytes};

use crate::defs::{CodeDef, CodeId, MAX_TEXT_BYTES, NativeNode, NodeId, PyNode};
use crate::event::{Detail, Event, EventKind, RECORD_BYTES, RECORD_WORDS, ThreadId};
use crate::links::Link;
use shape::{CLASSES_AT, CLASSES_END};

/// First bytes of a ring file.
pub const RING_MAGIC: [u8; 8] = *b"gpumtrr\n";
/// Version of this layout.
pub const RING_VERSION: u32 = 1;
/// Size of page 0, and what rings are rounded up to.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of page 0 that are written before anybody knows of the file; some of them belong to later ones.
pub const HEADER_BYTES: usize = CLASSES_END;
/// Offset of the end word in page 0.
pub const END_AT: usize = 64;
/// Offset of the time of the end.
pub const END_TIME_AT: usize = 72;
/// Offset of the length of the trace.
pub const TRACE_BYTES_AT: usize = 80;
/// Offset of the counter that orders all events.
pub const NEXT_SEQ_AT: usize = 512;
/// Offset of the counters.
pub const COUNTERS_AT: usize = 1024;
/// Offset of the counters, once more.
pub const COUNTERS_AGAIN_AT: usize = 1536;
/// Offset of the owner in a ring.
pub const RING_THREAD_AT: usize = 0;
/// Offset of the head in a ring.
pub const RING_HEAD_AT: usize = 64;
/// Offset of the tail in a ring.
pub const RING_TAIL_AT: usize = 128;
/// Offset of the tail in a ring, once more.
pub const RING_TAIL_AGAIN_AT: usize = 136;
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

/// What page 0 says from its start on, and never again otherwise.
pub fn encode_header(trace_id: [u8; 16], pid: u32, shape: &Shape) -> [u8; HEADER_BYTES] {
    let mut header = [0u8; HEADER_BYTES];
    header[..8].copy_from_slice(&RING_MAGIC);
    header[8..12].copy_from_slice(&RING_VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&trace_id);
    header[32..36].copy_from_slice(&pid.to_le_bytes());
    header[44..48].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    shape.encode(&mut header);
    let crc = header_crc(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// CRC-32C of the parts of page 0 that never change.
fn header_crc(header: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..48]);
    crc32c::crc32c_append(crc, &header[CLASSES_AT..CLASSES_END])
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

    /// Passes over a record that is not as it was: what it belonged to is lost with it.
    pub fn skip(&mut self) {
        self.malformed += 1;
        (self.code, self.detail) = (None, None);
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
