//! What the writer takes from the rings at a time.
//!
//! Constraint: the rings hold 48 MiB when all are full (where nothing else was asked for), decoded it is twice as much, and the program's memory is not ours.
//! Consequence: a batch is bounded, by records and so by the bytes of definitions too; it is written and its tails are moved
//! before the next one is taken, and its buffers are used again.

use gpumemtrace_format::ring::{Record, RecordDecoder};
use gpumemtrace_format::{CodeDef, Event, NativeNode, PyNode, ThreadId};

use crate::protocol::ring::RingWords;
use crate::session::Session;

/// A batch is so many full rings, and one definition more. More than one: who fills its ring all the time cannot keep the writer
/// from the others.
const MOST_RINGS: usize = 4;

/// Records, by what they are.
#[derive(Default, Debug)]
pub(crate) struct Batch {
    pub(crate) events: Vec<Event>,
    pub(crate) codes: Vec<CodeDef>,
    pub(crate) py_nodes: Vec<PyNode>,
    pub(crate) native_nodes: Vec<NativeNode>,
    /// Rings, and up to where they may be emptied when this is written.
    pub(crate) tails: Vec<(usize, u64)>,
    /// Records that made no sense.
    pub(crate) malformed: u64,
}

impl Batch {
    /// Takes what is complete in the rings from number `first` on; returns where to go on, `None` after the last. When closing,
    /// a call that has not returned is taken as it is: nobody will wait for it.
    pub(crate) fn fill(&mut self, session: &Session, first: usize, is_closing: bool) -> Option<usize> {
        self.clear();
        let most_records = MOST_RINGS * session.shared.records_per_ring();
        let mut records = 0;
        for (index, thread) in session.owners().filter(|(index, _)| *index >= first) {
            let mut decoder = RecordDecoder::new(ThreadId(thread));
            let tail = session.shared.ring(index).take(is_closing, |words| {
                match decoder.push(words) {
                    Some(Record::Event(event)) => self.events.push(event),
                    Some(Record::Code(code)) => self.codes.push(code),
                    Some(Record::PyNode(node)) => self.py_nodes.push(node),
                    Some(Record::NativeNode(node)) => self.native_nodes.push(node),
                    None => {}
                }
                records += 1;
                // Never between the records of one definition: what is taken is given back.
                records < most_records || !decoder.is_between_records()
            });
            self.malformed += decoder.malformed();
            self.tails.push((index, tail));
            if records >= most_records {
                return Some(index);
            }
        }
        None
    }

    fn clear(&mut self) {
        self.events.clear();
        self.codes.clear();
        self.py_nodes.clear();
        self.native_nodes.clear();
        self.tails.clear();
        self.malformed = 0;
    }
}
