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

use super::cache::RuleCache;
use super::rule::{Frame, Rule, Seen, Step, Stop};
use crate::python::memory::Memory;
use crate::stack_cache::{FrameKey, MAX_DEPTH, NodeCache};

/// Frames, and the words that frames were found through.
const MAX_TRAIL: usize = MAX_DEPTH + 64;

/// What is known of a frame, and of the stack up to it.
#[derive(Clone, Copy, Debug)]
struct Known {
    frame: Frame,
    node: NodeId,
    /// False for a word that a frame was found through: it has no place in a stack.
    counts: bool,
    /// Frames that count, from the outermost one on.
    depth: u16,
}

/// The stack of a thread, outermost frame first. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct Trail {
    /// Where the walk began: [`Self::node`] is its answer. An address of 0: nowhere.
    from: Frame,
    generation: u32,
    /// Whether outer frames were left out.
    is_truncated: bool,
    node: NodeId,
    len: usize,
    seen: [Seen; MAX_TRAIL],
    /// Apart from what is compared at every event.
    known: [Known; MAX_TRAIL],
    nodes: NodeCache,
    /// What is new, innermost first.
    fresh: [(Seen, Known); MAX_TRAIL],
}

/// What has changed since the last walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    from: Frame,
    generation: u32,
    /// Entries of the trail that still stand.
    kept: usize,
    /// Entries that are new, in `Trail::fresh`.
    fresh: usize,
    /// Whether outer frames were left out.
    pub is_truncated: bool,
}

impl Trail {
    /// Forgets the stack of the thread that had this trail before. Its nodes stay known.
    pub fn forget(&mut self) {
        self.from = Frame::default();
        self.len = 0;
    }

    /// The node of the last stack, and whether it was truncated, if a walk from `from` would find the same.
    ///
    /// `memory` must be able to read what an earlier walk has read further out than `from`.
    #[inline]
    pub fn unchanged<M: Memory>(&self, memory: &M, from: &Frame, generation: u32) -> Option<(NodeId, bool)> {
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
    pub fn walk<B: Memory, M: Memory>(
        &mut self,
        (within, memory): (&B, &M),
        cache: &mut RuleCache,
        from: &Frame,
        generation: u32,
        read: impl Fn(usize, bool) -> Option<Rule>,
    ) -> Result<Change, Stop> {
        if self.is_truncated || self.generation != generation {
            // Its outermost frame has callers, or may have others by now.
            self.forget();
            self.is_truncated = false;
        }
        let mut change = Change { from: *from, generation, kept: 0, fresh: 0, is_truncated: false };
        let (mut frame, mut depth) = (*from, 0);
        // Entries further in than the walk has come are passed over.
        let mut place = self.len;
        loop {
            let rule = cache.rule((frame.pc, frame.is_interrupted), generation, &read);
            let step = match rule.step(within, &frame) {
                Ok(step) => step,
                Err(Stop::Slowly) => return Err(Stop::Slowly),
                Err(stop) => {
                    change.is_truncated = stop == Stop::Astray;
                    return Ok(change);
                }
            };
            if step.through[0] != 0 && !self.note_word(&mut change, &frame, step.through) {
                return Ok(change);
            }
            frame = step.frame;
            // Where a thread begins there may be no caller's address.
            if frame.pc == 0 {
                self.note_end(&mut change, &step);
                return Ok(change);
            }
            while place > 0 && self.seen[place - 1].at[0] < step.seen.at[0] {
                place -= 1;
            }
            if place > 0 && self.is_at(place - 1, &step) {
                let stands = self.standing(memory, place);
                if stands == 0 {
                    let below = self.known[place - 1].depth as usize;
                    change.kept = place;
                    change.is_truncated = depth + below > MAX_DEPTH || place + change.fresh > MAX_TRAIL;
                    if !change.is_truncated {
                        return Ok(change);
                    }
                    // Too deep by now: from here on as if nothing were known.
                    change.kept = 0;
                    change.is_truncated = false;
                    place = 0;
                } else {
                    // What stands need not be walked, but has another caller.
                    for at in (stands..place).rev() {
                        if !self.push(&mut change, &mut depth, self.seen[at], self.known[at]) {
                            return Ok(change);
                        }
                    }
                    frame = self.known[stands].frame;
                    place = stands;
                    continue;
                }
            }
            let known = Known { frame, node: NodeId::NONE, counts: true, depth: 0 };
            if !self.push(&mut change, &mut depth, step.seen, known) {
                return Ok(change);
            }
        }
    }

    /// False, and truncated, if there is no room.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop of `walk`")]
    fn push(&mut self, change: &mut Change, depth: &mut usize, seen: Seen, known: Known) -> bool {
        if change.fresh == MAX_TRAIL || known.counts && *depth == MAX_DEPTH {
            change.is_truncated = true;
            return false;
        }
        self.fresh[change.fresh] = (seen, known);
        change.fresh += 1;
        *depth += usize::from(known.counts);
        true
    }

    #[cold]
    fn note_word(&mut self, change: &mut Change, frame: &Frame, [at, held]: [usize; 2]) -> bool {
        let known = Known { frame: *frame, node: NodeId::NONE, counts: false, depth: 0 };
        self.push(change, &mut 0, Seen { at: [at; 2], held: [held; 2] }, known)
    }

    /// The word that says that there is no caller.
    #[cold]
    fn note_end(&mut self, change: &mut Change, step: &Step) {
        let known = Known { frame: step.frame, node: NodeId::NONE, counts: false, depth: 0 };
        self.push(change, &mut 0, step.seen, known);
    }

    /// Whether a step came to where an entry is, with the same registers.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn is_at(&self, place: usize, step: &Step) -> bool {
        let (seen, known) = (&self.seen[place], &self.known[place]);
        seen.at == step.seen.at && known.frame == step.frame && known.counts
    }

    /// The outermost entry up to which all from `place` on stand, `place - 1` being known to; 0: all.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn standing<M: Memory>(&self, memory: &M, place: usize) -> usize {
        let mut stands = place - 1;
        while stands > 0 && holds(memory, &self.seen[stands - 1]) {
            stands -= 1;
        }
        // A word that a frame was found through is read again with that frame.
        while stands > 0 && !self.known[stands].counts {
            stands += 1;
        }
        stands
    }

    /// The node of the stack after a change.
    ///
    /// `define(parent, frame)` is called for each frame not known yet and returns its new id, or `None` when the definition
    /// could not be recorded: the stack is then cut there (its outer part is returned).
    #[inline]
    pub fn follow(
        &mut self,
        cache: &mut RuleCache,
        change: &Change,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let old_len = self.len;
        let (mut parent, mut depth) = match change.kept {
            0 => (NodeId::NONE, 0),
            kept => (self.known[kept - 1].node, self.known[kept - 1].depth),
        };
        self.forget();
        (self.len, self.is_truncated, self.generation) =
            (change.kept, change.is_truncated, change.generation);
        // Frames that moved, and run the same as before, keep their nodes.
        let mut as_before = true;
        for (seen, known) in self.fresh[..change.fresh].iter().rev() {
            let mut known = *known;
            let Frame { pc, is_interrupted, .. } = known.frame;
            let before = &self.known[self.len];
            as_before &= self.len < old_len && before.counts == known.counts && before.frame.pc == pc;
            known.node = if !known.counts {
                parent
            } else if as_before {
                before.node
            } else if let Some(node) = cache.node(pc, is_interrupted, parent) {
                node
            } else {
                let key = FrameKey { code: 0, instr: pc, tag: 0 };
                let node = match self.nodes.lookup(parent, &key) {
                    Some(node) => node,
                    None => match define(parent, &key) {
                        Some(node) => {
                            self.nodes.insert(parent, key, node);
                            node
                        }
                        None => return parent,
                    },
                };
                cache.set_node(pc, is_interrupted, parent, node);
                node
            };
            depth += u16::from(known.counts);
            known.depth = depth;
            self.seen[self.len] = *seen;
            self.known[self.len] = known;
            self.len += 1;
            parent = known.node;
        }
        (self.from, self.node) = (change.from, parent);
        parent
    }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop over all frames")]
fn holds<M: Memory>(memory: &M, seen: &Seen) -> bool {
    memory.word(seen.at[0]) == Some(seen.held[0]) && memory.word(seen.at[1]) == Some(seen.held[1])
}

#[cfg(test)]
mod tests;
