//! The stack as it was found last, and how much of it still stands.
//!
//! Constraint: between two events of a thread most of its frames do not move, but following them from one to the next costs a
//! cache access each that must end before the next one begins. Consequence: the addresses of the last stack are kept, and a
//! frame is compared where it was. Each comparison begins with the link that leads to the next frame, so only memory that
//! belongs to the stack is ever read; and since the addresses are known beforehand, the processor need not wait for the links.
//!
//! What counts is the content: a frame that was left and entered again at the same address, for the same call from the same
//! instruction, *is* the same frame of a stack.

use gpumemtrace_format::NodeId;

use super::fingerprint::RecentFingerprints;
use super::layout::PythonLayout;
use super::walk::{FrameFingerprint, FrameRecord, MAX_LINKS, innermost, is_unchanged, meet};
use crate::platform::process_memory::Memory;
use crate::stacks::cache::{FrameKey, MAX_DEPTH, NodeCache, StackHash};

/// Links of one stack: its frames, and entries from C between them.
const MAX_TRAIL: usize = MAX_DEPTH + MAX_DEPTH / 4;
/// Frames that are read before one must be found where it was.
const MOST_NEW: usize = 8;
/// How far from the end of the trail it may be found: frames that were left.
const MOST_LEFT: usize = 4;

/// What is known of a frame, and of the stack up to it.
#[derive(Clone, Copy, Debug)]
struct PythonMemoEntry {
    path: StackHash,
    node: NodeId,
    /// Frames that count.
    depth: u32,
}

/// The stack of a thread, outermost frame first. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct PythonStackMemo {
    len: usize,
    /// Frames fewer than [`MAX_DEPTH`] that a stack may have.
    fewer: usize,
    seen: [FrameFingerprint; MAX_TRAIL],
    /// Apart from what is compared at every event.
    known: [PythonMemoEntry; MAX_TRAIL],
    /// The stack that was followed last.
    path: StackHash,
    nodes: NodeCache,
    /// What is new, innermost first.
    fresh: [FrameRecord; MAX_TRAIL],
}

/// What has changed since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonStackChange {
    /// Entries of the trail that still stand.
    kept: usize,
    /// Entries that are new, in `PythonStackMemo::fresh`.
    fresh: usize,
    /// Whether outer frames were left out.
    pub truncated: bool,
}

/// What is left of the trail.
enum ValidPrefix {
    /// So many entries, from the outermost one on.
    Entries(usize),
    /// The links lead elsewhere.
    Relinked,
}

impl PythonStackChange {
    /// Of a thread without frames.
    pub const NOTHING: Self = Self { kept: 0, fresh: 0, truncated: false };
}

impl PythonStackMemo {
    /// Forgets the stack of the thread that had this trail before. Its nodes stay known.
    pub(crate) fn forget(&mut self) {
        self.len = 0;
    }

    /// From now on stacks have at most so many frames, their innermost ones.
    pub fn limit(&mut self, frames: usize) {
        self.fewer = MAX_DEPTH.saturating_sub(frames);
    }

    fn most(&self) -> usize {
        MAX_DEPTH - self.fewer
    }

    /// Finds out what has changed. `None` if something could not be read.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "with a constant layout every offset becomes part of an instruction"
    )]
    pub fn look<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        tstate: usize,
        code_type: usize,
    ) -> Option<PythonStackChange> {
        let first = innermost(memory, layout, tstate)?;
        let mut frame = first;
        let mut depth = 0;
        for fresh in 0..MOST_NEW {
            if frame == 0 && depth <= self.most() {
                return Some(PythonStackChange { kept: 0, fresh, truncated: false });
            }
            if frame == 0 {
                break;
            }
            if let Some(at) = self.place_of(frame) {
                let ValidPrefix::Entries(kept) = self.standing(memory, layout, at)? else { break };
                let change = self.meet_between(memory, layout, code_type, (kept, at), (fresh, depth))?;
                if change.truncated {
                    break;
                }
                return Some(change);
            }
            let met = meet(memory, layout, code_type, frame)?;
            self.fresh[fresh] = met;
            depth += usize::from(met.counts());
            frame = memory.word(frame + layout.frame_previous)?;
        }
        self.read_all(memory, layout, code_type, first)
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop of `look`")]
    fn place_of(&self, frame: usize) -> Option<usize> {
        let from = self.len.saturating_sub(MOST_LEFT);
        (from..self.len).rev().find(|at| self.seen[*at].frame == frame)
    }

    /// How many entries stand, from the outermost one on, if the links still lead from `at` to the end.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn standing<M: Memory>(&self, memory: &M, layout: &PythonLayout, at: usize) -> Option<ValidPrefix> {
        let (mut kept, mut recent) = (at + 1, RecentFingerprints::default());
        for (place, seen) in self.seen[..kept].iter().enumerate().rev() {
            // The link is part of what is compared. The next frame is read where it was, so that the processor need not wait
            // for the link; it branches only where something has changed.
            if is_unchanged(memory, layout, seen, &mut recent)? {
                continue;
            }
            kept = place;
            let caller = if place == 0 { 0 } else { self.seen[place - 1].frame };
            if memory.word(seen.frame + layout.frame_previous)? != caller {
                return Some(ValidPrefix::Relinked);
            }
        }
        Some(ValidPrefix::Entries(kept))
    }

    /// Reads the entries from `at` down to `kept` again. `truncated` if the stack has become too deep for the trail.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn meet_between<M: Memory>(
        &mut self,
        memory: &M,
        layout: &PythonLayout,
        code_type: usize,
        (kept, at): (usize, usize),
        (mut fresh, mut depth): (usize, usize),
    ) -> Option<PythonStackChange> {
        for place in (kept..=at).rev() {
            let met = meet(memory, layout, code_type, self.seen[place].frame)?;
            if fresh == MAX_TRAIL {
                return Some(PythonStackChange { kept, fresh, truncated: true });
            }
            self.fresh[fresh] = met;
            fresh += 1;
            depth += usize::from(met.counts());
        }
        let below = if kept == 0 { 0 } else { self.known[kept - 1].depth as usize };
        let fits = below + depth <= self.most() && kept + fresh <= MAX_TRAIL;
        Some(PythonStackChange { kept, fresh, truncated: !fits })
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
                return Some(PythonStackChange { kept: 0, fresh, truncated: false });
            }
            let met = meet(memory, layout, code_type, frame)?;
            if met.counts() && depth == self.most() || fresh == MAX_TRAIL {
                return Some(PythonStackChange { kept: 0, fresh, truncated: true });
            }
            self.fresh[fresh] = met;
            fresh += 1;
            depth += usize::from(met.counts());
            frame = memory.word(frame + layout.frame_previous)?;
        }
        None
    }

    /// The node of something that is no frame, under the stack that was followed last. `None` if it could not be recorded.
    pub fn beneath(&mut self, key: &FrameKey, define: impl FnOnce() -> Option<NodeId>) -> Option<NodeId> {
        self.nodes.find_or(self.path.then(key), define)
    }

    /// The node of the stack after a change.
    ///
    /// `define(parent, frame)` is called for each frame not known yet and returns its new id, or `None` when the definition
    /// could not be recorded: the stack is then cut there (its outer part is returned).
    #[inline]
    pub fn follow(
        &mut self,
        change: PythonStackChange,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let old_len = self.len;
        let (mut parent, mut depth);
        (parent, self.path, depth) = match change.kept {
            0 => (NodeId::NONE, StackHash::default(), 0),
            kept => {
                let known = &self.known[kept - 1];
                (known.node, known.path, known.depth)
            }
        };
        self.len = change.kept;
        for met in self.fresh[..change.fresh].iter().rev() {
            if met.counts() {
                let path = self.path.then(&met.key);
                // Frames that moved and run the same as before keep their nodes.
                let node = if self.len < old_len && self.known[self.len].path == path {
                    self.known[self.len].node
                } else {
                    match self.nodes.find_or(path, || define(parent, &met.key)) {
                        Some(node) => node,
                        None => return parent,
                    }
                };
                (parent, self.path) = (node, path);
                depth += 1;
            }
            self.seen[self.len] = met.seen;
            self.known[self.len] = PythonMemoEntry { path: self.path, node: parent, depth };
            self.len += 1;
        }
        if change.truncated {
            // Its outermost frame has callers: nothing can be found where it was.
            self.len = 0;
        }
        parent
    }
}

#[cfg(test)]
mod tests;
