//! Keeps threads off a ring file that another process may truncate.
//!
//! A lease protects the file while the process runs. After the process was stopped for long, each
//! thread finds that its last check is too old ([`RingMapping::is_safe_at`]). Hooks wait; the
//! writer thread moves the rings to memory, or ends the recording if their content is lost.
//!
//! [`RingMapping::is_safe_at`]: crate::ring::mapping::RingMapping::is_safe_at

use gpumemtrace_format::Counter;

use super::{Session, WakeReason};
use crate::platform::cancellation::without_cancellation;
use crate::platform::clock::event_ns;
use crate::platform::patience::Patience;
use crate::ring::mapping::RingFileState;

/// How long a thread waits for the writer to give up the ring file.
const FILE_PATIENCE_NS: u64 = 10_000_000_000;
/// How long hooks may take to finish the event that they are recording.
pub(crate) const HOOK_PATIENCE_NS: u64 = 300_000_000;

/// Reasons in the user's words to give up the ring file.
const OPEN_FOR_WRITING: &str = "another program has its ring file open for writing";
const CLOSED_BY_PROGRAM: &str = "the program closed the descriptor of its ring file";

impl Session {
    /// Makes sure that a hook may access the rings; waits if the last check is too old. Returns
    /// false if it may not: recording has then stopped.
    pub(crate) fn may_access_rings(&self) -> bool {
        self.rings.is_safe_at(event_ns()) || self.wait_for_intact_file()
    }

    /// Waits until the mapping may be accessed again. Returns false if it may not: recording has
    /// then stopped.
    #[cold]
    pub(crate) fn wait_for_intact_file(&self) -> bool {
        let mut patience = Patience::new(FILE_PATIENCE_NS);
        while !self.rings.is_intact() {
            if self.is_stopped() || patience.is_exhausted() {
                self.rings.count(Counter::DroppedEvents);
                self.stop_with(&[OPEN_FOR_WRITING]);
                return false;
            }
            if self.has_lost_writer() {
                self.rings.count(Counter::DroppedEvents);
                self.stop_without_writer();
                return false;
            }
            self.wake_writer(WakeReason::ThreadWaits);
            // SAFETY: a plain sleep.
            without_cancellation(|| unsafe { libc::usleep(1_000) });
        }
        true
    }

    /// Makes sure that the writer thread may access the rings, and gives up the ring file if
    /// another process may truncate it. Returns false if the content of the rings is lost.
    pub(crate) fn secure_rings(&self) -> bool {
        self.rings.is_safe_at(event_ns()) || self.recheck_ring_file()
    }

    /// Checks the ring file, as [`Self::secure_rings`] does if the last check is too old.
    pub(crate) fn recheck_ring_file(&self) -> bool {
        match self.rings.check_file() {
            RingFileState::Intact => true,
            RingFileState::Unprotected => self.give_up_ring_file(self.unprotected_reason()).is_ok(),
            RingFileState::Damaged => false,
        }
    }

    /// Why the lease no longer protects the ring file. It belongs to the descriptor that the
    /// recorder opened first.
    pub(crate) fn unprotected_reason(&self) -> &'static str {
        if self.rings.file().was_reopened() { CLOSED_BY_PROGRAM } else { OPEN_FOR_WRITING }
    }

    /// Moves the rings to memory while no hook is recording. `reason` is for the user.
    pub(crate) fn give_up_ring_file(&self, reason: &'static str) -> std::io::Result<()> {
        let mut patience = Patience::new(HOOK_PATIENCE_NS);
        while !self.pause_hooks() && !patience.is_exhausted() {
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(200) };
        }
        let moved = self.rings.move_to_memory(reason);
        self.resume_hooks();
        moved
    }
}
