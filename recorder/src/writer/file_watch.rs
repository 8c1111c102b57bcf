//! What others do to our files while we write them.
//!
//! Constraint: anybody may cut, remove or overwrite the trace and the ring file, and neither may that end the program nor go unsaid.
//! Consequence: at each nap the writer looks. The ring file is held by a lease ([`crate::platform`]): who wants to read it is let in,
//! who wants to change it gets it when the rings have moved to memory. From then on everything is written at once, and the one
//! line and a note in the trace say what a kill now costs. A trace without a name is nobody's: recording ends.

use std::io;

use gpumemtrace_format::Meta;

use super::{LAST_WORDS_NS, NAP_NS, Writer};
use crate::diagnostics::print_diagnostic;
use crate::platform::clock;
use crate::platform::{self, LeaseRequest};
use crate::session::Session;
use crate::writer::paths;

/// How long events may be in memory only.
const PROMPT_NAP_NS: u64 = 20_000_000;
/// Who was let in to read needs so long until it has opened the file.
const OPENING_US: u32 = 5_000;

/// What is known of our files.
pub(super) struct FileWatch {
    notes: Vec<String>,
    has_lease: bool,
    is_ring_lost: bool,
    is_cut_said: bool,
}

impl FileWatch {
    pub(super) fn new(notes: Vec<String>) -> Self {
        Self { notes, has_lease: false, is_ring_lost: false, is_cut_said: false }
    }

    pub(super) fn begin(&mut self, session: &Session) {
        if session.shared.is_memory() {
            return;
        }
        self.has_lease = session.shared.file().with(|file| Ok(platform::take(file))).unwrap_or(false);
    }

    pub(super) fn nap_ns(&self, session: &Session) -> u64 {
        if session.shared.is_memory() || self.is_ring_lost { PROMPT_NAP_NS } else { NAP_NS }
    }
}

impl Writer {
    /// Looks whether somebody else is at our files.
    pub(super) fn look_after_files(&mut self) -> io::Result<()> {
        if let Some(path) = self.trace.removed() {
            let is_trace = path == self.session.path;
            let path = path.to_string_lossy();
            if !is_trace {
                self.session.stop_with(&[&path, ", which holds the stacks, was removed"]);
                return Ok(());
            }
            if self.session.stop() {
                print_diagnostic(&[
                    "recording stopped: ",
                    &path,
                    " was removed. The program goes on without a trace.",
                ]);
            }
            self.remove_ring();
            return Ok(());
        }
        if self.files.is_ring_lost {
            return Ok(());
        }
        if self.session.shared.is_memory() {
            self.lose_ring("its file system cannot map files")?;
        } else if self.session.shared.file().is_nameless() {
            self.move_rings()?;
            self.lose_ring("its ring file was removed")?;
        } else {
            self.answer_who_waits()?;
        }
        Ok(())
    }

    fn answer_who_waits(&mut self) -> io::Result<()> {
        let ring = self.session.shared.file();
        if !self.files.has_lease {
            self.files.begin(self.session);
            return Ok(());
        }
        match ring.with(|file| Ok(platform::asked(file))) {
            Ok(LeaseRequest::Read) => {
                self.files.has_lease = false;
                ring.with(|file| {
                    platform::give(file);
                    Ok(())
                })?;
                // SAFETY: a plain sleep.
                unsafe { libc::usleep(OPENING_US) };
                self.files.begin(self.session);
            }
            Ok(LeaseRequest::Write) => {
                self.move_rings()?;
                self.session.shared.spoil_file()?;
                self.give_lease();
                self.lose_ring("another program has its ring file open for writing")?;
            }
            // Our descriptor may be gone, or nobody is there.
            Ok(LeaseRequest::None) | Err(_) => {}
        }
        Ok(())
    }

    /// Empties the rings into the trace and goes on with memory in place of the file.
    fn move_rings(&mut self) -> io::Result<()> {
        let begin = clock::now_ns();
        let mut result = Ok(());
        while !self.session.pause() && result.is_ok() && clock::now_ns() - begin < LAST_WORDS_NS {
            // One of them may be waiting for room.
            result = self.write_round(false);
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(200) };
        }
        let moved =
            result.and_then(|()| self.write_round(false)).and_then(|()| self.session.shared.move_to_memory());
        self.session.resume();
        moved
    }

    /// Says, once, what a kill costs from now on.
    fn lose_ring(&mut self, why: &str) -> io::Result<()> {
        self.files.is_ring_lost = true;
        let path = self.session.path.to_string_lossy();
        print_diagnostic(&[
            &path,
            ": ",
            why,
            ". Recording goes on; if the program is killed, its last moments are not in the trace.",
        ]);
        let mut meta = Meta::default();
        meta.set_text("rings", "memory");
        self.trace.add_meta(&meta);
        self.note(format!("recorded in memory, from where a kill takes the last moments: {why}"));
        self.flush()
    }

    pub(super) fn note(&mut self, note: String) {
        self.files.notes.push(note);
        self.trace.set_notes(&self.files.notes);
    }

    /// A trace that somebody has emptied gets its first bytes again; what else it held shows as a gap.
    pub(super) fn mend_trace(&mut self) -> io::Result<()> {
        let Some(path) = self.trace.mend()? else { return Ok(()) };
        if !std::mem::replace(&mut self.files.is_cut_said, true) {
            print_diagnostic(&[
                &path.to_string_lossy(),
                " was cut by another program: what it held is lost. Recording goes on, and the report says what is missing.",
            ]);
            self.note("another program cut the trace while it was written".to_owned());
        }
        Ok(())
    }

    /// The recording is over: nobody waits for us any more, and no late store may meet a file that others cut.
    pub(super) fn let_go_at_the_end(&mut self) {
        if self.session.is_stopped() {
            let _ = self.session.shared.move_to_memory();
        }
        self.give_lease();
    }

    pub(super) fn give_lease(&mut self) {
        if std::mem::take(&mut self.files.has_lease) {
            let _ = self.session.shared.file().with(|file| {
                platform::give(file);
                Ok(())
            });
        }
    }

    fn remove_ring(&self) {
        let ring = paths::ring_path(&self.session.path);
        if self.session.shared.is_file_at(&ring) {
            let _ = std::fs::remove_file(ring);
        }
    }
}
