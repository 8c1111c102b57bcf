//! A trace in parts, for runs that last for weeks.
//!
//! Constraint: a disk has an end, and the process that records may be killed while one part follows another. Consequence: the
//! part that is being written always has the trace's own name, locked, with the ring beside it; a full part gets a name of its
//! own as a second name first, and then the next part replaces it under the first one in one step. Names have the trace's
//! id in them: later runs in the same folder have other ones, and a reader finds the parts by it.
//! Where only so much is to be kept, whole parts are dropped, the oldest first, and what is kept says so.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::amount::PartLimit;

use crate::diagnostics::{error_text, print_diagnostic};
use crate::platform::clock;
use crate::writer::block_file::BlockFile;
use crate::writer::paths::{create_locked, part_path, stacks_path};

/// How large parts are where only the whole has a limit: so many fit into it.
const PARTS_IN_KEPT: u64 = 8;

/// What the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RotationPolicy {
    /// When a part ends.
    pub(crate) limit: PartLimit,
    /// Bytes that all files of the trace may have together, about.
    pub(crate) keep_bytes: Option<u64>,
}

impl RotationPolicy {
    /// `None`: one file.
    pub(crate) fn new(limit: Option<PartLimit>, keep_bytes: Option<u64>) -> Option<Self> {
        let mut limit = limit.or_else(|| keep_bytes.map(|_| PartLimit::default()))?;
        if let Some(keep) = keep_bytes {
            let most = (keep / PARTS_IN_KEPT).max(1);
            limit.bytes = Some(limit.bytes.map_or(most, |bytes| bytes.min(most)));
        }
        Some(Self { limit, keep_bytes })
    }
}

/// A full part.
#[derive(Debug)]
struct CompletedPart {
    path: PathBuf,
    len_bytes: u64,
    events: u64,
}

/// All parts of a trace but the one that is written.
#[derive(Debug)]
pub(crate) struct Rotation {
    /// What events refer to, and metadata.
    pub(crate) definitions: BlockFile,
    wanted: RotationPolicy,
    /// Name of the part that is written.
    path: PathBuf,
    trace_id: [u8; 16],
    /// What each part begins with.
    meta: Meta,
    /// Number of the part that is written, from 1.
    number: u64,
    begun_ns: u64,
    full: VecDeque<CompletedPart>,
    dropped: u64,
    events_in_dropped: u64,
    has_said: bool,
}

impl Rotation {
    /// Makes the file for definitions, beside the trace `path`, and the name of the first part: its metadata.
    pub(crate) fn begin(
        wanted: RotationPolicy,
        path: &Path,
        trace_id: [u8; 16],
        meta: &Meta,
    ) -> io::Result<(Self, Meta)> {
        let name = stacks_path(path, trace_id);
        let definitions = BlockFile::begin(create_locked(&name)?, &name, meta);
        let definitions = definitions.inspect_err(|_| drop(std::fs::remove_file(&name)))?;
        let parts = Self {
            definitions,
            wanted,
            path: path.to_owned(),
            trace_id,
            meta: meta.clone(),
            number: 1,
            begun_ns: clock::now_ns(),
            full: VecDeque::new(),
            dropped: 0,
            events_in_dropped: 0,
            has_said: false,
        };
        let first = parts.meta_of_part(1);
        Ok((parts, first))
    }

    fn meta_of_part(&self, number: u64) -> Meta {
        let mut meta = self.meta.clone();
        meta.set_number("part", number);
        meta
    }

    /// What later parts begin with, too.
    pub(crate) fn merge_meta(&mut self, meta: Meta) {
        self.meta.merge(meta);
    }

    /// True if the part that is written is as large or as old as one may be.
    pub(crate) fn is_full(&self, current: &BlockFile) -> bool {
        let PartLimit { bytes, ns } = self.wanted.limit;
        let is_large = bytes.is_some_and(|most| current.len_bytes() >= most);
        let is_old = ns.is_some_and(|most| clock::now_ns() - self.begun_ns >= most);
        current.events() > 0 && (is_large || is_old)
    }

    /// Begins another part.
    pub(crate) fn begin_another(&mut self, current: &mut BlockFile) -> io::Result<()> {
        // Whether it works or not: the next attempt is as far away as the next part would be.
        self.begun_ns = clock::now_ns();
        match self.close_and_begin(current) {
            Ok(next) => {
                let full = std::mem::replace(current, next);
                let path = part_path(&self.path, self.trace_id, self.number);
                self.full.push_back(CompletedPart {
                    path,
                    len_bytes: full.len_bytes(),
                    events: full.events(),
                });
                self.number += 1;
                self.drop_oldest(current.len_bytes())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_said, true) {
                    let path = self.path.to_string_lossy();
                    print_diagnostic(&[
                        "no new part of ",
                        &path,
                        " could be begun: ",
                        &error_text(&error),
                        ". Recording goes on in the same file, which may get larger than was wished for.",
                    ]);
                }
                Ok(())
            }
        }
    }

    fn close_and_begin(&self, current: &mut BlockFile) -> io::Result<BlockFile> {
        if !current.is_at(&self.path) {
            return Err(io::Error::other("somebody moved or removed the file"));
        }
        current.finish(None)?;
        let temporary = part_path(&self.path, self.trace_id, self.number + 1);
        let file = create_locked(&temporary)?;
        let result = self.put_in_place(file, &temporary);
        if result.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        result
    }

    /// Gives the full part its own name, and the trace's name to the new one.
    fn put_in_place(&self, file: File, temporary: &Path) -> io::Result<BlockFile> {
        let next = BlockFile::begin(file, &self.path, &self.meta_of_part(self.number + 1))?;
        let name = part_path(&self.path, self.trace_id, self.number);
        if std::fs::hard_link(&self.path, &name).is_err() {
            // No hard links here: for a moment the trace has no file of its name.
            std::fs::rename(&self.path, &name)?;
        }
        std::fs::rename(temporary, &self.path)?;
        Ok(next)
    }

    fn drop_oldest(&mut self, current_bytes: u64) -> io::Result<()> {
        let Some(keep) = self.wanted.keep_bytes else { return Ok(()) };
        let full: u64 = self.full.iter().map(|part| part.len_bytes).sum();
        let mut bytes = self.definitions.len_bytes() + current_bytes + full;
        while bytes > keep
            && let Some(oldest) = self.full.pop_front()
        {
            bytes -= oldest.len_bytes;
            self.dropped += 1;
            self.events_in_dropped += oldest.events;
            // First said, then done: who is killed in between has said too much rather than too little.
            let mut meta = Meta::default();
            meta.set_number("dropped_parts", self.dropped);
            meta.set_number("dropped_part_events", self.events_in_dropped);
            self.definitions.add_meta(&meta);
            self.definitions.flush()?;
            let _ = std::fs::remove_file(&oldest.path);
        }
        Ok(())
    }
}
