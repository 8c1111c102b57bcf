//! Blocks that other streams use: events decide when they are free.

use super::CachingAllocator;
use crate::backend::{CacheBackend, TraceAction};
use crate::ids::{BlockId, EventId, FreeTicket, PoolIndex, ProgramBlock};

impl<B: CacheBackend> CachingAllocator<B> {
    /// Notes that another stream uses a block: it must not be reused before that stream is done.
    pub fn record_stream(&mut self, addr: u64, stream: u64) {
        if let Some(id) = self.allocated.get(&addr) {
            let block = &mut self.blocks[*id];
            if stream != block.stream && !block.stream_uses.contains(&stream) {
                block.stream_uses.push(stream);
            }
        }
    }

    /// Frees a block for the program, which other streams may still use until
    /// [`finish_free`](Self::finish_free). For replays that know when the events completed.
    pub fn begin_free_live(&mut self, block: ProgramBlock) -> FreeTicket {
        self.request_free(block.0, false);
        self.pending.hold(block.0)
    }

    /// [`begin_free_live`](Self::begin_free_live) of a block of [`alloc`](Self::alloc). `None` if
    /// no live block has this address.
    pub fn begin_free(&mut self, addr: u64) -> Option<FreeTicket> {
        let id = self.allocated.remove(&addr)?;
        Some(self.begin_free_live(ProgramBlock(id)))
    }

    /// Ends a [`begin_free_live`](Self::begin_free_live). False if the block was freed before,
    /// because the allocator waited for all streams.
    pub fn finish_free(&mut self, ticket: FreeTicket) -> bool {
        let Some(id) = self.pending.take_held(ticket) else { return false };
        self.complete_free(id);
        true
    }

    /// Records an event on each stream that used a block. If one fails, the block is deferred.
    pub(super) fn record_stream_events(&mut self, id: BlockId) {
        for stream in std::mem::take(&mut self.blocks[id].stream_uses) {
            match self.backend.record_event(stream) {
                Ok(event) => {
                    self.pending.push(stream, event, id);
                    self.blocks[id].pending_events += 1;
                }
                // Retried later: a block that may be in use is never reused.
                Err(_) => self.blocks[id].stream_uses.push(stream),
            }
        }
        if !self.blocks[id].stream_uses.is_empty() {
            self.pending.defer(id);
        }
    }

    fn record_deferred_events(&mut self) {
        for id in self.pending.take_deferred() {
            self.record_stream_events(id);
        }
    }

    pub(super) fn process_events(&mut self) {
        self.record_deferred_events();
        while let Some((event, id)) = self.pending.pop_done(|event| self.backend.is_event_done(event)) {
            self.complete_event(event, id);
        }
    }

    pub(super) fn wait_for_all_events(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.record_deferred_events();
        while let Some((stream, event, id)) = self.pending.pop_any() {
            if !self.backend.wait_for_event(event) {
                // A block that may be in use is never reused.
                self.blocks[id].stream_uses.push(stream);
                self.pending.defer(id);
            }
            self.complete_event(event, id);
        }
        for id in self.pending.take_held_where(|_| true) {
            self.complete_free(id);
        }
    }

    pub(super) fn wait_for_events_of_pool(&mut self, pool: PoolIndex) {
        self.stats.num_sync_all_streams += 1;
        self.record_deferred_events();
        let of_pool = self.pending.take_where(|id| self.blocks[id].pool == pool);
        for (stream, event, id) in of_pool {
            if !self.backend.wait_for_event(event) {
                self.blocks[id].stream_uses.push(stream);
                self.pending.defer(id);
            }
            self.complete_event(event, id);
        }
        for id in self.pending.take_held_where(|id| self.blocks[id].pool == pool) {
            self.complete_free(id);
        }
    }

    fn complete_event(&mut self, event: EventId, id: BlockId) {
        self.backend.recycle_event(event);
        let block = &mut self.blocks[id];
        block.pending_events -= 1;
        if block.pending_events == 0 && block.stream_uses.is_empty() {
            self.complete_free(id);
        }
    }

    fn complete_free(&mut self, id: BlockId) {
        self.trace(TraceAction::FreeCompleted, id);
        self.free_block(id);
    }
}
