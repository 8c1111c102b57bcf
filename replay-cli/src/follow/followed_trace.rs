//! A trace that grows, with all files that belong to it.
//!
//! Constraint: whenever a part is full the recorder puts the next one under the trace's name, and it may drop the oldest; what
//! events refer to is in a file of its own, and must be known before them. Consequence: the file under the name is held open, so
//! that what it got before it was replaced is read, also if nobody has a name for it any more; each look finds out how far the
//! events go, reads the definitions, and then the events that far; and where parts came and went between two looks, that is said.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::reader::{Item, OpenError};

use super::file_tail::{FileTail, TailChange};
use crate::trace::parts::PartDiscovery;

/// Where no file can have two names, the trace has none for a moment while a part follows another.
const MAX_GONE_POLLS: u32 = 3;

/// A trace that is followed.
pub(crate) struct FollowedTrace {
    path: PathBuf,
    /// The file under the trace's name.
    last: FileTail,
    part: Option<PartId>,
    /// What its parts refer to.
    stacks: Option<FileTail>,
    /// Parts before it, of which the rest is to be read.
    before: VecDeque<FileTail>,
    has_gap: bool,
    gone_polls: u32,
}

/// Which part of which trace a file is.
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
    /// Begins with a trace; `None` while there is none, or nothing in it.
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

    /// The parts between number `after` and this one.
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

    /// Hands on what is new.
    pub(crate) fn poll(&mut self, take: &mut impl FnMut(Item)) -> Result<TailChange, OpenError> {
        let mut found = self.last.measure()?;
        if found == TailChange::Replaced && self.follow_parts()? {
            found = self.last.measure()?;
        }
        self.gone_polls = if found == TailChange::Gone { self.gone_polls + 1 } else { 0 };
        match found {
            // Another one came meanwhile, or is about to: the next look sees to it.
            TailChange::Replaced if !self.before.is_empty() => {}
            TailChange::Gone if self.part.is_some() && self.gone_polls < MAX_GONE_POLLS => {}
            TailChange::Replaced | TailChange::Cut | TailChange::Gone => return Ok(found),
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

    /// Goes on with the file that has the name now, if it is a later part of this trace.
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

    /// True, once, where parts were gone before they could be read.
    pub(crate) fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.has_gap)
    }

    /// True while the recorder writes it.
    pub(crate) fn is_locked(&self) -> bool {
        self.last.is_locked()
    }
}

#[cfg(test)]
mod tests;
