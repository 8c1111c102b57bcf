//! Freed blocks that another stream may still use.
//!
//! An event on each such stream shows when it is done with the block. A stream completes its
//! events in order, so blocks wait in one queue per stream, and only the front event is queried.
//! During a CUDA graph capture no event may be recorded or queried; blocks that are freed then are
//! deferred until the capture has ended.

use std::collections::{BTreeMap, VecDeque};

use super::ids::{BlockId, EventId, FreeTicket};

/// The pending frees of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingFrees {
    queues: BTreeMap<u64, VecDeque<(EventId, BlockId)>>,
    deferred: Vec<BlockId>,
    /// Blocks without events; their completion is reported from outside.
    held: BTreeMap<FreeTicket, BlockId>,
    next_ticket: u64,
}

impl PendingFrees {
    /// Queues a block behind an event that was recorded on `stream`.
    pub(crate) fn push(&mut self, stream: u64, event: EventId, block: BlockId) {
        self.queues.entry(stream).or_default().push_back((event, block));
    }

    /// Keeps a block until its events can be recorded.
    pub(crate) fn defer(&mut self, block: BlockId) {
        self.deferred.push(block);
    }

    /// Keeps a block until it is taken by its ticket.
    pub(crate) fn hold(&mut self, block: BlockId) -> FreeTicket {
        let ticket = FreeTicket(self.next_ticket);
        self.next_ticket += 1;
        self.held.insert(ticket, block);
        ticket
    }

    /// Removes and returns the block of this ticket.
    pub(crate) fn take_held(&mut self, ticket: FreeTicket) -> Option<BlockId> {
        self.held.remove(&ticket)
    }

    /// Removes and returns the held blocks that `is_wanted` accepts, in the order of their frees.
    pub(crate) fn take_held_where(&mut self, is_wanted: impl Fn(BlockId) -> bool) -> Vec<BlockId> {
        self.held.extract_if(.., |_, id| is_wanted(*id)).map(|(_, id)| id).collect()
    }

    /// Removes and returns the deferred blocks, oldest first.
    pub(crate) fn take_deferred(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.deferred)
    }

    /// Whether no event is outstanding and none is to be recorded. Held blocks do not count.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.deferred.is_empty()
    }

    /// Removes and returns one block with a completed event.
    pub(crate) fn pop_done(
        &mut self,
        mut is_done: impl FnMut(EventId) -> bool,
    ) -> Option<(EventId, BlockId)> {
        let stream =
            *self.queues.iter().find(|(_, queue)| queue.front().is_some_and(|front| is_done(front.0)))?.0;
        self.pop_from(stream)
    }

    /// Removes and returns any queued block, with its stream.
    pub(crate) fn pop_any(&mut self) -> Option<(u64, EventId, BlockId)> {
        let stream = *self.queues.keys().next()?;
        self.pop_from(stream).map(|(event, id)| (stream, event, id))
    }

    /// Removes and returns the queued blocks that `is_wanted` accepts, with stream and event.
    pub(crate) fn take_where(&mut self, is_wanted: impl Fn(BlockId) -> bool) -> Vec<(u64, EventId, BlockId)> {
        let mut taken = Vec::new();
        self.queues.retain(|stream, queue| {
            queue.retain(|(event, id)| {
                let keeps = !is_wanted(*id);
                if !keeps {
                    taken.push((*stream, *event, *id));
                }
                keeps
            });
            !queue.is_empty()
        });
        taken
    }

    fn pop_from(&mut self, stream: u64) -> Option<(EventId, BlockId)> {
        let queue = self.queues.get_mut(&stream)?;
        let front = queue.pop_front();
        // Programs create and destroy streams; empty queues must not pile up.
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        front
    }
}
