//! A growing trace, with all files that belong to it.
//!
//! When a part is full, the recorder puts the next one under the trace's name, and may delete the
//! oldest part. The file under the name is therefore held open, so that its last blocks can be read
//! even after it was deleted. Definitions are in the stacks file and must be known before the
//! events that use them. Each poll measures the parts, reads the stacks file, then the events up to
//! that length. Parts that came and went between two polls are reported as a gap.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::reader::{Item, OpenError};

use super::file_tail::{FileTail, TailChange};
use super::recorder_presence::RecorderLock;
use crate::trace::parts::PartDiscovery;

/// On file systems without hard links, the name is missing for a moment between two parts.
const MAX_GONE_POLLS: u32 = 3;

/// A trace that is read as it grows.
pub(crate) struct FollowedTrace {
    path: PathBuf,
    /// The file under the trace's name.
    last: FileTail,
    part: Option<PartId>,
    /// The definitions that all parts refer to.
    stacks: Option<FileTail>,
    /// Earlier parts that are not read to their end yet.
    before: VecDeque<FileTail>,
    has_gap: bool,
    gone_polls: u32,
}

/// Identifies a part: its trace and its number.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PartId {
    trace_id: String,
    number: u64,
}

impl PartId {
    fn of(meta: &Meta) -> Option<Self> {
        let number = meta.number("part").filter(|number| *number > 0)?;
        Some(Self { trace_id: meta.text("trace_id")?.to_owned(), number })
    }
}

impl FollowedTrace {
    /// Opens a trace; `None` while it does not exist or is empty.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, OpenError> {
        let Some(last) = FileTail::open(path)? else { return Ok(None) };
        let part = last.first_meta().as_ref().and_then(PartId::of);
        let (before, stacks, has_gap, gone_polls) = (VecDeque::new(), None, false, 0);
        let mut this = Self { path: path.to_owned(), last, part, stacks, before, has_gap, gone_polls };
        if let Some(part) = this.part.clone() {
            this.add_before(&part, 0);
        }
        Ok(Some(this))
    }

    /// Opens the parts between number `after` and `part`, and notes a gap if one is missing.
    fn add_before(&mut self, part: &PartId, after: u64) {
        let discovery = PartDiscovery::beside(&self.path, &part.trace_id, part.number);
        let open = |path: &PathBuf| FileTail::open(path).ok().flatten();
        for number in after + 1..part.number {
            match discovery.parts.get(&number).and_then(open) {
                Some(tail) => self.before.push_back(tail),
                None => self.has_gap = true,
            }
        }
        if self.stacks.is_none() {
            self.stacks = discovery.stacks.as_ref().and_then(open);
        }
    }

    /// True if `identity` is the device and inode of the file under the trace's name.
    pub(super) fn is_file(&self, identity: (u64, u64)) -> bool {
        self.last.is_file(identity)
    }

    /// Reads on under a new path of the same file; false for a trace in parts.
    pub(super) fn follow_rename(&mut self, path: &Path) -> bool {
        if self.part.is_some() {
            return false;
        }
        path.clone_into(&mut self.path);
        self.last.follow_rename(path);
        true
    }

    /// Passes all new blocks to `take`.
    pub(crate) fn poll(&mut self, take: &mut impl FnMut(Item)) -> Result<TailChange, OpenError> {
        let mut found = self.last.measure()?;
        if found == TailChange::Replaced && self.follow_parts()? {
            found = self.last.measure()?;
        }
        self.gone_polls = if found == TailChange::Gone { self.gone_polls + 1 } else { 0 };
        match found {
            // A further part has come, or is about to: the next poll opens it.
            TailChange::Replaced if !self.before.is_empty() => {}
            TailChange::Gone if self.part.is_some() && self.gone_polls < MAX_GONE_POLLS => {}
            TailChange::Replaced | TailChange::Truncated | TailChange::Gone => return Ok(found),
            TailChange::Nothing | TailChange::More => {}
        }
        let mut has_more = false;
        for tail in &mut self.before {
            tail.measure_renamed()?;
        }
        if let Some(stacks) = &mut self.stacks
            && stacks.measure()? == TailChange::More
        {
            has_more |= stacks.read(take)?;
        }
        for mut tail in self.before.drain(..) {
            has_more |= tail.read(take)?;
        }
        has_more |= self.last.read(take)?;
        Ok(if has_more { TailChange::More } else { TailChange::Nothing })
    }

    /// Switches to the file that has the name now; false if it is no later part of this trace.
    fn follow_parts(&mut self) -> Result<bool, OpenError> {
        let (Some(before), Some(next)) = (self.part.clone(), FileTail::open(&self.path)?) else {
            return Ok(false);
        };
        let is_later = |part: &PartId| part.trace_id == before.trace_id && part.number > before.number;
        let Some(part) = next.first_meta().as_ref().and_then(PartId::of).filter(is_later) else {
            return Ok(false);
        };
        self.before.push_back(std::mem::replace(&mut self.last, next));
        self.add_before(&part, before.number);
        self.part = Some(part);
        Ok(true)
    }

    /// True, once, if parts were deleted before they could be read.
    pub(crate) fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.has_gap)
    }

    /// Looks whether the recorder has locked the current part.
    pub(super) fn recorder_lock(&self) -> RecorderLock {
        self.last.recorder_lock()
    }
}

#[cfg(test)]
mod tests;
