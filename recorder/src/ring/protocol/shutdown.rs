//! Ending and pausing a recording while hooks may be running.
//!
//! The thread that ends or pauses must know that no hook is recording, and hooks must not pay for a
//! full fence at every event. So a hook marks itself with a plain store, then loads the state once.
//! The ending thread changes the state, makes all threads agree on the order
//! ([`heavy_fence`]), and then reads the marks. A hook that
//! finds the recording paused waits; refusing its event would lose it without a count. An end is
//! final, also if it comes during a pause.

use crossbeam_utils::CachePadded;

use super::super::atomics::{AtomicBool, AtomicU32, Ordering, heavy_fence, light_fence};

const RUNNING: u32 = 0;
const PAUSED: u32 = 1;
const ENDED: u32 = 2;

/// The state of a recording with `N` rings, and one "inside a hook" mark for each ring's owner.
#[derive(Debug)]
pub(crate) struct Shutdown<const N: usize> {
    inside: [CachePadded<AtomicBool>; N],
    state: CachePadded<AtomicU32>,
}

/// Marks the owner of a ring as inside a hook until it is dropped.
#[derive(Debug)]
pub(crate) struct HookGuard<'a>(&'a AtomicBool);

impl Drop for HookGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<const N: usize> Shutdown<N> {
    /// The state of a running recording without any hook inside.
    pub(crate) fn new() -> Self {
        Self {
            inside: std::array::from_fn(|_| CachePadded::new(AtomicBool::new(false))),
            state: CachePadded::new(AtomicU32::new(RUNNING)),
        }
    }

    /// Marks the owner of ring `index` as inside a hook. Calls `wait` while the recording is
    /// paused; returns `None` once it has ended.
    #[inline]
    pub(crate) fn enter_hook(&self, index: usize, wait: impl Fn()) -> Option<HookGuard<'_>> {
        let flag = &*self.inside[index];
        loop {
            flag.store(true, Ordering::Relaxed);
            light_fence();
            let guard = HookGuard(flag);
            match self.state.load(Ordering::Acquire) {
                RUNNING => return Some(guard),
                PAUSED => drop(guard),
                _ => return None,
            }
            // The mark stays cleared during the wait: otherwise the pausing thread would see it for
            // ever.
            while self.state.load(Ordering::Relaxed) == PAUSED {
                wait();
            }
        }
    }

    /// Ends the recording. Returns true if no hook is inside; none will enter afterwards.
    pub(crate) fn end(&self) -> bool {
        self.state.store(ENDED, Ordering::Relaxed);
        self.is_idle()
    }

    /// Ends the recording without a fence: hooks notice it eventually, and some may still be
    /// inside.
    pub(crate) fn announce_end(&self) {
        self.state.swap(ENDED, Ordering::Release);
    }

    /// Pauses the recording until [`Self::resume`]. Returns true if no hook is inside.
    pub(crate) fn pause(&self) -> bool {
        let _ = self.state.compare_exchange(RUNNING, PAUSED, Ordering::Relaxed, Ordering::Relaxed);
        self.is_idle()
    }

    /// Ends a pause, unless the recording has ended meanwhile.
    pub(crate) fn resume(&self) {
        let _ = self.state.compare_exchange(PAUSED, RUNNING, Ordering::Release, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        heavy_fence();
        !self.inside.iter().any(|inside| inside.load(Ordering::Acquire))
    }
}
