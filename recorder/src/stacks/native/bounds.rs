//! The bounds of the calling thread's stack, and reads that stay inside them.
//!
//! A wrong rule, or a frame that was built by hand, may lead to any address, and a read there could
//! end the program. So the bounds are looked up once for each thread (which may read `/proc`), and
//! every address is checked against them. A stack pointer outside of the bounds belongs to an
//! alternate signal stack, a fibre or a coroutine. The bounds of those are unknown.

use crate::platform::cancellation::uninterrupted;
use crate::platform::process_memory::Memory;

/// The address range of a thread's stack. All zero bytes are a valid, empty range.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct StackBounds {
    low: usize,
    high: usize,
}

impl StackBounds {
    /// The range of the calling thread; empty if the C library does not know it.
    #[cold]
    pub(crate) fn of_this_thread() -> Self {
        let (low, high) = uninterrupted(crate::platform::stack_of_this_thread).unwrap_or_default();
        Self { low, high }
    }

    /// The part of the stack from `sp` outwards; `None` if `sp` lies outside of the stack.
    #[inline]
    pub(crate) fn above(&self, sp: usize) -> Option<BoundedStack> {
        // Words further in than the caller's own frame need not be mapped.
        let bytes = self.high.checked_sub(sp).filter(|_| sp >= self.low)? & !7;
        Some(BoundedStack { low: sp, last: bytes.checked_sub(8)? })
    }

    /// True if the stack has this many bytes below an address within it.
    pub(crate) fn has_below(&self, address: usize, bytes: usize) -> bool {
        address.checked_sub(self.low).is_some_and(|below| below >= bytes)
    }
}

/// Reads one part of a stack with plain loads, and nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundedStack {
    low: usize,
    /// Distance from `low` to the last word.
    last: usize,
}

impl Memory for BoundedStack {
    fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
        let offset = at.checked_sub(self.low)?;
        if out.len() > (self.last + 8).checked_sub(offset)? {
            return None;
        }
        // SAFETY: inside the calling thread's own stack, above one of its frames; the buffer is
        // ours.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, out.as_mut_ptr(), out.len()) };
        Some(())
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    fn word(&self, at: usize) -> Option<usize> {
        if at.wrapping_sub(self.low) > self.last {
            return None;
        }
        // SAFETY: as in `read`.
        Some(unsafe { (at as *const usize).read_unaligned() })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn local_variable_is_inside_the_stack_and_a_box_is_not() {
        let local = 42usize;
        let here = &raw const local as usize;
        let bounds = StackBounds::of_this_thread();
        assert_eq!(bounds.above(here).unwrap().word(here), Some(42));
        let elsewhere = Box::new(1);
        assert!(bounds.above(&raw const *elsewhere as usize).is_none());
        assert!(StackBounds::default().above(here).is_none());
    }

    proptest! {
        #[test]
        fn only_complete_words_inside_are_read(words in 1usize..6, at in 0usize..80, odd in 0usize..8) {
            let memory = [7usize; 6];
            let low = memory.as_ptr() as usize;
            let bounds = StackBounds { low, high: low + words * 8 + odd.min((6 - words) * 8) };
            let bounded = bounds.above(low).unwrap();
            let at = low.wrapping_add(at).wrapping_sub(16);
            let inside = at >= low && at + 8 <= low + words * 8;
            let mut bytes = [0; 8];
            if inside {
                prop_assert!(bounded.word(at).is_some() && bounded.read(at, &mut bytes).is_some());
            } else {
                prop_assert_eq!(bounded.word(at), None);
                prop_assert_eq!(bounded.read(at, &mut bytes), None);
            }
        }
    }
}
