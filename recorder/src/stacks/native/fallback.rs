//! Native call sites through the `backtrace` crate: the complete unwinder, for what our own rules cannot say.
//!
//! Constraint: it is complete but slow (about 100 ns a frame). Consequence: a walk also notes where on the stack each return
//! address lies; a later walk from the same place first looks whether all of them still lie there.

use gpumemtrace_format::NodeId;

use crate::stacks::cache::{FrameKey, MAX_DEPTH};
use crate::stacks::python::walk::WalkExtent;

/// The last native stack of a thread. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub(crate) struct FallbackMemo {
    /// Where the walk began.
    from: usize,
    depth: usize,
    slots: [ReturnAddressSlot; MAX_DEPTH],
    node: NodeId,
    is_truncated: bool,
}

/// A place on the stack, and the return address that lay there.
#[derive(Clone, Copy, Debug)]
struct ReturnAddressSlot {
    at: usize,
    return_address: usize,
}

impl FallbackMemo {
    /// The node of the last stack, if a walk from `from` would find the same.
    #[inline]
    pub(crate) fn node(&self, from: usize) -> Option<NodeId> {
        if self.from != from || self.depth == 0 {
            return None;
        }
        let same = self.slots[..self.depth].iter().all(|slot| {
            // SAFETY: between the frame that asks and the outermost frame of its own thread; stacks do not shrink at that end.
            let there = unsafe { (slot.at as *const usize).read_volatile() };
            there == slot.return_address
        });
        same.then_some(self.node)
    }

    /// Forgets the stack of the thread that had this block before.
    pub(crate) fn forget(&mut self) {
        self.depth = 0;
    }

    /// Remembers the node of the stack that [`Self::capture`] just walked.
    pub(crate) fn remember(&mut self, node: NodeId, is_truncated: bool) {
        (self.node, self.is_truncated) = (node, is_truncated);
    }

    /// Whether outer frames of it were left out.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Writes the return addresses of the calling thread, innermost first, as many as there is room for. `from` is an address in the caller's frame.
    pub(crate) fn capture(&mut self, from: usize, frames: &mut [FrameKey]) -> WalkExtent {
        let mut walk = WalkExtent { depth: 0, truncated: false };
        let mut is_regular = true;
        let mut slots = 0;
        // SAFETY: the unsynchronised form only forbids symbol resolution at the same time, which this process never does
        // through this crate.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                if walk.depth == frames.len() {
                    walk.truncated = true;
                    return false;
                }
                // Some unwinders report the end of the stack as a frame at address 0.
                if frame.ip().is_null() {
                    return false;
                }
                let return_address = frame.ip() as usize;
                let slot = ReturnAddressSlot { at: slot_below(frame.sp() as usize), return_address };
                // What lies below the caller belongs to this walk, not to the stack.
                if slot.at > from {
                    // SAFETY: the word below a frame is where its return address was pushed; aligned, and above `from`.
                    is_regular &= slot.at.is_multiple_of(8)
                        && (slot.at as *const usize).read_volatile() == return_address;
                    self.slots[slots] = slot;
                    slots += 1;
                }
                frames[walk.depth] = FrameKey { code: 0, instr: return_address, tag: 0 };
                walk.depth += 1;
                true
            });
        }
        // A frame that was not called (a signal's) has no return address below it: such a stack is walked each time.
        (self.from, self.depth) = if is_regular { (from, slots) } else { (0, 0) };
        walk
    }
}

/// Where the return address into a frame with this stack pointer lies: just below, on x86-64. Elsewhere it may be anywhere: what is below is not
/// it, and such a stack is walked each time.
fn slot_below(stack_pointer: usize) -> usize {
    stack_pointer.wrapping_sub(8)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn empty() -> Box<FallbackMemo> {
        let slot = ReturnAddressSlot { at: 0, return_address: 0 };
        Box::new(FallbackMemo {
            from: 0,
            depth: 0,
            slots: [slot; MAX_DEPTH],
            node: NodeId::NONE,
            is_truncated: false,
        })
    }

    #[inline(never)]
    fn look(last: &mut FallbackMemo, walks: &mut u32, frames: &mut [FrameKey; MAX_DEPTH]) -> (NodeId, usize) {
        let here = 0u8;
        let from = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
        if let Some(node) = last.node(from) {
            return (node, 0);
        }
        *walks += 1;
        let walk = last.capture(from, frames);
        last.remember(NodeId(*walks), walk.truncated);
        (NodeId(*walks), walk.depth)
    }

    #[inline(never)]
    fn deeper(last: &mut FallbackMemo, walks: &mut u32, frames: &mut [FrameKey; MAX_DEPTH]) -> NodeId {
        std::hint::black_box(look(last, walks, frames)).0
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_stack_is_walked_again_only_when_it_changed() {
        let (mut last, mut walks, mut frames) = (empty(), 0, [FrameKey::default(); MAX_DEPTH]);
        let mut seen = Vec::new();
        // Unrolled it would be three lines.
        for _ in 0..std::hint::black_box(3) {
            let (node, _) = look(&mut last, &mut walks, &mut frames);
            seen.push(node);
        }
        assert_eq!(seen, [NodeId(1); 3]);
        // The same depth from another line is another stack.
        let other = look(&mut last, &mut walks, &mut frames).0;
        assert_ne!(other, NodeId(1));
        let below = deeper(&mut last, &mut walks, &mut frames);
        assert!(below != other && below != NodeId(1));
    }

    #[test]
    fn the_callers_are_found() {
        let (mut last, mut walks, mut frames) = (empty(), 0, [FrameKey::default(); MAX_DEPTH]);
        let (_, depth) = look(&mut last, &mut walks, &mut frames);
        assert!(depth > 2);
        assert!(frames[..depth].iter().all(|frame| frame.instr != 0));
        let here = the_callers_are_found as *const () as usize;
        assert!(frames[..depth].iter().any(|frame| (here..here + 4096).contains(&frame.instr)));
    }
}
