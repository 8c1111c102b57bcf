//! What one thread owns while it records: its ring, its caches, its scratch buffer.
//!
//! Constraint: nothing here may be shared, allocated per event, or need a destructor (thread-local destructors run in an
//! order nobody controls, and some of them free GPU memory). Consequence: the thread-local part is three plain words; the
//! rest lives in one anonymous mapping made with the session, one block per ring, whose pages cost nothing until touched
//! and whose zero bytes are a valid start. A ring goes to another thread only after its owner has ended.

use std::cell::Cell;

use gpumemtrace_format::event::RECORD_WORDS;
use gpumemtrace_format::{CodeId, Counter, NodeId};

use crate::config::FullRingPolicy;
use crate::diagnostics::print_diagnostic;
use crate::per_thread;
use crate::ring::mapping::MappedRing;
use crate::ring::protocol::ring::{self, Space};
use crate::session::{Session, WakeReason};
use crate::stacks::cache::FrameKey;
use crate::stacks::native::NativeStack;
use crate::stacks::python::code::SCRATCH_BYTES;
use crate::stacks::python::memo::PythonStackMemo;

/// The thread-local words.
#[derive(Debug)]
pub(crate) struct ThreadState {
    /// Session the block belongs to; another value means the block is stale (a fork, a new session).
    generation: Cell<u32>,
    /// Set while the thread is inside a hook.
    pub(crate) busy: Cell<bool>,
    block: Cell<*mut ThreadBlock>,
    /// Counts events while there is no ring, to try again now and then.
    without_ring: Cell<u32>,
    /// The forward line's stack, while the thread works for it in the backward pass ([`crate::hot::autograd`]).
    pub(crate) works_for: Cell<NodeId>,
}

per_thread! {
    /// Runs `body` with the thread-local words.
    pub(crate) fn with_local(&ThreadState) = ThreadState {
        generation: Cell::new(0),
        busy: Cell::new(false),
        block: Cell::new(std::ptr::null_mut()),
        without_ring: Cell::new(0),
        works_for: Cell::new(NodeId::NONE),
    }, "gpumemtrace_thread_local"
}

/// A thread's private part of the session. All zero bytes are a valid value.
#[derive(Debug)]
pub(crate) struct ThreadBlock {
    /// The ring and how far it is filled.
    pub(crate) lane: ThreadRingProducer,
    /// The Python stack.
    pub(crate) python: PythonStackMemo,
    /// The native stack.
    pub(crate) native: NativeStack,
    /// Code objects this thread has defined.
    pub(crate) codes: CodeCache,
    /// Where a code object is copied to.
    pub(crate) scratch: [u8; SCRATCH_BYTES],
}

/// The producing end of a ring of the mapping.
pub(crate) type ThreadRingProducer = ring::RingProducer<MappedRing, RECORD_WORDS>;

/// Code objects by address and tag; direct-mapped, forgets what collides.
#[derive(Debug)]
pub(crate) struct CodeCache {
    slots: [(usize, u64, CodeId); CODE_SLOTS],
}

const CODE_SLOTS: usize = 1024;
/// How long a thread waits for room before it gives up on the writer.
const PATIENCE_NS: u64 = 10_000_000_000;
/// How long it sleeps before it looks again. Many threads that look often would take the processor from the writer.
const SHORTEST_NAP_US: u32 = 50;
const LONGEST_NAP_US: u32 = 1_600;
/// After how many events a thread without a ring asks again.
const RETRY_EVERY: u32 = 1024;

impl CodeCache {
    fn slot(&mut self, frame: &FrameKey) -> &mut (usize, u64, CodeId) {
        let hash = (frame.code as u64 >> 4 ^ frame.tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.slots[(hash >> 40) as usize % CODE_SLOTS]
    }

    /// The id under which this thread defined the code object of a frame.
    pub(crate) fn lookup(&mut self, frame: &FrameKey) -> Option<CodeId> {
        let (code, tag, id) = *self.slot(frame);
        (code == frame.code && tag == frame.tag).then_some(id)
    }

    /// Remembers a definition.
    pub(crate) fn insert(&mut self, frame: &FrameKey, id: CodeId) {
        *self.slot(frame) = (frame.code, frame.tag, id);
    }
}

impl ThreadRingProducer {
    /// Room for `records`; false if they must be dropped. May wait, by the session's policy.
    #[inline]
    pub(crate) fn reserve(&mut self, session: &Session, records: u64) -> bool {
        match self.room(records) {
            Space::Ample => true,
            Space::Low => {
                session.wake_writer(WakeReason::RingIsLow);
                true
            }
            Space::Full => self.wait_for_room(session, records),
        }
    }

    #[cold]
    fn wait_for_room(&mut self, session: &Session, records: u64) -> bool {
        session.wake_writer(WakeReason::ThreadWaits);
        if session.on_full == FullRingPolicy::Drop || self.ring().is_none() {
            return false;
        }
        session.shared.count(Counter::RingWaits);
        let begin = crate::platform::clock::now_ns();
        let mut nap_us = SHORTEST_NAP_US;
        loop {
            session.wake_writer(WakeReason::ThreadWaits);
            // SAFETY: a plain sleep; the time is valid.
            unsafe { libc::usleep(nap_us) };
            nap_us = (nap_us * 2).min(LONGEST_NAP_US);
            if self.room(records) != Space::Full {
                return true;
            }
            if session.is_stopped() {
                return false;
            }
            if crate::platform::clock::now_ns() - begin > PATIENCE_NS {
                session.stop_with(&["the trace cannot be written fast enough: nothing was written for 10 s"]);
                return false;
            }
        }
    }
}

impl ThreadState {
    /// The calling thread's block, claimed at its first event. `None`: this event cannot be recorded (and was counted).
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the block is behind a pointer that only this thread holds")]
    pub(crate) fn block(&self, session: &Session) -> Option<&mut ThreadBlock> {
        if self.generation.get() != session.generation || self.block.get().is_null() {
            self.claim(session);
        }
        // SAFETY: the block belongs to this thread (it holds the ring's ownership word), and `busy` keeps the thread from
        // entering twice, so this is the only reference.
        let block = unsafe { self.block.get().as_mut() };
        if block.is_none() {
            session.shared.count(Counter::DroppedEvents);
        }
        block
    }

    #[cold]
    fn claim(&self, session: &Session) {
        let first_try = self.generation.get() != session.generation;
        if first_try {
            self.generation.set(session.generation);
            self.block.set(std::ptr::null_mut());
            self.without_ring.set(0);
        } else {
            let tries = self.without_ring.get().wrapping_add(1);
            self.without_ring.set(tries);
            if !tries.is_multiple_of(RETRY_EVERY) {
                return;
            }
        }
        match session.claim_ring(first_try) {
            Some((index, ring, block)) => {
                // SAFETY: the block is ours alone from now on, and zero bytes or what a thread that ended left are valid.
                let block_ref = unsafe { &mut *block };
                block_ref.native.forget();
                block_ref.python.forget();
                block_ref.native.limit(session.depth);
                block_ref.python.limit(session.depth);
                block_ref.lane = ThreadRingProducer::resume(ring, index);
                self.block.set(block);
            }
            None if first_try => {
                session.shared.count(Counter::ThreadsWithoutRing);
                if session.say_once() {
                    print_diagnostic(&[
                        "no room for another thread's events (96 threads at a time, or the disk is full); ",
                        "they are counted as dropped.",
                    ]);
                }
            }
            None => {}
        }
    }
}
