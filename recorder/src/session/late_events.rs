//! Events that come after the trace is finished, while the process ends.
//!
//! The recording ends with the last exit handler. Threads go on until the kernel ends them, and a
//! late attached library is not the last to be finalized, so calls may still come. A thread other
//! than the ending one waits here for the end of the process, which follows within microseconds:
//! its call is then never made, and the trace is exact. The wait has a limit, because the rest of
//! the end may need that thread. Every other late event is counted in the END block of the
//! finished trace, which is rewritten in place for each. The block lies in one page of the file, so
//! the end of the process does not cut such a write.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use gpumemtrace_format::Counter;
use gpumemtrace_format::meta::set_events_after_end;

use super::Session;
use crate::diagnostics::{errno, set_errno};
use crate::platform::cancellation::uninterrupted;
use crate::platform::guarded_file::GuardedFile;
use crate::platform::patience::Patience;
use crate::platform::signals::without_write_signals;
use crate::platform::{self, cancellation::without_cancellation};

/// How long a thread waits for the end of the process. All threads together wait once.
const END_PATIENCE_NS: u64 = 2_000_000_000;
/// Largest END block that can be rewritten. Blocks without a message have half of it.
const MAX_END_BYTES: usize = 1024;
/// How often one thread rewrites the block while other threads count.
const REWRITES: usize = 64;

/// The session that ends with its process.
static ENDING_SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug, Default)]
pub(super) struct LateEvents {
    events: AtomicU64,
    /// The thread that ends the process. 0 before, and if its other threads must not wait for it.
    ending_thread: AtomicU32,
    /// A thread waited in vain for the end of the process.
    has_waited: AtomicBool,
    /// A futex word that stays 0, for threads that wait until the process is gone.
    never: AtomicU32,
    end: OnceLock<FinishedEnd>,
}

/// The END block of a finished trace.
#[derive(Debug)]
pub(crate) struct FinishedEnd {
    file: GuardedFile,
    at: u64,
    block: Vec<u8>,
}

impl FinishedEnd {
    pub(crate) fn new(file: GuardedFile, at: u64, block: Vec<u8>) -> Self {
        Self { file, at, block }
    }

    /// Writes the number of late events into the trace. Allocates nothing, unless the program has
    /// closed the descriptor.
    fn write(&self, events: u64) {
        let mut buffer = [0; MAX_END_BYTES];
        let Some(block) = buffer.get_mut(..self.block.len()) else { return };
        block.copy_from_slice(&self.block);
        set_events_after_end(block, events);
        // An error would leave no place to report it.
        let _ = without_write_signals(|| {
            self.file.with(|file| platform::write_at_by_system_call(file, block, self.at))
        });
    }
}

impl Session {
    /// Notes that the process ends with this recording. With `is_last`, no exit handler is expected
    /// that waits for another thread. One that does waits two seconds for it.
    pub(crate) fn set_ending_with_process(&'static self, is_last: bool) {
        let thread = if is_last { platform::this_thread() } else { 0 };
        self.late.ending_thread.store(thread, Ordering::Relaxed);
        ENDING_SESSION.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// True if the process ends with this recording.
    pub(crate) fn is_ending_with_process(&self) -> bool {
        ptr::eq(ENDING_SESSION.load(Ordering::Acquire), self)
    }

    /// Keeps the END block for late events, and writes those into it that have come already.
    pub(crate) fn keep_end_block(&self, end: FinishedEnd) {
        if self.late.end.set(end).is_ok() && self.late.events.load(Ordering::Acquire) > 0 {
            self.write_late_events();
        }
    }

    fn write_late_events(&self) {
        let Some(end) = self.late.end.get() else { return };
        for _ in 0..REWRITES {
            let events = self.late.events.load(Ordering::Acquire);
            end.write(events);
            // Two threads may write in the other order than they counted.
            if self.late.events.load(Ordering::Acquire) == events {
                return;
            }
        }
    }

    fn wait_for_process_end(&self) {
        let ending = self.late.ending_thread.load(Ordering::Relaxed);
        if ending == 0 || ending == platform::this_thread() {
            return;
        }
        let mut patience = Patience::new(END_PATIENCE_NS);
        without_cancellation(|| {
            while !self.late.has_waited.load(Ordering::Relaxed) && !patience.is_exhausted() {
                platform::wait(&self.late.never, 0, patience.nap_ns());
            }
        });
        self.late.has_waited.store(true, Ordering::Relaxed);
    }
}

/// Called for an event that cannot be recorded any more. Does nothing unless the process ends.
#[cold]
#[inline(never)]
pub(crate) fn note_late_event() {
    // SAFETY: sessions are never freed.
    let Some(session) = (unsafe { ENDING_SESSION.load(Ordering::Acquire).as_ref() }) else { return };
    // A child made by a fork while the process ends records nothing, and loses nothing.
    if !session.is_own_process() {
        return;
    }
    // A sample of our own is no call of the program.
    if session.library_thread() == Some(platform::this_thread()) {
        return;
    }
    let saved_errno = errno();
    // The ending thread waits for the writer, and the program's allocator may call the driver for
    // the writer.
    if !session.is_writer_thread() {
        session.wait_for_process_end();
    }
    uninterrupted(|| {
        session.late.events.fetch_add(1, Ordering::AcqRel);
        session.rings.count(Counter::EventsAfterEnd);
        session.write_late_events();
    });
    set_errno(saved_errno);
}
