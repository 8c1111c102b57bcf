//! Moves complete records from the rings into batches.
//!
//! Full rings hold 47 MiB with default settings, decoded records take twice as much, and the memory
//! belongs to the program. So a batch has a maximum number of records, which also limits the bytes
//! of its definitions. Events leave the batch in small slices while it is filled. The writer saves
//! a batch and advances the tails before it fills the next one.

use std::io;

use gpumemtrace_format::ring::{RecordDecoder, RingRecord};
use gpumemtrace_format::{CodeDef, Event, NativeNode, PyNode, ThreadId};

use super::damaged_ring_file;
use crate::ring::geometry::RINGS;
use crate::ring::protocol::ring::RingWords;
use crate::session::Session;

/// Records in one batch, or the capacity of the largest ring if that is less. The definition that
/// crosses the limit is completed.
const MAX_RECORDS: usize = 1 << 17;
/// Events that are buffered before they are passed on.
const EVENTS_PER_SLICE: usize = 4096;
/// Records between two checks that the process was not stopped for long, and notes of a step.
const RECORDS_PER_CHECK: usize = 64;

/// How far one drain goes in each ring: to the head as it was when the drain began. A thread that
/// fills its ring all the time cannot keep the writer from the other rings.
pub(crate) struct DrainLimit([u64; RINGS]);

impl DrainLimit {
    pub(crate) fn at_current_heads(session: &Session) -> Self {
        let mut heads = [0; RINGS];
        for (index, _) in session.rings_in_use() {
            heads[index] = session.rings.ring(index).published();
        }
        Self(heads)
    }
}

/// Records of one batch, by kind.
#[derive(Default, Debug)]
pub(crate) struct RecordBatch {
    events: Vec<Event>,
    pub(crate) codes: Vec<CodeDef>,
    pub(crate) py_nodes: Vec<PyNode>,
    pub(crate) native_nodes: Vec<NativeNode>,
    /// Ring numbers, each with the tail to set once this batch is saved.
    pub(crate) tails: Vec<(usize, u64)>,
    /// Number of records that were taken.
    pub(crate) records: usize,
    /// Number of records that could not be decoded.
    pub(crate) malformed: u64,
}

impl RecordBatch {
    /// Fills the batch with complete records from ring `first` on, and passes the events to `put`.
    ///
    /// Returns the ring to continue with, or `None` after the last one; an error if another process
    /// has truncated the ring file. If the recording is
    /// closing, a call in flight is taken as it is, because the writer will not wait for it.
    pub(crate) fn fill(
        &mut self,
        (session, limit): (&Session, &DrainLimit),
        first: usize,
        is_closing: bool,
        put: &mut dyn FnMut(&[Event]),
    ) -> io::Result<Option<usize>> {
        self.clear();
        let max_records = MAX_RECORDS.min(session.rings.largest_ring_records());
        let mut is_lost = false;
        for (index, thread) in session.rings_in_use().filter(|(index, _)| *index >= first) {
            let ring = session.rings.ring(index);
            let mut left = limit.0[index].saturating_sub(ring.released());
            if left == 0 {
                continue;
            }
            let mut decoder = RecordDecoder::new(ThreadId(thread));
            let tail = ring.visit_complete_records(is_closing, |words| {
                match decoder.push(words) {
                    Some(RingRecord::Event(event)) => self.events.push(event),
                    Some(RingRecord::Code(code)) => self.codes.push(code),
                    Some(RingRecord::PyNode(node)) => self.py_nodes.push(node),
                    Some(RingRecord::NativeNode(node)) => {
                        self.native_nodes.push(session.unloaded.place(node, words[2] as u32));
                    }
                    None => {}
                }
                if self.events.len() == EVENTS_PER_SLICE {
                    put(&self.events);
                    self.events.clear();
                }
                self.records += 1;
                left -= 1;
                if self.records.is_multiple_of(RECORDS_PER_CHECK) {
                    session.note_step();
                    if !session.secure_rings() {
                        is_lost = true;
                        return false;
                    }
                }
                // Never stop inside a definition: the slots of visited records are released.
                left > 0 && (self.records < max_records || !decoder.is_between_records())
            });
            if is_lost {
                return Err(damaged_ring_file());
            }
            put(&self.events);
            self.events.clear();
            self.malformed += decoder.malformed();
            self.tails.push((index, tail));
            if self.records >= max_records {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn clear(&mut self) {
        self.codes.clear();
        self.py_nodes.clear();
        self.native_nodes.clear();
        self.tails.clear();
        self.records = 0;
        self.malformed = 0;
    }
}
