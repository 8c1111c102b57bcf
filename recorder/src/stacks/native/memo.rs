//! Remembers the last native stack of a thread, and finds out how much of it is still valid.
//!
//! A program that allocates in a loop has the same callers each time, and walking forty frames
//! costs two hundred nanoseconds. So for each frame the memo keeps the stack words that led to it.
//! The result of a walk follows from its first frame and from these words alone. A walk may reach a
//! frame of the memo with the same registers. If the words of all outer frames are unchanged then,
//! the rest of the stack is the same; it is neither walked nor interned again. Return addresses
//! are compared, and saved frame pointers as far as an outer frame is found through them: either
//! may change alone.
//!
//! Only words that were read within the thread's stack are compared; words below the caller's frame
//! are never read.

use crate::platform::unload_counter::unloads;
use gpumemtrace_format::NodeId;

use super::rule::{CheckedWords, UnwindFrame, UnwindRule, UnwindStep, UnwindStop, without_signature};
use super::rule_cache::RuleCache;
use crate::platform::process_memory::Memory;
use crate::stacks::cache::{FrameKey, MAX_DEPTH};
use crate::stacks::node_cache::{NodeCache, StackPrefix};

/// Entries of one stack: its frames, and further words that they were found through.
const MAX_ENTRIES: usize = MAX_DEPTH + 64;

/// The registers of one entry.
#[derive(Clone, Copy, Debug)]
struct NativeMemoEntry {
    sp: usize,
    fp: usize,
    /// A combination of [`IS_FRAME`] and the constants after it.
    flags: usize,
}

/// Flag: the entry is a frame, not a further word that a frame was found through.
const IS_FRAME: usize = 1;
/// Flag: a signal interrupted the frame.
const IS_INTERRUPTED: usize = 2;
/// Flag: the caller is found through this frame's frame pointer.
const USES_FP: usize = 4;
/// Flag: the caller has the same frame pointer.
const KEEPS_FP: usize = 8;
/// Flag: an outer frame is found through this frame's frame pointer. Most code is compiled without
/// frame pointers. The register then holds arbitrary values, which must not make two stacks differ.
const NEEDS_FP: usize = 16;

impl NativeMemoEntry {
    /// Notes how the rule of this frame treats the frame pointer.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    fn note_rule(&mut self, rule: &UnwindRule) {
        let uses = usize::from(rule.uses_fp()) * USES_FP;
        let keeps = usize::from(!rule.saves_fp()) * KEEPS_FP;
        self.flags = self.flags & !USES_FP | uses | keeps;
    }

    fn is_frame(&self) -> bool {
        self.flags & IS_FRAME != 0
    }
}

/// The last stack of a thread, outermost frame first. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub(crate) struct NativeStackMemo {
    /// The frame at which the last walk began; [`Self::node`] is its result. Zero means no walk.
    from: UnwindFrame,
    generation: u32,
    /// True if outer frames were omitted.
    is_truncated: bool,
    node: NodeId,
    len: usize,
    /// How much the depth limit is below [`MAX_DEPTH`].
    depth_reduction: usize,
    words: [CheckedWords; MAX_ENTRIES],
    /// Separate from `words`, which is compared at every event.
    entries: [NativeMemoEntry; MAX_ENTRIES],
    prefixes: [StackPrefix; MAX_ENTRIES],
    nodes: NodeCache,
    /// The entries that are new in this walk, innermost first.
    fresh: [(CheckedWords, NativeMemoEntry); MAX_ENTRIES],
}

/// How a stack differs from the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NativeStackChange {
    from: UnwindFrame,
    generation: u32,
    /// Number of entries that are still valid, from the outermost one on.
    valid: usize,
    /// Number of new entries in `NativeStackMemo::fresh`.
    fresh: usize,
    /// True if outer frames were omitted.
    pub is_truncated: bool,
}

impl NativeStackMemo {
    /// Forgets the stack of the thread that used this memo before. Its nodes stay known.
    pub(crate) fn forget(&mut self) {
        self.from = UnwindFrame::default();
        self.len = 0;
    }

    /// Limits stacks to their innermost `frames` frames.
    pub(crate) fn limit_depth(&mut self, frames: usize) {
        self.depth_reduction = MAX_DEPTH.saturating_sub(frames);
    }

    pub(super) fn max_depth(&self) -> usize {
        MAX_DEPTH - self.depth_reduction
    }

    /// The node of the last stack, and whether it was truncated, if a walk from `from` would find
    /// the same stack.
    ///
    /// `memory` must be able to read the words that an earlier walk has read further out than
    /// `from`.
    #[inline]
    pub(crate) fn node_if_unchanged<M: Memory>(
        &self,
        memory: &M,
        from: &UnwindFrame,
        generation: u32,
    ) -> Option<(NodeId, bool)> {
        if self.from != *from || self.generation != generation {
            return None;
        }
        let mut is_same = true;
        for words in &self.words[..self.len] {
            is_same &= are_unchanged(memory, words);
        }
        is_same.then_some((self.node, self.is_truncated))
    }

    /// Walks from a frame outwards until it reaches a valid entry. Returns an error if a frame
    /// needs the complete unwinder.
    ///
    /// `within` reads the thread's stack from `from` on and refuses other addresses; `memory` is as
    /// in [`Self::node_if_unchanged`]. `read` supplies unknown rules.
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
            // The outermost entry has unknown callers, or may have other callers by now.
            self.forget();
            self.is_truncated = false;
        }
        let mut change =
            NativeStackChange { from: *from, generation, valid: 0, fresh: 0, is_truncated: false };
        cache.sync_generation(generation);
        let (mut frame, mut depth, mut callee) = (*from, 0, 0);
        let mut place = self.valid_prefix(memory, from.sp);
        let mut next_at = self.entry_address(place);
        loop {
            let (rule, rule_at) = cache.find_or_read(callee, (frame.pc, frame.is_interrupted), &read);
            callee = rule_at;
            if let Some((_, entry)) = self.fresh[..change.fresh].last_mut() {
                entry.note_rule(&rule);
            }
            let step = match rule.step(within, &frame) {
                Ok(step) => step,
                Err(UnwindStop::Fallback) => return Err(UnwindStop::Fallback),
                Err(stop) => {
                    change.is_truncated = stop == UnwindStop::Invalid;
                    return Ok(change);
                }
            };
            if let Some(at) = rule.deref_address(&frame) {
                let value = within.word(at).ok_or(UnwindStop::Invalid)?;
                self.push_word(&mut change, &frame, &CheckedWords { addresses: [at; 2], values: [value; 2] });
            }
            // The outermost frame of a thread may have a null return address.
            if step.frame.pc == 0 {
                self.push_word(&mut change, &frame, &step.words);
                return Ok(change);
            }
            if step.words.addresses[0] >= next_at {
                // Skip entries that are further in than this step.
                while place > 0 && self.words[place - 1].addresses[0] < step.words.addresses[0] {
                    place -= 1;
                }
                next_at = self.entry_address(place);
                if place > 0 && self.is_same_entry(place - 1, &step) && self.fits(place, &change, depth) {
                    change.valid = place;
                    return Ok(change);
                }
            }
            frame = step.frame;
            if !self.push(&mut change, &mut depth, &step.words, &frame, true) {
                return Ok(change);
            }
        }
    }

    /// The address at which a walk reaches the innermost of the first `place` entries; `usize::MAX`
    /// for none.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of `walk`")]
    fn entry_address(&self, place: usize) -> usize {
        if place == 0 { usize::MAX } else { self.words[place - 1].addresses[0] }
    }

    /// Number of entries that are unchanged, from the outermost one on, as far as they lie above
    /// `sp`.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of `walk`")]
    fn valid_prefix<M: Memory>(&self, memory: &M, sp: usize) -> usize {
        let is_valid = |words: &&CheckedWords| {
            words.addresses[0].min(words.addresses[1]) >= sp && are_unchanged(memory, words)
        };
        self.words[..self.len].iter().take_while(is_valid).count()
    }

    /// Whether a stack of `valid` old entries and the new ones fits.
    fn fits(&self, valid: usize, change: &NativeStackChange, depth: usize) -> bool {
        usize::from(self.prefixes[valid - 1].depth) + depth <= self.max_depth()
            && valid + change.fresh <= MAX_ENTRIES
    }

    /// Adds a new entry. If it does not fit, marks the change as truncated and returns false.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop of `walk`")]
    fn push(
        &mut self,
        change: &mut NativeStackChange,
        depth: &mut usize,
        words: &CheckedWords,
        frame: &UnwindFrame,
        is_frame: bool,
    ) -> bool {
        if change.fresh == MAX_ENTRIES || is_frame && *depth == self.max_depth() {
            change.is_truncated = true;
            return false;
        }
        // Word by word: a copy of values that were just stored would load two of them at once, and
        // a load that spans two stores waits for both.
        let (new_words, entry) = &mut self.fresh[change.fresh];
        let ([ra_at, fp_at], [ra, fp]) = (words.addresses, words.values);
        new_words.addresses[0] = ra_at;
        new_words.addresses[1] = fp_at;
        new_words.values[0] = ra;
        new_words.values[1] = fp;
        entry.sp = frame.sp;
        entry.fp = frame.fp;
        // The rule of the frame is not known yet.
        entry.flags =
            usize::from(is_frame) * IS_FRAME + usize::from(frame.is_interrupted) * IS_INTERRUPTED + USES_FP;
        change.fresh += 1;
        *depth += usize::from(is_frame);
        true
    }

    /// Adds a word that the outer frames depend on and that is not a frame: one that a frame was
    /// found through, or the null return address. If the word does not fit, the frame does not fit
    /// either.
    #[cold]
    fn push_word(&mut self, change: &mut NativeStackChange, frame: &UnwindFrame, words: &CheckedWords) {
        self.push(change, &mut 0, words, frame, false);
    }

    /// Whether a step reached the address of an entry, with the same registers.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn is_same_entry(&self, place: usize, step: &UnwindStep) -> bool {
        let (words, entry) = (&self.words[place], &self.entries[place]);
        let frame = &step.frame;
        let flags = IS_FRAME + usize::from(frame.is_interrupted) * IS_INTERRUPTED;
        words.addresses[0] == step.words.addresses[0]
            && words.values[0] == step.words.values[0]
            && entry.sp == frame.sp
            && entry.flags & (IS_FRAME | IS_INTERRUPTED) == flags
            && (entry.flags & NEEDS_FP == 0
                || words.addresses[1] == step.words.addresses[1] && entry.fp == frame.fp)
    }

    /// Applies a change and returns the node of the new stack.
    ///
    /// `define(parent, frame)` is called for each unknown frame and returns its new id. If it
    /// returns `None`, the definition could not be recorded, and the node of the outer part of the
    /// stack is returned.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        change: &NativeStackChange,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        self.forget();
        (self.is_truncated, self.generation) = (change.is_truncated, change.generation);
        let Self { words, entries, prefixes, nodes, fresh, .. } = self;
        let (mut last, mut needs_fp) = match change.valid {
            0 => (StackPrefix::default(), change.is_truncated),
            valid => (prefixes[valid - 1], entries[valid - 1].flags & NEEDS_FP != 0),
        };
        let mut len = change.valid;
        for (new_words, entry) in fresh[..change.fresh].iter().rev() {
            (words[len], entries[len]) = (*new_words, *entry);
            if entry.is_frame() {
                last = last.with_frame(&key_of(new_words));
                needs_fp = entry.flags & USES_FP != 0 || needs_fp && entry.flags & KEEPS_FP != 0;
                entries[len].flags |= usize::from(needs_fp) * NEEDS_FP;
                if !needs_fp {
                    words[len] = new_words.without_fp();
                }
            } else {
                last = last.with_hidden_entry();
            }
            prefixes[len] = last;
            len += 1;
        }
        let (known, node) =
            nodes.resolve(&mut prefixes[..len], |parent, at| define(parent, &key_of(&words[at])));
        self.len = known;
        if known == len {
            (self.from, self.node) = (change.from, node);
        }
        node
    }
}

/// The frame that was found through these words.
fn key_of(words: &CheckedWords) -> FrameKey {
    FrameKey { code: 0, instr: without_signature(words.values[0]), tag: u64::from(unloads()) }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop over all frames")]
fn are_unchanged<M: Memory>(memory: &M, words: &CheckedWords) -> bool {
    memory.word(words.addresses[0]) == Some(words.values[0])
        && memory.word(words.addresses[1]) == Some(words.values[1])
}

#[cfg(all(test, not(miri)))]
mod tests;
