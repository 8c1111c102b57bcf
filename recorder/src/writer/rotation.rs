//! Rotation: a trace in parts, for runs that last for weeks.
//!
//! Disks have an end, and the process may be killed while one part follows another. So the current
//! part always has the trace's own name, locked, with the ring file beside it. A finished part
//! first gets a second name; then the next part replaces it under the trace's name in one step.
//! Part names contain the trace's id: later runs in the same folder have other names, and readers
//! find the parts by it. If the total size is limited, the oldest parts are removed first, and the
//! file of definitions counts them.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::size_arg::PartLimit;

use super::block_file::BlockFile;
use super::paths::{create_locked, part_path, rename_to_new, undo_second_name};
use crate::config::RotationPolicy;
use crate::diagnostics::{error_text, print_diagnostic};
use crate::platform::clock;

/// A part that is finished.
#[derive(Debug)]
struct CompletedPart {
    path: PathBuf,
    len_bytes: u64,
    events: u64,
}

/// The finished parts of a trace and its file of definitions.
#[derive(Debug)]
pub(crate) struct Rotation {
    /// Definitions that events refer to, and metadata.
    pub(crate) definitions: BlockFile,
    policy: RotationPolicy,
    /// Name of the current part, and of the trace.
    path: PathBuf,
    trace_id: [u8; 16],
    /// Metadata at the beginning of each part.
    meta: Meta,
    /// Number of the current part, from 1.
    number: u64,
    begun_ns: u64,
    completed: VecDeque<CompletedPart>,
    dropped_parts: u64,
    dropped_events: u64,
    /// After a failed rotation: the size of the current part at which to try again.
    retry_at_bytes: u64,
    has_reported_failure: bool,
}

impl Rotation {
    /// The rotation of the trace `path` with its file of definitions. Also returns the metadata of
    /// the first part.
    pub(crate) fn begin(
        policy: RotationPolicy,
        definitions: BlockFile,
        path: &Path,
        trace_id: [u8; 16],
        meta: Meta,
    ) -> (Self, Meta) {
        let rotation = Self {
            definitions,
            policy,
            path: path.to_owned(),
            trace_id,
            meta,
            number: 1,
            begun_ns: clock::now_ns(),
            completed: VecDeque::new(),
            dropped_parts: 0,
            dropped_events: 0,
            retry_at_bytes: 0,
            has_reported_failure: false,
        };
        let first = rotation.meta_of_part(1);
        (rotation, first)
    }

    fn meta_of_part(&self, number: u64) -> Meta {
        let mut meta = self.meta.clone();
        meta.set_number("part", number);
        meta
    }

    /// Adds metadata to the parts to come.
    pub(crate) fn merge_meta(&mut self, meta: Meta) {
        self.meta.merge(meta);
    }

    /// True if the current part has reached the size or the age at which it is rotated.
    pub(crate) fn is_due(&self, current: &BlockFile) -> bool {
        let PartLimit { bytes, ns } = self.policy.limit;
        let is_large = bytes.is_some_and(|most| current.len_bytes() >= most.max(self.retry_at_bytes));
        let is_old = ns.is_some_and(|most| clock::now_ns().saturating_sub(self.begun_ns) >= most);
        current.events() > 0 && (is_large || is_old)
    }

    /// Finishes the current part and begins the next one. If that fails, prints one line and
    /// continues with the current part.
    pub(crate) fn begin_next_part(&mut self, current: &mut BlockFile) -> io::Result<()> {
        // Set even if this fails, so that the next attempt is one part later.
        self.begun_ns = clock::now_ns();
        self.retry_at_bytes = current.len_bytes() + self.policy.limit.bytes.unwrap_or(0);
        match self.close_and_begin(current) {
            Ok(next) => {
                let finished = std::mem::replace(current, next);
                let path = part_path(&self.path, self.trace_id, self.number);
                self.completed.push_back(CompletedPart {
                    path,
                    len_bytes: finished.len_bytes(),
                    events: finished.events(),
                });
                self.number += 1;
                self.retry_at_bytes = 0;
                self.drop_oldest(current.len_bytes())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_reported_failure, true) {
                    let path = self.path.to_string_lossy();
                    print_diagnostic(&[
                        "no new part of ",
                        &path,
                        " could be started: ",
                        &error_text(&error),
                        ". Recording goes on in the same file, which may exceed the limit you set.",
                    ]);
                }
                Ok(())
            }
        }
    }

    fn close_and_begin(&self, current: &mut BlockFile) -> io::Result<BlockFile> {
        if !current.is_at(&self.path) {
            return Err(io::Error::other("the file was moved or removed"));
        }
        let temporary = part_path(&self.path, self.trace_id, self.number + 1);
        let file = create_locked(&temporary).map_err(|error| name_file(&temporary, &error))?;
        let result = current.finish(None).and_then(|_| self.exchange_parts(file, &temporary));
        if result.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        result
    }

    /// Gives the finished part a name of its own, and the trace's name to the new part.
    fn exchange_parts(&self, file: File, temporary: &Path) -> io::Result<BlockFile> {
        let next = BlockFile::begin(file, &self.path, &self.meta_of_part(self.number + 1))?;
        let name = part_path(&self.path, self.trace_id, self.number);
        let is_named = match std::fs::hard_link(&self.path, &name) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            // Without hard links, no file has the trace's name for a moment.
            Err(_) => rename_to_new(&self.path, &name)?,
        };
        if !is_named {
            return Err(name_file(&name, &io::ErrorKind::AlreadyExists.into()));
        }
        std::fs::rename(temporary, &self.path).inspect_err(|_| undo_second_name(&self.path, &name))?;
        Ok(next)
    }

    fn drop_oldest(&mut self, current_bytes: u64) -> io::Result<()> {
        let Some(keep) = self.policy.keep_bytes else { return Ok(()) };
        let completed: u64 = self.completed.iter().map(|part| part.len_bytes).sum();
        let mut bytes = self.definitions.len_bytes() + current_bytes + completed;
        while bytes > keep
            && let Some(oldest) = self.completed.pop_front()
        {
            bytes -= oldest.len_bytes;
            self.dropped_parts += 1;
            self.dropped_events += oldest.events;
            // Note the loss before the file is removed: a kill in between reports too much, not too
            // little.
            let mut meta = Meta::default();
            meta.set_number("dropped_parts", self.dropped_parts);
            meta.set_number("dropped_part_events", self.dropped_events);
            self.definitions.add_meta(&meta);
            self.definitions.flush()?;
            let _ = std::fs::remove_file(&oldest.path);
        }
        Ok(())
    }
}

/// An error that names the file it is about.
fn name_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{}: {}", path.display(), error_text(error)))
}
