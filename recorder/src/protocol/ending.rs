//! The end of a recording: nobody begins to write any more, and nobody is in the middle of it.
//!
//! Constraint: one thread must know this at one moment, and the others must not pay for it at every event. Consequence: they
//! mark with a plain store that they are inside; who ends the recording stops new ones and makes all threads agree on the
//! order ([`crate::sync::heavy_fence`]) before it looks at the marks.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, Ordering, heavy_fence, light_fence};

/// Marks of the owners of `N` rings.
#[derive(Debug)]
pub(crate) struct Ending<const N: usize> {
    inside: [CachePadded<AtomicBool>; N],
    detached: CachePadded<AtomicBool>,
}

/// The owner of a ring is writing to it.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<const N: usize> Ending<N> {
    /// Nobody inside, not ended.
    pub(crate) fn new() -> Self {
        Self {
            inside: std::array::from_fn(|_| CachePadded::new(AtomicBool::new(false))),
            detached: CachePadded::new(AtomicBool::new(false)),
        }
    }

    /// Marks the owner of a ring as busy with it; `None` once recording is over.
    #[inline]
    pub(crate) fn go_inside(&self, index: usize) -> Option<Inside<'_>> {
        let flag = &*self.inside[index];
        flag.store(true, Ordering::Relaxed);
        light_fence();
        let inside = Inside(flag);
        (!self.detached.load(Ordering::Relaxed)).then_some(inside)
    }

    /// From now on no owner goes inside; true if none is inside either, and then none will be.
    pub(crate) fn detach(&self) -> bool {
        self.detached.store(true, Ordering::Relaxed);
        heavy_fence();
        !self.inside.iter().any(|inside| inside.load(Ordering::Acquire))
    }

    /// From now on no owner goes inside, as far as it has heard of it.
    pub(crate) fn announce(&self) {
        self.detached.store(true, Ordering::Release);
    }
}
