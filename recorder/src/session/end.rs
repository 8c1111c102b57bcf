//! How a session ends: on request, early after an error, or paused while the rings are moved.

use std::sync::atomic::{AtomicU32, Ordering};

use gpumemtrace_format::ring::{END_STOPPED, STOPPED_WITHOUT_WRITER};

use super::{Session, WakeReason, current};
use crate::diagnostics::print_parts;
use crate::platform::patience::Patience;
use crate::platform::{self, clock};

impl Session {
    /// Ends recording for all hooks. Returns true if no hook is still recording; call again until
    /// then.
    pub(crate) fn end_hooks(&self) -> bool {
        current::clear();
        self.shutdown.end()
    }

    /// Pauses all hooks until [`Self::resume_hooks`]. Returns true if no hook is still recording.
    pub(crate) fn pause_hooks(&self) -> bool {
        self.shutdown.pause()
    }

    pub(crate) fn resume_hooks(&self) {
        self.shutdown.resume();
    }

    /// Notes how the process ends, and asks the writer thread to finish the trace.
    ///
    /// Hooks end at once. The writer may be slow to wake, and a reader refuses events that are
    /// later than the end.
    pub(crate) fn request_close(&self, kind: u32, status: i32) {
        self.shutdown.announce_end();
        current::clear();
        self.rings.set_end(kind, status, clock::now_ns());
        self.is_close_requested.store(true, Ordering::Release);
        self.wake_writer(WakeReason::ThreadWaits);
    }

    pub(crate) fn is_close_requested(&self) -> bool {
        self.is_close_requested.load(Ordering::Acquire)
    }

    /// Waits until the trace is finished, at most `patience_ns`. Time in which the process is
    /// stopped does not count.
    pub(crate) fn wait_until_closed(&self, patience_ns: u64) {
        let mut patience = Patience::new(patience_ns);
        while self.closed.load(Ordering::Acquire) == 0 && !patience.is_exhausted() && !self.has_lost_writer()
        {
            platform::wait(&self.closed, 0, patience.nap_ns());
        }
    }

    /// Marks the trace as finished and releases the threads in [`Self::wait_until_closed`].
    pub(crate) fn mark_closed(&self) {
        self.shutdown.announce_end();
        current::clear();
        self.closed.store(1, Ordering::Release);
        platform::wake(&self.closed);
    }

    /// Blocks the calling thread for good.
    pub(super) fn park_forever() -> ! {
        static NEVER: AtomicU32 = AtomicU32::new(0);
        loop {
            platform::wait(&NEVER, 0, u64::MAX >> 1);
        }
    }

    /// True after recording stopped before the program ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Stops recording for good and prints the reason. The program goes on. Only the first call
    /// prints. Allocates nothing: hooks call it, and may run inside the program's allocator.
    pub(crate) fn stop_with(&self, reason: &[&str]) {
        if self.stop() {
            let end = [". The program goes on; everything recorded so far is in ", &self.path_text];
            print_parts(["recording stopped: "].iter().chain(reason).chain(&end).copied());
        }
    }

    /// Stops recording after the writer thread was ended. Prints nothing: a filter that ended it
    /// may end this thread too, at a system call that prints. The ring file holds the reason.
    #[cold]
    pub(crate) fn stop_without_writer(&self) {
        self.stop_as(STOPPED_WITHOUT_WRITER);
        self.mark_closed();
    }

    /// Stops recording for good. Returns true for the first caller.
    pub(crate) fn stop(&self) -> bool {
        self.stop_as(0)
    }

    fn stop_as(&self, status: i32) -> bool {
        let is_first = !self.is_stopped.swap(true, Ordering::AcqRel);
        if is_first {
            self.rings.set_end(END_STOPPED, status, clock::now_ns());
            self.shutdown.announce_end();
            current::clear();
        }
        is_first
    }

    pub(crate) fn set_ended_by_program(&self) {
        self.is_ended_by_program.store(true, Ordering::Release);
    }

    /// True if the program ended the recording itself and goes on afterwards.
    pub(crate) fn is_ended_by_program(&self) -> bool {
        self.is_ended_by_program.load(Ordering::Acquire)
    }
}
