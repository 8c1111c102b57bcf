//! The thread-local state of the hook path, and how a thread gets a ring.
//!
//! Thread-local destructors run in no defined order, and some of them free GPU memory. So the state
//! is a few plain words without a destructor. Everything larger lies in the thread's
//! [`ThreadBlock`]. A ring passes to another thread only after its owner has ended.

use std::cell::Cell;

use gpumemtrace_format::{Counter, NodeId};

use crate::config::FullRingPolicy;
use crate::diagnostics::print_diagnostic;
use crate::per_thread;
use crate::platform::clock;
use crate::ring::protocol::ring::Space;
use crate::session::thread_block::{ThreadBlock, ThreadRingProducer};
use crate::session::{Session, WakeReason};

/// The thread-local words of the calling thread.
#[derive(Debug)]
pub(crate) struct ThreadState {
    /// The session that `block` belongs to. Any other value makes `block` stale (a fork, a new
    /// session).
    generation: Cell<u32>,
    /// True while the thread is inside a hook.
    pub(crate) in_hook: Cell<bool>,
    block: Cell<*mut ThreadBlock>,
    /// Events since this thread found no ring; every [`RETRY_EVERY`]th event tries again.
    events_without_ring: Cell<u32>,
    /// The forward stack of the autograd node that this thread computes ([`super::autograd`]).
    pub(crate) autograd_stack: Cell<NodeId>,
}

per_thread! {
    /// Runs `body` with the state of the calling thread.
    pub(crate) fn with_thread_state(&ThreadState) = ThreadState {
        generation: Cell::new(0),
        in_hook: Cell::new(false),
        block: Cell::new(std::ptr::null_mut()),
        events_without_ring: Cell::new(0),
        autograd_stack: Cell::new(NodeId::NONE),
    }, "gpumemtrace_thread_local"
}

/// How long a thread waits for space in its ring before it stops the recording.
const SPACE_PATIENCE_NS: u64 = 10_000_000_000;
/// Sleep between two checks of a full ring, doubled each time. Frequent polling by many threads
/// would take the processor from the writer.
const SHORTEST_NAP_US: u32 = 50;
const LONGEST_NAP_US: u32 = 1_600;
/// A thread without a ring asks for one again after this many events.
const RETRY_EVERY: u32 = 1024;

impl ThreadRingProducer {
    /// Makes sure that `records` records fit. Returns false if they must be dropped. May wait,
    /// according to [`FullRingPolicy`].
    #[inline]
    pub(crate) fn reserve(&mut self, session: &Session, records: u64) -> bool {
        match self.space(records) {
            Space::Ample => true,
            Space::Low => {
                session.wake_writer(WakeReason::RingIsLow);
                true
            }
            Space::Full => self.wait_for_space(session, records),
        }
    }

    #[cold]
    fn wait_for_space(&mut self, session: &Session, records: u64) -> bool {
        session.wake_writer(WakeReason::ThreadWaits);
        if session.on_full == FullRingPolicy::Drop || self.ring().is_none() {
            return false;
        }
        session.rings.count(Counter::RingWaits);
        let begin = clock::now_ns();
        let mut nap_us = SHORTEST_NAP_US;
        loop {
            session.wake_writer(WakeReason::ThreadWaits);
            // SAFETY: a plain sleep; the time is valid.
            unsafe { libc::usleep(nap_us) };
            nap_us = (nap_us * 2).min(LONGEST_NAP_US);
            if self.space(records) != Space::Full {
                return true;
            }
            if session.is_stopped() {
                return false;
            }
            if clock::now_ns() - begin > SPACE_PATIENCE_NS {
                session.stop_with(&["the trace cannot be written fast enough: nothing was written for 10 s"]);
                return false;
            }
        }
    }
}

impl ThreadState {
    /// The calling thread's block, claimed at its first event. Returns `None` if this event cannot
    /// be recorded; it has then been counted as dropped.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the block is behind a pointer that only this thread holds")]
    pub(crate) fn block(&self, session: &Session) -> Option<&mut ThreadBlock> {
        if self.generation.get() != session.generation || self.block.get().is_null() {
            self.claim_block(session);
        }
        // SAFETY: the block belongs to this thread, which holds the ring's ownership word.
        // `in_hook` keeps the thread from entering twice, so this is the only reference.
        let block = unsafe { self.block.get().as_mut() };
        if block.is_none() {
            session.rings.count(Counter::DroppedEvents);
        }
        block
    }

    #[cold]
    fn claim_block(&self, session: &Session) {
        let is_first_try = self.generation.get() != session.generation;
        if is_first_try {
            self.generation.set(session.generation);
            self.block.set(std::ptr::null_mut());
            self.events_without_ring.set(0);
        } else {
            let events = self.events_without_ring.get().wrapping_add(1);
            self.events_without_ring.set(events);
            if !events.is_multiple_of(RETRY_EVERY) {
                return;
            }
        }
        match session.claim_ring(is_first_try) {
            Some((index, ring, block)) => {
                // SAFETY: the block is ours alone from now on. Zero bytes are a valid block, and so
                // is one that an ended thread left.
                let block_ref = unsafe { &mut *block };
                block_ref.native.forget();
                block_ref.python.forget();
                block_ref.native.limit_depth(session.depth);
                block_ref.python.limit_depth(session.depth);
                block_ref.producer = ThreadRingProducer::resume(ring, index);
                self.block.set(block);
            }
            None if is_first_try => {
                session.rings.count(Counter::ThreadsWithoutRing);
                if session.is_first_without_ring() {
                    print_diagnostic(&[
                        "no room for another thread's events (more than 96 threads at a time, or the disk is full); ",
                        "they are counted as dropped.",
                    ]);
                }
            }
            None => {}
        }
    }
}
