//! What becomes of the writer where no memory is left for it.
//!
//! Constraint: an allocation that fails returns to nobody who could go on. Consequence: the writer thread stays where it is; the
//! recording ends, and an ending process does not wait for it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Session;
use crate::diagnostics::print_diagnostic;
use crate::platform;

/// The session that a writer thread has begun to write, also after its end.
static WRITTEN: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

/// See [`WRITTEN`].
pub(crate) fn written() -> Option<&'static Session> {
    // SAFETY: sessions are never freed.
    unsafe { WRITTEN.load(Ordering::Acquire).as_ref() }
}

impl Session {
    /// True on the writer thread.
    fn is_writer(&self) -> bool {
        self.writer.load(Ordering::Acquire) == platform::this_thread()
    }

    /// Notes which thread writes: the calling one.
    pub(crate) fn set_writer(&'static self) {
        self.writer.store(platform::this_thread(), Ordering::Release);
        WRITTEN.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// There is no memory for the writer, which is the calling thread if this is about us at all: then it stays here for good.
    /// What it had not written stays in the ring file.
    pub(crate) fn stay_without_memory(&self) {
        if !self.is_writer() {
            return;
        }
        if self.stop() {
            print_diagnostic(&[
                "recording stopped: there is no memory for the trace to be written. The program goes on; what was recorded until now \
                   is in the trace and its ring file.",
            ]);
        }
        self.mark_closed();
        loop {
            platform::wait(&self.closed, 1, u64::MAX >> 1);
        }
    }
}
