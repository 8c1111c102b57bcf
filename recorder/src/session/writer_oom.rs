//! What happens when one of our threads runs out of memory, or is gone.
//!
//! Rust aborts the process after a failed allocation, and the tracer must never end its host. So
//! the recording ends, and the writer thread blocks until the process exits. An exiting process
//! does not wait for it. Records that were not written stay in the ring file.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Session;
use crate::diagnostics::print_diagnostic;
use crate::platform::life_mark::LifeMark;
use crate::platform::{self, fork_gate};

/// The session with a started writer thread. It stays set after the session has ended.
static WRITER_SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

/// The mark of the writer thread; null without one.
static WRITER_MARK: AtomicPtr<LifeMark> = AtomicPtr::new(ptr::null_mut());

/// The session with a started writer thread, also after that session has ended.
pub(crate) fn writer_session() -> Option<&'static Session> {
    // SAFETY: sessions are never freed.
    unsafe { WRITER_SESSION.load(Ordering::Acquire).as_ref() }
}

impl Session {
    pub(super) fn is_writer_thread(&self) -> bool {
        self.writer.load(Ordering::Acquire) == platform::this_thread()
    }

    /// True if a seccomp filter of the program has ended the writer thread.
    #[allow(clippy::unused_self, reason = "a process has one session with a writer")]
    pub(crate) fn has_lost_writer(&self) -> bool {
        // SAFETY: marks are never freed.
        unsafe { WRITER_MARK.load(Ordering::Acquire).as_ref() }.is_some_and(LifeMark::has_ended)
    }

    /// Makes the calling thread the writer thread.
    pub(crate) fn set_writer(&'static self) {
        self.writer.store(platform::this_thread(), Ordering::Release);
        // Before the mark: memory for it may be refused.
        WRITER_SESSION.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
        let mark = LifeMark::of_this_thread().map_or(ptr::null_mut(), |mark| ptr::from_ref(mark).cast_mut());
        WRITER_MARK.store(mark, Ordering::Release);
    }

    /// After a failed allocation: does nothing, unless the calling thread is one of ours. These do
    /// not return. The writer ends the recording; without the other one, facts and samples of the
    /// driver are missing.
    pub(crate) fn park_writer_without_memory(&self) {
        if self.library_thread() == Some(platform::this_thread()) {
            fork_gate::LIBRARY_THREAD.leave_for_good();
            Self::park_forever();
        }
        if !self.is_writer_thread() {
            return;
        }
        if self.stop() {
            print_diagnostic(&[
                "recording stopped: out of host memory while writing the trace. The program goes on; everything ",
                "recorded so far is in the trace and its ring file.",
            ]);
        }
        self.mark_closed();
        Self::park_forever();
    }
}
