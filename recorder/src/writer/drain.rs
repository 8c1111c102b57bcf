//! What the writer takes from the rings at a time.
//!
//! Constraint: the rings hold 47 MiB when all are full (where nothing else was asked for), decoded it is twice as much, and the
//! program's memory is not ours. Consequence: a batch is bounded, by records and so by the bytes of definitions too; its events go
//! into their block a few at a time; and it is written, and its tails are moved, before the next one is taken.

use gpumemtrace_format::ring::{Record, RecordDecoder};
use gpumemtrace_format::{CodeDef, Event, NativeNode, PyNode, ThreadId};

use crate::ring::geometry::RINGS;
use crate::ring::protocol::ring::RingWords;
use crate::session::Session;

/// Records in one batch, and one definition more, where the largest ring does not have fewer.
const MOST_RECORDS: usize = 1 << 17;
/// Events that are held at a time.
const EVENTS_AT_A_TIME: usize = 4096;

/// How far a round goes in each ring: to where they stood when it began. Who fills its ring all the time cannot keep the writer
/// from the others.
pub(crate) struct DrainLimit([u64; RINGS]);

impl DrainLimit {
    /// Begins one.
    pub(crate) fn begin(session: &Session) -> Self {
        let mut heads = [0; RINGS];
        for (index, _) in session.owners() {
            heads[index] = session.shared.ring(index).shown();
        }
        Self(heads)
    }
}

/// Records, by what they are.
#[derive(Default, Debug)]
pub(crate) struct RecordBatch {
    events: Vec<Event>,
    pub(crate) codes: Vec<CodeDef>,
    pub(crate) py_nodes: Vec<PyNode>,
    pub(crate) native_nodes: Vec<NativeNode>,
    /// Rings, and up to where they may be emptied when this is written.
    pub(crate) tails: Vec<(usize, u64)>,
    /// Records that made no sense.
    pub(crate) malformed: u64,
}

impl RecordBatch {
    /// Takes what is complete in the rings from number `first` on, and gives the events to `put`; returns where to go on, `None`
    /// after the last. When closing, a call that has not returned is taken as it is: nobody will wait for it.
    pub(crate) fn fill(
        &mut self,
        (session, round): (&Session, &DrainLimit),
        first: usize,
        is_closing: bool,
        put: &mut dyn FnMut(&[Event]),
    ) -> Option<usize> {
        self.clear();
        let most_records = MOST_RECORDS.min(session.shared.largest_ring());
        let mut records = 0;
        for (index, thread) in session.owners().filter(|(index, _)| *index >= first) {
            let ring = session.shared.ring(index);
            let mut left = round.0[index].saturating_sub(ring.emptied());
            if left == 0 {
                continue;
            }
            let mut decoder = RecordDecoder::new(ThreadId(thread));
            let tail = ring.take(is_closing, |words| {
                match decoder.push(words) {
                    Some(Record::Event(event)) => self.events.push(event),
                    Some(Record::Code(code)) => self.codes.push(code),
                    Some(Record::PyNode(node)) => self.py_nodes.push(node),
                    Some(Record::NativeNode(node)) => self.native_nodes.push(node),
                    None => {}
                }
                if self.events.len() == EVENTS_AT_A_TIME {
                    put(&self.events);
                    self.events.clear();
                }
                records += 1;
                left -= 1;
                // Never between the records of one definition: what is taken is given back.
                left > 0 && (records < most_records || !decoder.is_between_records())
            });
            put(&self.events);
            self.events.clear();
            self.malformed += decoder.malformed();
            self.tails.push((index, tail));
            if records >= most_records {
                return Some(index);
            }
        }
        None
    }

    fn clear(&mut self) {
        self.codes.clear();
        self.py_nodes.clear();
        self.native_nodes.clear();
        self.tails.clear();
        self.malformed = 0;
    }
}
