//! Which thread owns which ring.
//!
//! Constraint: a ring has one producer at a time, a thread does not say when it ends, and the pages of a ring that was never
//! used may not even be looked at: on a full disk they cannot be had, and the kernel would answer with a signal. Consequence:
//! a ring is reserved, made ready, and only then shown to the writer; the writer alone gives it on, once the owner has ended
//! and the ring is empty.

use super::super::atomics::{AtomicU32, Ordering};

/// Owners of `N` rings, as thread ids.
#[derive(Debug)]
pub(crate) struct RingOwnership<const N: usize>([AtomicU32; N]);

const FREE: u32 = 0;
/// Reserved and not ready yet; no thread has this id.
const RESERVED: u32 = u32::MAX;

impl<const N: usize> RingOwnership<N> {
    /// All free.
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(FREE)))
    }

    /// A free ring for a thread, from number `first` on, which `prepare` makes ready for it; `None` if there is none or it cannot
    /// be made ready.
    pub(crate) fn claim(
        &self,
        thread: u32,
        first: usize,
        prepare: impl FnOnce(usize) -> bool,
    ) -> Option<usize> {
        let index = (first..N).find(|index| {
            let owner = &self.0[*index];
            owner.load(Ordering::Relaxed) == FREE
                && owner.compare_exchange(FREE, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        let is_ready = prepare(index);
        self.0[index].store(if is_ready { thread } else { FREE }, Ordering::Release);
        is_ready.then_some(index)
    }

    /// Rings in use, with their owners.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (usize, u32)> {
        self.0.iter().enumerate().filter_map(|(index, owner)| match owner.load(Ordering::Acquire) {
            FREE | RESERVED => None,
            thread => Some((index, thread)),
        })
    }

    /// Gives the ring of a thread that ended, and that was emptied, to whoever comes next.
    pub(crate) fn release(&self, index: usize) {
        self.0[index].store(FREE, Ordering::Release);
    }
}
