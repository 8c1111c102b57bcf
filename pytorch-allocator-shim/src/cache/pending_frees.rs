//! Blocks that were given back while another stream may still use them.
//!
//! Constraint: only an event on that stream tells when it is done, and while a graph is captured no event may be recorded or
//! asked. Consequence: blocks wait in a queue for each stream, of which only the front is asked, because a stream does things
//! in order; those that are given back during a capture wait apart, until it is over.

use std::collections::{BTreeMap, VecDeque};

use super::blocks::BlockId;
use super::host::EventId;

/// All of a device's.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queues: BTreeMap<u64, VecDeque<(EventId, BlockId)>>,
    apart: Vec<BlockId>,
}

impl Waiting {
    /// A block waits for an event on a stream.
    pub(crate) fn push(&mut self, stream: u64, event: EventId, block: BlockId) {
        self.queues.entry(stream).or_default().push_back((event, block));
    }

    /// A block waits until events may be recorded.
    pub(crate) fn put_apart(&mut self, block: BlockId) {
        self.apart.push(block);
    }

    /// The blocks for which no event could be recorded so far.
    pub(crate) fn take_apart(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.apart)
    }

    /// True if none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.apart.is_empty()
    }

    /// One whose event is done, if there is any.
    pub(crate) fn next_done(
        &mut self,
        mut is_done: impl FnMut(EventId) -> bool,
    ) -> Option<(EventId, BlockId)> {
        let stream =
            *self.queues.iter().find(|(_, queue)| queue.front().is_some_and(|front| is_done(front.0)))?.0;
        self.pop(stream)
    }

    /// Any, with its stream.
    pub(crate) fn next(&mut self) -> Option<(u64, EventId, BlockId)> {
        let stream = *self.queues.keys().next()?;
        self.pop(stream).map(|(event, id)| (stream, event, id))
    }

    fn pop(&mut self, stream: u64) -> Option<(EventId, BlockId)> {
        let queue = self.queues.get_mut(&stream)?;
        let front = queue.pop_front();
        // Streams come and go.
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        front
    }
}
