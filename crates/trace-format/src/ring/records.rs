//! The records of a ring: events, and definitions in the order of their first use.
//!
//! ```text
//! CODE_DEF    word 0 id, 1 payload bytes, 2 first line (signed), 3 python | truncated << 16
//! CODE_DATA   ceil(payload bytes / 56) records right after it: words 0 to 6 of each are the payload
//!             payload = file_len:u32 name_len:u32 table_len:u32 file name table
//! PY_NODE     word 0 id | parent << 32, 1 code, 2 offset (signed), 3 link
//! NATIVE_NODE word 0 id | parent << 32, 1 return address
//! DETAIL      word 0 requested bytes, 1 stream, 2 pool: of the event in the next record, if its own
//!             record cannot hold them
//! ```

use crate::definitions::{CodeDef, FrameLink, MAX_TEXT_BYTES, NativeNode, PyNode};
use crate::event::{Detail, Event, EventKind, RECORD_BYTES, RECORD_WORDS};
use crate::ids::{CodeId, NodeId, ThreadId};

/// Payload bytes in one CODE_DATA record.
pub const DATA_BYTES_PER_RECORD: usize = RECORD_BYTES - 8;

/// An event or a definition from a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RingRecord {
    /// An event, with its detail.
    Event(Event),
    /// A Python code object.
    Code(CodeDef),
    /// The definition of a Python frame.
    PyNode(PyNode),
    /// The definition of a native frame.
    NativeNode(NativeNode),
}

/// Decodes the records of one ring, in order: in the writer thread and in the reader of a ring
/// file.
#[derive(Debug)]
pub struct RecordDecoder {
    thread: ThreadId,
    code: Option<(CodeDef, Vec<u8>, usize)>,
    detail: Option<Detail>,
    malformed: u64,
}

impl RecordDecoder {
    /// A decoder for the ring of this thread.
    pub fn new(thread: ThreadId) -> Self {
        Self { thread, code: None, detail: None, malformed: 0 }
    }

    /// True if no definition and no detail is half read, so that the caller may stop here.
    pub fn is_between_records(&self) -> bool {
        self.code.is_none() && self.detail.is_none()
    }

    /// Number of records that could not be used.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Skips a record that is damaged, and what it was a part of.
    pub fn skip(&mut self) {
        self.malformed += 1;
        (self.code, self.detail) = (None, None);
    }

    /// Takes the next record; returns what it completes.
    pub fn push(&mut self, words: &[u64; RECORD_WORDS]) -> Option<RingRecord> {
        let kind = EventKind(words[7] as u8);
        if self.code.is_some() && kind != EventKind::CODE_DATA {
            self.code = None;
            self.malformed += 1;
        }
        let detail = self.detail.take();
        self.malformed += u64::from(detail.is_some() && kind.is_ring_only());
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
                Some(RingRecord::Code(code))
            }
            EventKind::PY_NODE_DEF => Some(RingRecord::PyNode(PyNode {
                id: NodeId(words[0] as u32),
                parent: NodeId((words[0] >> 32) as u32),
                code: CodeId(words[1] as u32),
                offset_bytes: words[2] as i32,
                link: FrameLink::from_number(words[3] as u8),
            })),
            EventKind::NATIVE_NODE_DEF => Some(RingRecord::NativeNode(NativeNode {
                id: NodeId(words[0] as u32),
                parent: NodeId((words[0] >> 32) as u32),
                return_address: words[1],
            })),
            _ => {
                let event = Event::from_words(words, self.thread);
                self.malformed += u64::from(event.is_none());
                event.map(|event| RingRecord::Event(Event { detail: detail.or(event.detail), ..event }))
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

/// The records of a code definition. The hook writes the same records without allocating.
#[doc(hidden)]
pub fn encode_code_records(code: &CodeDef) -> Vec<[u64; RECORD_WORDS]> {
    let mut payload = Vec::new();
    for len in [code.file.len(), code.name.len(), code.line_table.len()] {
        payload.extend_from_slice(&(len as u32).to_le_bytes());
    }
    payload.extend_from_slice(code.file.as_bytes());
    payload.extend_from_slice(code.name.as_bytes());
    payload.extend_from_slice(&code.line_table);
    let mut records =
        vec![encode_code_head_record(code.id, payload.len(), code.first_line, code.python, code.truncated)];
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

/// The CODE_DEF record: `payload_bytes` follow in CODE_DATA records.
pub fn encode_code_head_record(
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

/// The record of a Python node, with its link.
pub fn encode_py_node_record(node: PyNode) -> [u64; RECORD_WORDS] {
    let ids = u64::from(node.id.0) | u64::from(node.parent.0) << 32;
    let offset = i64::from(node.offset_bytes) as u64;
    let link = u64::from(node.link.number());
    [ids, u64::from(node.code.0), offset, link, 0, 0, 0, u64::from(EventKind::PY_NODE_DEF.0)]
}

/// The record of a native node. `unloads` is the number of unloads of modules before its capture,
/// which only the recorder reads.
pub fn encode_native_node_record(node: NativeNode, unloads: u64) -> [u64; RECORD_WORDS] {
    let ids = u64::from(node.id.0) | u64::from(node.parent.0) << 32;
    [ids, node.return_address, unloads, 0, 0, 0, 0, u64::from(EventKind::NATIVE_NODE_DEF.0)]
}
