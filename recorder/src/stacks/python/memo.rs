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

use gpumemtrace_format::NodeId;

use super::fingerprint::RecentFingerprints;
use super::layout::PythonLayout;
use super::walk::{FrameContent, FrameRecord, MAX_LINKS, innermost_frame, is_unchanged, read_frame};
use crate::platform::process_memory::Memory;
use crate::stacks::cache::{FrameKey, MAX_DEPTH, NodeCache, StackHash};

/// Entries of one stack: its frames, and hidden frames between them.
const MAX_ENTRIES: usize = MAX_DEPTH + MAX_DEPTH / 4;
/// New frames that are read before a known frame must follow.
const MAX_NEW: usize = 8;
/// Innermost entries among which the known frame is searched: as many frames may have returned,
/// less one.
const MAX_SEARCHED: usize = 4;

/// The stack from its outermost frame to one entry.
#[derive(Clone, Copy, Debug)]
struct PythonMemoEntry {
    hash: StackHash,
    node: NodeId,
    /// Number of shown frames.
    depth: u32,
}

/// The last stack of a thread, outermost frame first. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct PythonStackMemo {
    len: usize,
    /// How much the depth limit is below [`MAX_DEPTH`].
    depth_reduction: usize,
    contents: [FrameContent; MAX_ENTRIES],
    /// Separate from `contents`, which is compared at every event.
    entries: [PythonMemoEntry; MAX_ENTRIES],
    /// Hash of the stack that was captured last.
    hash: StackHash,
    nodes: NodeCache,
    /// The frames that are new in this capture, innermost first.
    fresh: [FrameRecord; MAX_ENTRIES],
}

/// How a stack differs from the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonStackChange {
    /// Number of entries that are still valid, from the outermost one on.
    valid: usize,
    /// Number of new entries in `PythonStackMemo::fresh`.
    fresh: usize,
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
    pub const EMPTY: Self = Self { valid: 0, fresh: 0, is_truncated: false };
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
        let first = innermost_frame(memory, layout, tstate)?;
        let mut frame = first;
        let mut depth = 0;
        for fresh in 0..MAX_NEW {
            if frame == 0 && depth <= self.max_depth() {
                return Some(PythonStackChange { valid: 0, fresh, is_truncated: false });
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
        for (place, content) in self.contents[..valid].iter().enumerate().rev() {
            // The caller is part of the comparison. The next frame is read at its old address, so
            // that the processor need not wait for the load of the caller; it branches only if
            // something has changed.
            if is_unchanged(memory, layout, content, &mut recent)? {
                continue;
            }
            valid = place;
            let caller = if place == 0 { 0 } else { self.contents[place - 1].frame };
            if memory.word(content.frame + layout.frame_previous)? != caller {
                return Some(ValidPrefix::Relinked);
            }
        }
        Some(ValidPrefix::Entries(valid))
    }

    /// Reads the frames of the entries from `at` down to `valid` again. The result is truncated if
    /// the stack has become too deep for the memo.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn read_changed<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        code_type: usize,
        (valid, at): (usize, usize),
        (mut fresh, mut depth): (usize, usize),
    ) -> Option<PythonStackChange> {
        for place in (valid..=at).rev() {
            let record = read_frame(memory, layout, code_type, self.contents[place].frame)?;
            if fresh == MAX_ENTRIES {
                return Some(PythonStackChange { valid, fresh, is_truncated: true });
            }
            self.fresh[fresh] = record;
            fresh += 1;
            depth += usize::from(record.is_shown());
        }
        let below = if valid == 0 { 0 } else { self.entries[valid - 1].depth as usize };
        let fits = below + depth <= self.max_depth() && valid + fresh <= MAX_ENTRIES;
        Some(PythonStackChange { valid, fresh, is_truncated: !fits })
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
                return Some(PythonStackChange { valid: 0, fresh, is_truncated: false });
            }
            let record = read_frame(memory, layout, code_type, frame)?;
            if record.is_shown() && depth == self.max_depth() || fresh == MAX_ENTRIES {
                return Some(PythonStackChange { valid: 0, fresh, is_truncated: true });
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
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let old_len = self.len;
        let (mut parent, mut depth);
        (parent, self.hash, depth) = match change.valid {
            0 => (NodeId::NONE, StackHash::default(), 0),
            valid => {
                let entry = &self.entries[valid - 1];
                (entry.node, entry.hash, entry.depth)
            }
        };
        self.len = change.valid;
        for record in self.fresh[..change.fresh].iter().rev() {
            if record.is_shown() {
                let hash = self.hash.with_frame(&record.key);
                // A frame that moved but runs the same code at the same instruction keeps its node.
                let node = if self.len < old_len && self.entries[self.len].hash == hash {
                    self.entries[self.len].node
                } else {
                    match self.nodes.find_or_define(hash, || define(parent, &record.key)) {
                        Some(node) => node,
                        None => return parent,
                    }
                };
                (parent, self.hash) = (node, hash);
                depth += 1;
            }
            self.contents[self.len] = record.content;
            self.entries[self.len] = PythonMemoEntry { hash: self.hash, node: parent, depth };
            self.len += 1;
        }
        if change.is_truncated {
            // The outermost entry has callers that are not known, so the next capture starts
            // afresh.
            self.len = 0;
        }
        parent
    }
}

#[cfg(test)]
mod tests;
