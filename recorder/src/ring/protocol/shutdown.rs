//! The end of a recording, and a pause of it: nobody begins to write any more, and nobody is in the middle of it.
//!
//! Constraint: one thread must know this at one moment, and the others must not pay for it at every event; and an event that is
//! refused in a pause would be lost without a count. Consequence: they mark with a plain store that they are inside, and look
//! once at whether recording goes on; who ends or pauses it stops new ones and makes all threads agree on the order
//! ([`super::super::atomics::heavy_fence`]) before it looks at the marks. Who finds a pause waits. The end is for good, also in a pause.

use crossbeam_utils::CachePadded;

use super::super::atomics::{AtomicBool, AtomicU32, Ordering, heavy_fence, light_fence};

const GOES_ON: u32 = 0;
const PAUSED: u32 = 1;
const ENDED: u32 = 2;

/// Marks of the owners of `N` rings.
#[derive(Debug)]
pub(crate) struct Shutdown<const N: usize> {
    inside: [CachePadded<AtomicBool>; N],
    state: CachePadded<AtomicU32>,
}

/// The owner of a ring is writing to it.
#[derive(Debug)]
pub(crate) struct HookGuard<'a>(&'a AtomicBool);

impl Drop for HookGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<const N: usize> Shutdown<N> {
    /// Nobody inside, not ended.
    pub(crate) fn new() -> Self {
        Self {
            inside: std::array::from_fn(|_| CachePadded::new(AtomicBool::new(false))),
            state: CachePadded::new(AtomicU32::new(GOES_ON)),
        }
    }

    /// Marks the owner of a ring as busy with it; `None` once recording is over. In a pause it runs `wait` until that is over.
    #[inline]
    pub(crate) fn go_inside(&self, index: usize, wait: impl Fn()) -> Option<HookGuard<'_>> {
        let flag = &*self.inside[index];
        loop {
            flag.store(true, Ordering::Relaxed);
            light_fence();
            let inside = HookGuard(flag);
            match self.state.load(Ordering::Acquire) {
                GOES_ON => return Some(inside),
                PAUSED => drop(inside),
                _ => return None,
            }
            // Without the mark: who pauses would see it again and again.
            while self.state.load(Ordering::Relaxed) == PAUSED {
                wait();
            }
        }
    }

    /// From now on no owner goes inside; true if none is inside either, and then none will be.
    pub(crate) fn detach(&self) -> bool {
        self.state.store(ENDED, Ordering::Relaxed);
        self.is_nobody_inside()
    }

    /// From now on no owner goes inside, as far as it has heard of it.
    pub(crate) fn announce(&self) {
        self.state.swap(ENDED, Ordering::Release);
    }

    /// From now until [`Self::resume`] no owner goes inside; true if none is inside either.
    pub(crate) fn pause(&self) -> bool {
        let _ = self.state.compare_exchange(GOES_ON, PAUSED, Ordering::Relaxed, Ordering::Relaxed);
        self.is_nobody_inside()
    }

    /// Lets those go on who wait, unless the recording has ended meanwhile.
    pub(crate) fn resume(&self) {
        let _ = self.state.compare_exchange(PAUSED, GOES_ON, Ordering::Release, Ordering::Relaxed);
    }

    fn is_nobody_inside(&self) -> bool {
        heavy_fence();
        !self.inside.iter().any(|inside| inside.load(Ordering::Acquire))
    }
}
