//! The trace of a session: one file, or parts that are rotated beside a file of definitions.
//!
//! With rotation, definitions (code objects, stack nodes, modules, metadata) go into a file of
//! their own. Parts may be deleted while later events still refer to their definitions.

use std::io;
use std::path::Path;

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::{Event, Meta};

use super::block_file::BlockFile;
use super::rotation::Rotation;
use crate::platform::guarded_file::GuardedFile;

#[derive(Debug)]
pub(crate) struct RotatingTrace {
    /// The file that events are written to.
    current: BlockFile,
    rotation: Option<Rotation>,
}

impl RotatingTrace {
    /// A trace that writes its events to `current`, and rotates that file if there is a rotation.
    pub(crate) fn new(current: BlockFile, rotation: Option<Rotation>) -> Self {
        Self { current, rotation }
    }

    fn definitions(&mut self) -> &mut BlockFile {
        match &mut self.rotation {
            Some(rotation) => &mut rotation.definitions,
            None => &mut self.current,
        }
    }

    /// Adds a block with `rows` definitions.
    pub(crate) fn add(&mut self, kind: BlockKind, payload: &[u8], rows: usize) {
        self.definitions().add(kind, payload, rows);
    }

    pub(crate) fn add_meta(&mut self, meta: &Meta) {
        self.definitions().add_meta(meta);
    }

    /// Adds events to the block that is being built.
    pub(crate) fn push_events(&mut self, events: &[Event]) {
        self.current.push_events(events);
    }

    /// Ends the block of the events pushed so far.
    pub(crate) fn end_block(&mut self) {
        self.current.end_block();
    }

    /// Writes everything that was added. Definitions come first, because events refer to them.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if let Some(rotation) = &mut self.rotation {
            rotation.definitions.flush()?;
        }
        self.current.flush()
    }

    pub(crate) fn is_rotation_due(&self) -> bool {
        self.rotation.as_ref().is_some_and(|rotation| rotation.is_due(&self.current))
    }

    /// Begins the next part.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        match &mut self.rotation {
            Some(rotation) => rotation.begin_next_part(&mut self.current),
            None => Ok(()),
        }
    }

    /// Number of bytes written to the file that has the trace's own name.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.current.len_bytes()
    }

    /// Writes the last blocks. Returns the offset of the END block `end` in the file that has the
    /// trace's own name.
    pub(crate) fn finish(&mut self, end: &[u8]) -> io::Result<u64> {
        if let Some(rotation) = &mut self.rotation {
            rotation.definitions.finish(None)?;
        }
        self.current.finish(Some(end))
    }

    /// The file that has the trace's own name, after the last block was written.
    pub(crate) fn into_file(self) -> GuardedFile {
        self.current.into_file()
    }

    fn files(&mut self) -> impl Iterator<Item = &mut BlockFile> {
        let definitions = self.rotation.as_mut().map(|rotation| &mut rotation.definitions);
        std::iter::once(&mut self.current).chain(definitions)
    }

    /// The former path of a file that was unlinked while it is being written.
    pub(crate) fn removed_file(&mut self) -> Option<&Path> {
        self.files().find(|file| file.is_unlinked()).map(|file| file.path())
    }

    /// Restores the first bytes of files that another process has truncated. Returns the path of
    /// one such file.
    pub(crate) fn repair(&mut self) -> io::Result<Option<&Path>> {
        let mut truncated = None;
        for file in self.files() {
            if file.repair()? {
                truncated = Some(file.path());
            }
        }
        Ok(truncated)
    }

    /// Replaces the notes in the metadata, also in the parts to come.
    pub(crate) fn set_notes(&mut self, notes: &[String]) {
        let mut meta = Meta::default();
        meta.set_list("notes", notes.to_vec());
        self.add_meta(&meta);
        if let Some(rotation) = &mut self.rotation {
            self.current.add_meta(&meta);
            rotation.merge_meta(meta);
        }
    }

    /// After a failed write: removes what was written of the last blocks.
    pub(crate) fn truncate_partial_write(&self) {
        self.current.truncate_partial_write();
        if let Some(rotation) = &self.rotation {
            rotation.definitions.truncate_partial_write();
        }
    }
}
