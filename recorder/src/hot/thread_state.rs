//! The thread-local state of the hook path, and how a thread gets a ring.
//!
//! Thread-local destructors run in no defined order, and some of them free GPU memory. So the state
//! is a few plain words without a destructor. Everything larger lies in the thread's
//! [`ThreadBlock`]. A ring passes to another thread only after its owner has ended.

use std::cell::Cell;
use std::ptr::NonNull;

use gpumemtrace_format::{Counter, NodeId};

use super::hook_levels::HookLevels;
use crate::config::{FullRingPolicy, NativeStacks};
use crate::diagnostics::print_diagnostic;
use crate::per_thread;
use crate::platform;
use crate::platform::cancellation::{uninterrupted, without_cancellation};
use crate::platform::patience::ProgressPatience;
use crate::ring::mapping::MappedRing;
use crate::ring::protocol::ring::Space;
use crate::session::thread_block::{ThreadBlock, ThreadRingProducer};
use crate::session::{Session, WakeReason};

/// The thread-local words of the calling thread.
#[derive(Debug)]
pub(crate) struct ThreadState {
    /// The session that `block` belongs to. Any other value makes `block` stale (a fork, a new
    /// session).
    generation: Cell<u32>,
    /// The hooks that the thread is inside of.
    pub(crate) levels: HookLevels,
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
        levels: HookLevels::new(),
        block: Cell::new(std::ptr::null_mut()),
        events_without_ring: Cell::new(0),
        autograd_stack: Cell::new(NodeId::NONE),
    }, "gpumemtrace_thread_local"
}

/// How long a thread waits for space in its ring before it stops the recording. Time in which the
/// process is stopped does not count. Each step of the writer begins the wait anew, because on a
/// busy machine the writer may need long for full rings. Steps in other rings do not help a thread
/// whose ring begins with a record that is never completed, so they count only for some rounds.
const SPACE_PATIENCE_NS: u64 = 10_000_000_000;
/// Sleep between two checks of a full ring, doubled each time. Frequent polling by many threads
/// would take the processor from the writer.
const SHORTEST_NAP_US: u32 = 50;
const LONGEST_NAP_US: u32 = 1_600;
/// A thread without a ring asks for one again after this many events.
const RETRY_EVERY: u32 = 1024;

impl ThreadRingProducer {
    /// Makes sure that `records` records fit, and may be stored at `now_ns`, the current time.
    /// Returns false if they must be dropped. May wait, according to [`FullRingPolicy`].
    #[inline]
    pub(crate) fn reserve(&mut self, session: &Session, records: u64, now_ns: u64) -> bool {
        if !session.rings.is_safe_at(now_ns) && !session.wait_for_intact_file() {
            return false;
        }
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
        let is_nested = with_thread_state(|state| state.levels.is_nested());
        if session.on_full == FullRingPolicy::Drop || self.ring().is_none() || is_nested {
            return false;
        }
        session.rings.count(Counter::RingWaits);
        let mut patience = ProgressPatience::new(SPACE_PATIENCE_NS, session.progress(self.known_tail()));
        let mut nap_us = SHORTEST_NAP_US;
        loop {
            session.wake_writer(WakeReason::ThreadWaits);
            // SAFETY: a plain sleep; the time is valid.
            without_cancellation(|| unsafe { libc::usleep(nap_us) });
            nap_us = (nap_us * 2).min(LONGEST_NAP_US);
            // The process may have been stopped during the sleep.
            if session.rings.is_intact() && self.space(records) != Space::Full {
                return true;
            }
            if session.is_stopped() {
                return false;
            }
            if session.has_lost_writer() {
                session.stop_without_writer();
                return false;
            }
            if patience.is_exhausted(session.progress(self.known_tail())) {
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
            // A signal handler must not interrupt this and leave it by a jump.
            uninterrupted(|| self.claim_block(session));
        }
        // SAFETY: the block belongs to this thread, which holds the ring's ownership word. A hook
        // that interrupts the recorder does not come here, so this is the only reference.
        let block = unsafe { self.block.get().as_mut() };
        if block.is_none() {
            session.rings.count(Counter::DroppedEvents);
        }
        block
    }

    /// The ring that the calling thread has claimed in this session, and its number.
    pub(crate) fn claimed_ring(&self, session: &Session) -> Option<(usize, MappedRing)> {
        if self.generation.get() != session.generation {
            return None;
        }
        // SAFETY: null, or the block that belongs to this thread.
        let block = unsafe { self.block.get().as_ref() }?;
        Some((block.producer.index(), *block.producer.ring()?))
    }

    /// Empties the caches of the calling thread, and forgets all records that are not published.
    ///
    /// The hook that was using them must not run any more.
    pub(crate) fn reset_block(&self, session: &Session, index: usize, ring: MappedRing) {
        let Some(block) = NonNull::new(self.block.get()) else { return };
        // SAFETY: this thread's block, which is not in use; zero bytes are a valid block.
        unsafe {
            platform::zero_private_memory(block.as_ptr().cast(), size_of::<ThreadBlock>());
            prepare_block(&mut *block.as_ptr(), session, index, ring);
        }
    }

    #[cold]
    fn claim_block(&self, session: &Session) {
        if !session.rings.is_intact() {
            return;
        }
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
                prepare_block(unsafe { &mut *block }, session, index, ring);
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

/// Makes a block ready for the thread that has claimed ring `index`. All signals must be blocked.
fn prepare_block(block: &mut ThreadBlock, session: &Session, index: usize, ring: MappedRing) {
    block.native.forget();
    block.python.forget();
    block.native.limit_depth(session.depth);
    block.python.limit_depth(session.depth);
    block.producer = ThreadRingProducer::resume(ring, index);
    if session.native != NativeStacks::None {
        block.native.prepare();
    }
}
