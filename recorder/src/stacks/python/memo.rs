//! Remembers the last Python stack of a thread, and finds out how much of it is still valid.
//!
//! Between two events most frames of a thread do not move, but following them from one to the next
//! costs one dependent cache access each. So the memo keeps the addresses of the last stack and
//! compares each frame at its old address. The comparison of a frame includes its caller, so only
//! memory that belongs to the stack is ever read. The addresses are known beforehand, so the
//! processor need not wait for one frame before it loads the next.
//!
//! Only the content matters. A frame may return, and another one may be entered at the same address
//! with the same code at the same instruction. Both are then the same frame of a stack.

use std::hint::select_unpredictable;

use gpumemtrace_format::NodeId;

use super::fingerprint::RecentFingerprints;
use super::layout::PythonLayout;
use super::walk::{
    FrameContent, FrameRecord, MAX_LINKS, innermost_frame, is_shown, is_unchanged,
    is_unchanged_unpredictably, read_frame,
};
use crate::platform::process_memory::Memory;
use crate::stacks::cache::{FrameKey, MAX_DEPTH};
use crate::stacks::node_cache::{NodeCache, StackHash, StackPrefix};

/// Entries of one stack: its frames, and hidden frames between them.
const MAX_ENTRIES: usize = MAX_DEPTH + MAX_DEPTH / 4;
/// New frames that are read before a known frame must follow.
const MAX_NEW: usize = 8;
/// Innermost entries among which the known frame is searched: as many frames may have returned,
/// less one.
const MAX_SEARCHED: usize = 4;

/// The last stack of a thread, outermost frame first. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct PythonStackMemo {
    len: usize,
    /// How much the depth limit is below [`MAX_DEPTH`].
    depth_reduction: usize,
    /// Hash of the stack that was captured last.
    hash: StackHash,
    contents: [FrameContent; MAX_ENTRIES],
    /// The frames of `contents`. Separate, because `contents` is compared at every event.
    keys: [FrameKey; MAX_ENTRIES],
    prefixes: [StackPrefix; MAX_ENTRIES],
    nodes: NodeCache,
    /// The frames that are new in this capture, innermost first.
    fresh: [FrameRecord; MAX_ENTRIES],
}

/// How a stack differs from the last one. Small enough to be returned in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonStackChange {
    /// Number of entries that are still valid, from the outermost one on.
    valid: u16,
    /// Number of entries after them that were read again in their places.
    reread: u16,
    /// Number of new entries in `PythonStackMemo::fresh`, further in.
    fresh: u16,
    /// True if outer frames were omitted.
    pub is_truncated: bool,
}

/// The entries that are still valid.
enum ValidPrefix {
    /// Number of valid entries, from the outermost one on.
    Entries(usize),
    /// A frame has another caller than before.
    Relinked,
}

impl PythonStackChange {
    /// The change to a thread without Python frames.
    pub const EMPTY: Self = Self { valid: 0, reread: 0, fresh: 0, is_truncated: false };
}

impl PythonStackMemo {
    /// Forgets the stack of the thread that used this memo before. Its nodes stay known.
    pub(crate) fn forget(&mut self) {
        self.len = 0;
    }

    /// Limits stacks to their innermost `frames` frames.
    pub fn limit_depth(&mut self, frames: usize) {
        self.depth_reduction = MAX_DEPTH.saturating_sub(frames);
    }

    fn max_depth(&self) -> usize {
        MAX_DEPTH - self.depth_reduction
    }

    /// Finds out how the stack of `tstate` differs from the last one. Returns `None` if memory
    /// cannot be read.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "with a constant layout every offset becomes part of an instruction"
    )]
    pub fn find_change<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        tstate: usize,
        code_type: usize,
    ) -> Option<PythonStackChange> {
        let first = innermost_frame(memory, layout, tstate, || true)?;
        self.find_change_from(memory, layout, first, code_type)
    }

    /// The same for the stack whose innermost frame is `first`; 0 is an empty stack.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn find_change_from<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        first: usize,
        code_type: usize,
    ) -> Option<PythonStackChange> {
        let mut frame = first;
        let mut depth = 0;
        for fresh in 0..MAX_NEW {
            if frame == 0 && depth <= self.max_depth() {
                return Some(PythonStackChange { fresh: fresh as u16, ..PythonStackChange::EMPTY });
            }
            if frame == 0 {
                break;
            }
            if let Some(at) = self.position_of(frame) {
                let ValidPrefix::Entries(valid) = self.valid_prefix(memory, layout, at)? else { break };
                let change = self.read_changed(memory, layout, code_type, (valid, at), (fresh, depth))?;
                if change.is_truncated {
                    break;
                }
                return Some(change);
            }
            let record = read_frame(memory, layout, code_type, frame)?;
            self.fresh[fresh] = record;
            depth += usize::from(record.is_shown());
            frame = memory.word(frame + layout.frame_previous)?;
        }
        self.read_all(memory, layout, code_type, first)
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop of `find_change`")]
    fn position_of(&self, frame: usize) -> Option<usize> {
        let from = self.len.saturating_sub(MAX_SEARCHED);
        (from..self.len).rev().find(|at| self.contents[*at].frame == frame)
    }

    /// The entries that are still valid, if the frames from entry `at` outwards still have the same
    /// callers.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn valid_prefix<M: Memory>(&self, memory: &M, layout: &PythonLayout, at: usize) -> Option<ValidPrefix> {
        let (mut valid, mut recent) = (at + 1, RecentFingerprints::default());
        // The caller is part of the comparison. The next frame is read at its old address, so that
        // the processor need not wait for the load of the caller; it branches only if something
        // has changed.
        for (place, content) in self.contents[..=at].iter().enumerate().rev() {
            if is_unchanged(memory, layout, content, &mut recent)? {
                continue;
            }
            if !self.has_same_caller(memory, layout, place)? {
                return Some(ValidPrefix::Relinked);
            }
            let has_callee_changed = valid <= at && valid == place + 1;
            valid = place;
            if has_callee_changed {
                return self.valid_prefix_of_new_stack(memory, layout, valid, &mut recent);
            }
        }
        Some(ValidPrefix::Entries(valid))
    }

    /// The same for the entries before `valid`, if a frame and its caller have changed. Which of
    /// the others changed cannot be predicted, so no branch depends on it.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn valid_prefix_of_new_stack<M: Memory>(
        &self,
        memory: &M,
        layout: &PythonLayout,
        mut valid: usize,
        recent: &mut RecentFingerprints,
    ) -> Option<ValidPrefix> {
        for (place, content) in self.contents[..valid].iter().enumerate().rev() {
            if !self.has_same_caller(memory, layout, place)? {
                return Some(ValidPrefix::Relinked);
            }
            let is_same = is_unchanged_unpredictably(memory, layout, content, recent)?;
            valid = select_unpredictable(is_same, valid, place);
        }
        Some(ValidPrefix::Entries(valid))
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn has_same_caller<M: Memory>(&self, memory: &M, layout: &PythonLayout, place: usize) -> Option<bool> {
        let caller = if place == 0 { 0 } else { self.contents[place - 1].frame };
        Some(memory.word(self.contents[place].frame + layout.frame_previous)? == caller)
    }

    /// Reads the frames of the entries from `valid` to `at` again, in their places. The result is
    /// truncated if the stack has become too deep for the memo.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn read_changed<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        code_type: usize,
        (valid, at): (usize, usize),
        (fresh, mut depth): (usize, usize),
    ) -> Option<PythonStackChange> {
        self.len = valid;
        for (content, key) in self.contents[valid..=at].iter_mut().zip(&mut self.keys[valid..=at]) {
            let record = read_frame(memory, layout, code_type, content.frame)?;
            (*content, *key) = (record.content, record.key);
            depth += usize::from(record.is_shown());
        }
        let below = if valid == 0 { 0 } else { usize::from(self.prefixes[valid - 1].depth) };
        let fits = below + depth <= self.max_depth() && at + 1 + fresh <= MAX_ENTRIES;
        Some(PythonStackChange {
            valid: valid as u16,
            reread: (at + 1 - valid) as u16,
            fresh: fresh as u16,
            is_truncated: !fits,
        })
    }

    #[inline(never)]
    fn read_all<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        code_type: usize,
        mut frame: usize,
    ) -> Option<PythonStackChange> {
        let (mut fresh, mut depth) = (0, 0);
        for _ in 0..MAX_LINKS {
            if frame == 0 {
                return Some(PythonStackChange { fresh: fresh as u16, ..PythonStackChange::EMPTY });
            }
            let record = read_frame(memory, layout, code_type, frame)?;
            if record.is_shown() && depth == self.max_depth() || fresh == MAX_ENTRIES {
                return Some(PythonStackChange {
                    fresh: fresh as u16,
                    is_truncated: true,
                    ..PythonStackChange::EMPTY
                });
            }
            self.fresh[fresh] = record;
            fresh += 1;
            depth += usize::from(record.is_shown());
            frame = memory.word(frame + layout.frame_previous)?;
        }
        None
    }

    /// The node of an artificial frame under the stack that was captured last. Returns `None` if
    /// its definition could not be recorded.
    pub fn child_of_last(
        &mut self,
        key: &FrameKey,
        define: impl FnOnce() -> Option<NodeId>,
    ) -> Option<NodeId> {
        self.nodes.find_or_define(self.hash.with_frame(key), define)
    }

    /// Applies a change and returns the node of the new stack.
    ///
    /// `define(parent, frame)` is called for each unknown frame and returns its new id. If it
    /// returns `None`, the definition could not be recorded, and the node of the outer part of the
    /// stack is returned.
    #[inline]
    pub fn apply(
        &mut self,
        change: PythonStackChange,
        define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let valid = usize::from(change.valid);
        if change == (PythonStackChange { valid: change.valid, ..PythonStackChange::EMPTY }) {
            let last = valid.checked_sub(1).map_or(StackPrefix::default(), |at| self.prefixes[at]);
            if valid == 0 || last.node() != NodeId::NONE {
                (self.len, self.hash) = (valid, last.hash);
                return last.node();
            }
        }
        self.apply_new(change, define)
    }

    #[inline(never)]
    fn apply_new(
        &mut self,
        change: PythonStackChange,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let Self { contents, keys, prefixes, nodes, .. } = self;
        let (valid, reread) = (usize::from(change.valid), usize::from(change.reread));
        let mut last = valid.checked_sub(1).map_or(StackPrefix::default(), |at| prefixes[at]);
        let mut len = valid + reread;
        for (key, prefix) in keys[valid..len].iter().zip(&mut prefixes[valid..len]) {
            last = with_entry(&last, key);
            *prefix = last;
        }
        for record in self.fresh[..usize::from(change.fresh)].iter().rev() {
            last = with_entry(&last, &record.key);
            (contents[len], keys[len], prefixes[len]) = (record.content, record.key, last);
            len += 1;
        }
        let (known, node) = nodes.resolve(&mut prefixes[..len], |parent, at| define(parent, &keys[at]));
        self.hash = if known == len {
            last.hash
        } else {
            known.checked_sub(1).map_or(StackHash::default(), |at| prefixes[at].hash)
        };
        // The outermost entry of a truncated stack has callers that are not known, so the next
        // capture starts afresh.
        self.len = if change.is_truncated { 0 } else { known };
        node
    }
}

/// The stack with one more inner entry.
#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loops of `apply`")]
fn with_entry(stack: &StackPrefix, key: &FrameKey) -> StackPrefix {
    if is_shown(key) { stack.with_frame(key) } else { stack.with_hidden_entry() }
}

#[cfg(test)]
mod tests;
