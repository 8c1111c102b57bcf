//! Detects what other processes do to the trace and the ring file while they are written.
//!
//! Another process may truncate, remove or overwrite either file. That must not end the program,
//! and the user must hear of it. The writer checks both files at each nap. A lease
//! ([`crate::platform`]) on the ring file delays other processes: a reader is let in at once; a
//! process that wants to write is let in after the rings have moved to anonymous memory. From then
//! on every event is written promptly. One line on stderr and a note in the trace explain that a
//! kill would lose the last events. If the trace is unlinked, recording stops.

use std::io;

use gpumemtrace_format::{EndReason, Meta};

use super::{NAP_NS, WriterThread, paths};
use crate::diagnostics::print_diagnostic;
use crate::platform::{self, LeaseRequest, clock};
use crate::session::Session;

/// How long events may be in anonymous memory only.
const MEMORY_NAP_NS: u64 = 20_000_000;
/// How long a reader that was let in takes to open the file.
const OPEN_PATIENCE_US: u32 = 5_000;

/// What the writer knows about its files.
pub(super) struct FileWatch {
    /// The notes in the trace's metadata.
    notes: Vec<String>,
    /// The rings are in anonymous memory, and the user was notified.
    is_ring_file_lost: bool,
    has_reported_truncation: bool,
}

impl FileWatch {
    pub(super) fn new(notes: Vec<String>) -> Self {
        Self { notes, is_ring_file_lost: false, has_reported_truncation: false }
    }

    pub(super) fn nap_ns(&self, session: &Session) -> u64 {
        if session.rings.is_memory() || self.is_ring_file_lost { MEMORY_NAP_NS } else { NAP_NS }
    }
}

/// Takes the lease on the ring file, if the file system has leases and no process has it open.
pub(super) fn take_lease(session: &Session) {
    if !session.rings.is_memory() {
        let is_held = session.rings.file().with(|file| Ok(platform::take_lease(file))).unwrap_or(false);
        session.rings.set_lease(is_held);
    }
}

impl WriterThread {
    /// Checks whether another process has touched the trace or the ring file.
    pub(super) fn check_files(&mut self) -> io::Result<()> {
        if let Some(path) = self.trace.removed_file() {
            let is_trace = path == self.session.path;
            let path = path.to_string_lossy();
            if !is_trace {
                self.session.stop_with(&[&path, ", which holds the stacks, was removed"]);
                return Ok(());
            }
            if self.session.stop() {
                let end = " was removed. The program goes on without a trace.";
                print_diagnostic(&["recording stopped: ", &path, end]);
            }
            self.remove_ring_file();
            return Ok(());
        }
        if self.files.is_ring_file_lost {
            return Ok(());
        }
        if self.session.rings.file().is_unlinked() {
            self.session.give_up_ring_file("its ring file was removed")?;
        } else if !self.session.rings.is_memory() {
            self.handle_lease_request()?;
        }
        match self.session.rings.memory_reason() {
            Some(reason) => self.leave_ring_file(reason),
            None => Ok(()),
        }
    }

    fn handle_lease_request(&mut self) -> io::Result<()> {
        let rings = &self.session.rings;
        if !rings.has_lease() {
            take_lease(self.session);
            return Ok(());
        }
        match rings.file().with(|file| Ok(platform::lease_request(file))) {
            Ok(LeaseRequest::Read) => {
                self.release_lease();
                // SAFETY: a plain sleep.
                unsafe { libc::usleep(OPEN_PATIENCE_US) };
                take_lease(self.session);
                Ok(())
            }
            Ok(LeaseRequest::Write) => self.session.give_up_ring_file(self.session.unprotected_reason()),
            // No process waits, or the program closed our descriptor.
            Ok(LeaseRequest::None) | Err(_) => Ok(()),
        }
    }

    /// Lets waiting processes in after the rings have moved to memory, and reports it.
    fn leave_ring_file(&mut self, reason: &str) -> io::Result<()> {
        if self.session.rings.has_lease() {
            self.session.rings.invalidate_file()?;
            self.release_lease();
        }
        self.report_lost_ring_file(reason)?;
        self.drain_rings(false)
    }

    /// Ends a recording when another process has destroyed the content of the rings. The trace says
    /// so.
    pub(super) fn end_without_rings(&mut self) -> io::Result<()> {
        self.session.rings.abandon_file()?;
        let ring = paths::ring_path(&self.session.path);
        let why = format!(
            "another program truncated {} while this one was stopped, so the events in it are lost",
            ring.to_string_lossy()
        );
        self.session.stop_with(&[&why]);
        let time_ns = clock::now_ns();
        self.finish_trace(EndReason::Stopped, time_ns, why)?;
        self.remove_ring_file();
        Ok(())
    }

    /// Reports once that a kill now loses the last events, on stderr and in the trace.
    fn report_lost_ring_file(&mut self, reason: &str) -> io::Result<()> {
        self.files.is_ring_file_lost = true;
        let path = self.session.path.to_string_lossy();
        print_diagnostic(&[
            &path,
            ": ",
            reason,
            ". Recording goes on; if the program is killed, its last events are not in the trace.",
        ]);
        let mut meta = Meta::default();
        meta.set_text("rings", "memory");
        self.trace.add_meta(&meta);
        self.add_note(format!("recorded in memory, so that a kill loses the last events: {reason}"));
        self.flush()
    }

    pub(super) fn add_note(&mut self, note: String) {
        self.files.notes.push(note);
        self.trace.set_notes(&self.files.notes);
    }

    /// Restores the first bytes of a truncated trace. The rest of the lost content shows as a gap.
    pub(super) fn repair_trace(&mut self) -> io::Result<()> {
        let Some(path) = self.trace.repair()? else { return Ok(()) };
        if !std::mem::replace(&mut self.files.has_reported_truncation, true) {
            print_diagnostic(&[
                &path.to_string_lossy(),
                " was truncated by another program, and its content is lost. Recording goes on; the report says what \
                 is missing.",
            ]);
            self.add_note("another program truncated the trace while it was written".to_owned());
        }
        Ok(())
    }

    /// After the end of the recording: lets waiting processes in. If recording stopped early, a
    /// late store of a hook must not hit a file that another process truncates.
    pub(super) fn release_files(&mut self) {
        if self.session.is_stopped() {
            let _ = self.session.rings.move_to_memory("recording has stopped");
        }
        self.release_lease();
    }

    pub(super) fn release_lease(&mut self) {
        if self.session.rings.has_lease() {
            self.session.rings.set_lease(false);
            let _ = self.session.rings.file().with(|file| {
                platform::release_lease(file);
                Ok(())
            });
        }
    }

    /// Removes the ring file if its name still belongs to this recording.
    pub(super) fn remove_ring_file(&self) {
        let ring = paths::ring_path(&self.session.path);
        if self.session.rings.is_file_at(&ring) {
            let _ = std::fs::remove_file(ring);
        }
    }
}
