//! The ring file `<trace>.ring`: events between the call and the trace.
//!
//! The traced process may be killed at any instruction, and its threads never wait for each other.
//! So the file is mapped shared (the kernel keeps what was stored), each thread fills a ring of its
//! own and the writer thread drains it. The writer advances the tail of a ring only after its
//! records are in the trace. After a kill, a reader takes the trace and then the records between
//! tail and head. If the process died between writing a block and advancing the tail, those records
//! are in both, with the same `seq`.
//!
//! ```text
//! file = page 0, then ring 0, ring 1, ...          all numbers little-endian; offsets in bytes
//! page 0 (4096): 0 magic:8 "gpumtrr\n"   8 version:u32   12 crc32c(bytes 0..12, 16..48 and 256..320):u32
//!                16 trace_id:16   32 pid:u32   44 record_bytes:u32
//!                64 end:u64 (`check.rs`)   72 end_time_ns:u64   80 trace_bytes:u64 (length of the trace
//!                when it was last written to)
//!                256 (rings:u32 records_per_ring:u32) x 8: classes of rings, one after the other
//!                512 next_seq:u64          1024 counters:u64 x 64   1536 second copy of the counters
//! ring (256 + records * 64, rounded up to 4096):
//!                0 thread:u32 (0: never used)   64 head:u64   128 tail:u64   136 second copy of the tail
//!                256 records
//! ```
//! Record number n is in slot n mod the records of the ring; its last word holds a check
//! (`check.rs`). Definitions are records too (`records.rs`).

mod check;
mod image;
mod layout;
mod records;

pub use check::{clear_check, decode_end_word, encode_end_word, is_in_flight, seal, seal_completing, unseal};
pub use image::{MAX_RING_FILE_BYTES, RingError, RingImage, RingProgress, RingSource};
pub use layout::{MAX_RING_CLASSES, RingLayout, ring_bytes};
pub use records::{
    DATA_BYTES_PER_RECORD, RecordDecoder, RingRecord, encode_code_head_record, encode_code_records,
    encode_native_node_record, encode_py_node_record,
};

use crate::event::RECORD_BYTES;
use layout::{CLASSES_AT, CLASSES_END};

/// First bytes of a ring file.
pub const RING_MAGIC: [u8; 8] = *b"gpumtrr\n";
/// Version of the ring file.
const RING_VERSION: u32 = 1;
/// Length of page 0; rings are rounded up to a multiple of it.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of page 0 that the recorder writes before the file has its name.
pub const HEADER_BYTES: usize = CLASSES_END;
/// Offset in page 0 of the end word.
pub const END_AT: usize = 64;
/// Offset in page 0 of the time of the end.
pub const END_TIME_AT: usize = 72;
/// Offset in page 0 of the length of the trace.
pub const TRACE_BYTES_AT: usize = 80;
/// Offset in page 0 of the counter that orders all events.
pub const NEXT_SEQ_AT: usize = 512;
/// Offset in page 0 of the counters.
pub const COUNTERS_AT: usize = 1024;
/// Offset in page 0 of the second copy of the counters.
pub const COUNTERS_AGAIN_AT: usize = 1536;
/// Offset in a ring of the thread that owns it.
pub const RING_THREAD_AT: usize = 0;
/// Offset in a ring of its head.
pub const RING_HEAD_AT: usize = 64;
/// Offset in a ring of its tail.
pub const RING_TAIL_AT: usize = 128;
/// Offset in a ring of the second copy of its tail.
pub const RING_TAIL_AGAIN_AT: usize = 136;
/// Offset in a ring of its records.
pub const RING_RECORDS_AT: usize = 256;
/// End word: `exit` ran to its end.
pub const END_EXIT: u32 = 1;
/// End word: `_exit`, with its status in the high half.
pub const END_QUICK_EXIT: u32 = 2;
/// End word: recording stopped before the process ended.
pub const END_STOPPED: u32 = 3;
/// Status of [`END_STOPPED`]: the recorder's thread had ended. Otherwise the status is 0.
pub const STOPPED_WITHOUT_WRITER: i32 = 1;
/// What [`STOPPED_WITHOUT_WRITER`] stands for, in the form of the reasons that the recorder stores.
pub const NO_WRITER_REASON: &str = "the recorder's thread was ended, as by a seccomp filter";

/// The start of page 0. Later only the end word, its time and the length of the trace change in it.
pub fn encode_header(trace_id: [u8; 16], pid: u32, layout: &RingLayout) -> [u8; HEADER_BYTES] {
    let mut header = [0u8; HEADER_BYTES];
    header[..8].copy_from_slice(&RING_MAGIC);
    header[8..12].copy_from_slice(&RING_VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&trace_id);
    header[32..36].copy_from_slice(&pid.to_le_bytes());
    header[44..48].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    layout.encode(&mut header);
    let crc = header_crc(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// CRC-32C of the parts of page 0 that never change.
fn header_crc(header: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..48]);
    crc32c::crc32c_append(crc, &header[CLASSES_AT..CLASSES_END])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
