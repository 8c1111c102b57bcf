//! The native stack as it was found last, and how much of it still stands.
//!
//! Constraint: a program that allocates in a loop has the same callers each time, and walking forty frames costs two hundred
//! nanoseconds. Consequence: of each frame the trail keeps the words that led to it. What a walk finds follows from the frame
//! it begins at and from these words alone: so where a walk meets a frame of the trail with the same registers, and the words
//! of all frames further out still hold what they held, the rest is the same and is neither walked nor interned again.
//! Return addresses *and* saved frame pointers are compared; either may change alone.
//!
//! Only words that were read within the thread's stack are ever compared; those below the frame that asks are never looked at.

use gpumemtrace_format::NodeId;

use super::rule::{CheckedWords, UnwindFrame, UnwindRule, UnwindStep, UnwindStop, without_signature};
use super::rule_cache::RuleCache;
use crate::platform::process_memory::Memory;
use crate::stacks::cache::{FrameKey, MAX_DEPTH, NodeCache, StackHash};

/// Frames, and the words that frames were found through.
const MAX_TRAIL: usize = MAX_DEPTH + 64;

/// What is known of a frame, and of the stack up to it.
///
/// Without padding, and compared word by word: the processor is slow to load what was stored in other pieces.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct NativeMemoEntry {
    sp: usize,
    fp: usize,
    node: NodeId,
    /// Frames that count, from the outermost one on.
    depth: u16,
    /// [`COUNTS`], [`IS_INTERRUPTED`].
    flags: u16,
    path: StackHash,
}

/// It has a place in a stack. A word that a frame was found through has none.
const COUNTS: u16 = 1;
/// As in the frame.
const IS_INTERRUPTED: u16 = 2;

impl NativeMemoEntry {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    fn new(frame: &UnwindFrame, counts: bool) -> Self {
        let flags = u16::from(counts) * COUNTS + u16::from(frame.is_interrupted) * IS_INTERRUPTED;
        Self { sp: frame.sp, fp: frame.fp, node: NodeId::NONE, depth: 0, flags, path: StackHash::default() }
    }

    fn counts(&self) -> bool {
        self.flags & COUNTS != 0
    }
}

/// The stack of a thread, outermost frame first. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub(crate) struct NativeStackMemo {
    /// Where the walk began: [`Self::node`] is its answer. An address of 0: nowhere.
    from: UnwindFrame,
    generation: u32,
    /// Whether outer frames were left out.
    is_truncated: bool,
    node: NodeId,
    len: usize,
    /// Frames fewer than [`MAX_DEPTH`] that a stack may have.
    fewer: usize,
    seen: [CheckedWords; MAX_TRAIL],
    /// Apart from what is compared at every event.
    known: [NativeMemoEntry; MAX_TRAIL],
    nodes: NodeCache,
    /// What is new, innermost first.
    fresh: [(CheckedWords, NativeMemoEntry); MAX_TRAIL],
}

/// What has changed since the last walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NativeStackChange {
    from: UnwindFrame,
    generation: u32,
    /// Entries of the trail that still stand.
    kept: usize,
    /// Entries that are new, in `NativeStackMemo::fresh`.
    fresh: usize,
    /// Whether outer frames were left out.
    pub is_truncated: bool,
}

impl NativeStackMemo {
    /// Forgets the stack of the thread that had this trail before. Its nodes stay known.
    pub(crate) fn forget(&mut self) {
        self.from = UnwindFrame::default();
        self.len = 0;
    }

    /// From now on stacks have at most so many frames, their innermost ones.
    pub(crate) fn limit(&mut self, frames: usize) {
        self.fewer = MAX_DEPTH.saturating_sub(frames);
    }

    pub(super) fn most(&self) -> usize {
        MAX_DEPTH - self.fewer
    }

    /// The node of the last stack, and whether it was truncated, if a walk from `from` would find the same.
    ///
    /// `memory` must be able to read what an earlier walk has read further out than `from`.
    #[inline]
    pub(crate) fn unchanged<M: Memory>(
        &self,
        memory: &M,
        from: &UnwindFrame,
        generation: u32,
    ) -> Option<(NodeId, bool)> {
        if self.from != *from || self.generation != generation {
            return None;
        }
        let mut stands = true;
        for seen in &self.seen[..self.len] {
            stands &= holds(memory, seen);
        }
        stands.then_some((self.node, self.is_truncated))
    }

    /// Walks from a frame outwards, as far as the trail does not stand. `Err` if a frame needs the complete unwinder.
    ///
    /// `within` reads the thread's stack from `from` on, and refuses anything else; `memory` is as in [`Self::unchanged`].
    #[inline]
    pub(crate) fn walk<B: Memory, M: Memory>(
        &mut self,
        (within, memory): (&B, &M),
        cache: &mut RuleCache,
        from: &UnwindFrame,
        generation: u32,
        read: impl Fn(usize, bool) -> Option<UnwindRule>,
    ) -> Result<NativeStackChange, UnwindStop> {
        if self.is_truncated || self.generation != generation {
            // Its outermost frame has callers, or may have others by now.
            self.forget();
            self.is_truncated = false;
        }
        let mut change =
            NativeStackChange { from: *from, generation, kept: 0, fresh: 0, is_truncated: false };
        cache.begin(generation);
        let (mut frame, mut depth, mut callee) = (*from, 0, 0);
        let mut place = self.standing(memory, from.sp);
        let mut next_at = self.at(place);
        loop {
            let (rule, rule_at) = cache.rule(callee, (frame.pc, frame.is_interrupted), &read);
            callee = rule_at;
            let step = match rule.step(within, &frame) {
                Ok(step) => step,
                Err(UnwindStop::Fallback) => return Err(UnwindStop::Fallback),
                Err(stop) => {
                    change.is_truncated = stop == UnwindStop::Astray;
                    return Ok(change);
                }
            };
            if let Some(at) = rule.through(&frame) {
                let held = within.word(at).ok_or(UnwindStop::Astray)?;
                self.note(&mut change, &frame, &CheckedWords { at: [at; 2], held: [held; 2] });
            }
            // Where a thread begins there may be no caller's address.
            if step.frame.pc == 0 {
                self.note(&mut change, &frame, &step.seen);
                return Ok(change);
            }
            if step.seen.at[0] >= next_at {
                // Entries further in than the walk has come are passed over.
                while place > 0 && self.seen[place - 1].at[0] < step.seen.at[0] {
                    place -= 1;
                }
                next_at = self.at(place);
                if place > 0 && self.is_at(place - 1, &step) && self.has_room(place, &change, depth) {
                    change.kept = place;
                    return Ok(change);
                }
            }
            frame = step.frame;
            if !self.push(&mut change, &mut depth, &step.seen, &NativeMemoEntry::new(&frame, true)) {
                return Ok(change);
            }
        }
    }

    /// Where the walk may meet the innermost of so many entries; nowhere, if there is none.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of `walk`")]
    fn at(&self, place: usize) -> usize {
        if place == 0 { usize::MAX } else { self.seen[place - 1].at[0] }
    }

    /// How many entries hold what they held, from the outermost one on, as far as they lie above a stack pointer.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of `walk`")]
    fn standing<M: Memory>(&self, memory: &M, sp: usize) -> usize {
        let stands = |seen: &&CheckedWords| seen.at[0].min(seen.at[1]) >= sp && holds(memory, seen);
        self.seen[..self.len].iter().take_while(stands).count()
    }

    /// Whether a stack of so many old entries and the new ones fits.
    fn has_room(&self, kept: usize, change: &NativeStackChange, depth: usize) -> bool {
        self.known[kept - 1].depth as usize + depth <= self.most() && kept + change.fresh <= MAX_TRAIL
    }

    /// False, and truncated, if there is no room.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop of `walk`")]
    fn push(
        &mut self,
        change: &mut NativeStackChange,
        depth: &mut usize,
        seen: &CheckedWords,
        known: &NativeMemoEntry,
    ) -> bool {
        if change.fresh == MAX_TRAIL || known.counts() && *depth == self.most() {
            change.is_truncated = true;
            return false;
        }
        self.fresh[change.fresh] = (*seen, *known);
        change.fresh += 1;
        *depth += usize::from(known.counts());
        true
    }

    /// A word that the rest depends on and that is no frame's: one that a frame was found through, or the one that says that
    /// there is no caller. Where there is no room for it, there is none for the frame.
    #[cold]
    fn note(&mut self, change: &mut NativeStackChange, frame: &UnwindFrame, seen: &CheckedWords) {
        self.push(change, &mut 0, seen, &NativeMemoEntry::new(frame, false));
    }

    /// Whether a step came to where an entry is, with the same registers.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn is_at(&self, place: usize, step: &UnwindStep) -> bool {
        let (seen, known) = (&self.seen[place], &self.known[place]);
        let frame = &step.frame;
        let is_same = known.flags == u16::from(frame.is_interrupted) * IS_INTERRUPTED + COUNTS;
        seen.at[0] == step.seen.at[0]
            && seen.held[0] == step.seen.held[0]
            && seen.at[1] == step.seen.at[1]
            && known.fp == frame.fp
            && known.sp == frame.sp
            && is_same
    }

    /// The node of the stack after a change.
    ///
    /// `define(parent, frame)` is called for each frame not known yet and returns its new id, or `None` when the definition
    /// could not be recorded: the stack is then cut there (its outer part is returned).
    #[inline]
    pub(crate) fn follow(
        &mut self,
        change: &NativeStackChange,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let old_len = self.len;
        let (mut parent, mut path, mut depth) = match change.kept {
            0 => (NodeId::NONE, StackHash::default(), 0),
            kept => {
                let known = &self.known[kept - 1];
                (known.node, known.path, known.depth)
            }
        };
        self.forget();
        (self.len, self.is_truncated, self.generation) =
            (change.kept, change.is_truncated, change.generation);
        for (seen, known) in self.fresh[..change.fresh].iter().rev() {
            if known.counts() {
                let key = FrameKey { code: 0, instr: without_signature(seen.held[0]), tag: 0 };
                let further = path.then(&key);
                // Frames that moved, and run the same as before, keep their nodes.
                parent = if self.len < old_len && self.known[self.len].path == further {
                    self.known[self.len].node
                } else {
                    match self.nodes.find_or(further, || define(parent, &key)) {
                        Some(node) => node,
                        None => return parent,
                    }
                };
                path = further;
                depth += 1;
            }
            self.seen[self.len] = *seen;
            self.known[self.len] = NativeMemoEntry { node: parent, depth, path, ..*known };
            self.len += 1;
        }
        (self.from, self.node) = (change.from, parent);
        parent
    }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop over all frames")]
fn holds<M: Memory>(memory: &M, seen: &CheckedWords) -> bool {
    memory.word(seen.at[0]) == Some(seen.held[0]) && memory.word(seen.at[1]) == Some(seen.held[1])
}

#[cfg(all(test, not(miri)))]
mod tests;
