//! The complete unwinder: captures native stacks with the `backtrace` crate.
//!
//! It handles frames that our own rules cannot, but takes about 100 ns a frame. So a walk also
//! notes where on the stack each return address lies. A later walk from the same address first
//! checks whether all of them are still there.

use gpumemtrace_format::NodeId;

use crate::platform::cancellation::uninterrupted;
use crate::platform::unload_counter::{unload_generation, unloads};
use crate::stacks::cache::{FrameKey, MAX_DEPTH, WalkExtent};

/// The last stack of a thread that the complete unwinder walked. All zero bytes are a valid, empty
/// value.
#[derive(Debug)]
pub(crate) struct FallbackMemo {
    /// The stack address at which the walk began.
    from: usize,
    depth: usize,
    slots: [ReturnAddressSlot; MAX_DEPTH],
    node: NodeId,
    /// The unloads before the walk: other code may lie at the same addresses since.
    generation: u32,
    is_truncated: bool,
}

/// An address on the stack, and the return address that was stored there.
#[derive(Clone, Copy, Debug)]
struct ReturnAddressSlot {
    at: usize,
    return_address: usize,
}

impl FallbackMemo {
    /// The node of the last stack, if a walk from `from` would find the same stack.
    #[inline]
    pub(crate) fn node_if_unchanged(&self, from: usize) -> Option<NodeId> {
        if self.from != from || self.depth == 0 || self.generation != unload_generation() {
            return None;
        }
        let same = self.slots[..self.depth].iter().all(|slot| {
            // SAFETY: between the caller's frame and the outermost frame of its own thread; that
            // end of a stack stays mapped.
            let there = unsafe { (slot.at as *const usize).read_volatile() };
            there == slot.return_address
        });
        same.then_some(self.node)
    }

    /// Forgets the stack of the thread that used this memo before.
    pub(crate) fn forget(&mut self) {
        self.depth = 0;
    }

    /// Remembers the node of the stack that [`Self::capture`] has just walked.
    pub(crate) fn remember(&mut self, node: NodeId, is_truncated: bool) {
        (self.node, self.is_truncated, self.generation) = (node, is_truncated, unload_generation());
    }

    /// True if outer frames of the last stack were omitted.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Writes the return addresses of the calling thread, innermost first, as many as fit into
    /// `frames`.
    ///
    /// `from` is an address in the caller's frame.
    pub(crate) fn capture(&mut self, from: usize, frames: &mut [FrameKey]) -> WalkExtent {
        let mut walk = WalkExtent { depth: 0, is_truncated: false };
        let mut is_regular = true;
        let mut slots = 0;
        // SAFETY: the unsynchronised form only forbids symbol resolution at the same time, which
        // this process never does through this crate.
        uninterrupted(|| unsafe {
            backtrace::trace_unsynchronized(|frame| {
                if walk.depth == frames.len() {
                    walk.is_truncated = true;
                    return false;
                }
                // Some unwinders report the end of the stack as a frame at address 0.
                if frame.ip().is_null() {
                    return false;
                }
                let return_address = frame.ip() as usize;
                let slot = ReturnAddressSlot { at: return_address_slot(frame.sp() as usize), return_address };
                // Frames below the caller belong to this walk, not to the stack.
                if slot.at > from {
                    // SAFETY: the word below a frame is where its return address was pushed;
                    // aligned, and above `from`.
                    is_regular &= slot.at.is_multiple_of(8)
                        && (slot.at as *const usize).read_volatile() == return_address;
                    self.slots[slots] = slot;
                    slots += 1;
                }
                frames[walk.depth] = FrameKey { code: 0, instr: return_address, tag: u64::from(unloads()) };
                walk.depth += 1;
                true
            });
        });
        // A signal frame was not called, so it has no return address below it: such a stack is
        // walked each time.
        (self.from, self.depth) = if is_regular { (from, slots) } else { (0, 0) };
        walk
    }
}

/// The address of the return address into a frame with this stack pointer: just below it, on
/// x86-64. On other processors it lies elsewhere, and such a stack is walked each time.
fn return_address_slot(stack_pointer: usize) -> usize {
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
            generation: 0,
            is_truncated: false,
        })
    }

    #[inline(never)]
    fn capture(
        last: &mut FallbackMemo,
        walks: &mut u32,
        frames: &mut [FrameKey; MAX_DEPTH],
    ) -> (NodeId, usize) {
        let here = 0u8;
        let from = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
        if let Some(node) = last.node_if_unchanged(from) {
            return (node, 0);
        }
        *walks += 1;
        let walk = last.capture(from, frames);
        last.remember(NodeId(*walks), walk.is_truncated);
        (NodeId(*walks), walk.depth)
    }

    #[inline(never)]
    fn deeper(last: &mut FallbackMemo, walks: &mut u32, frames: &mut [FrameKey; MAX_DEPTH]) -> NodeId {
        std::hint::black_box(capture(last, walks, frames)).0
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn unchanged_stack_is_not_walked_again() {
        let (mut last, mut walks, mut frames) = (empty(), 0, [FrameKey::default(); MAX_DEPTH]);
        let mut seen = Vec::new();
        // Unrolled, the calls would have three return addresses.
        for _ in 0..std::hint::black_box(3) {
            let (node, _) = capture(&mut last, &mut walks, &mut frames);
            seen.push(node);
        }
        assert_eq!(seen, [NodeId(1); 3]);
        // A call of the same depth from another line is another stack.
        let other = capture(&mut last, &mut walks, &mut frames).0;
        assert_ne!(other, NodeId(1));
        let below = deeper(&mut last, &mut walks, &mut frames);
        assert!(below != other && below != NodeId(1));
    }

    #[test]
    fn callers_are_found() {
        let (mut last, mut walks, mut frames) = (empty(), 0, [FrameKey::default(); MAX_DEPTH]);
        let (_, depth) = capture(&mut last, &mut walks, &mut frames);
        assert!(depth > 2);
        assert!(frames[..depth].iter().all(|frame| frame.instr != 0));
        let here = callers_are_found as *const () as usize;
        assert!(frames[..depth].iter().any(|frame| (here..here + 4096).contains(&frame.instr)));
    }
}
