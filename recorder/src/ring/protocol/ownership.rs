//! Which thread owns which ring.
//!
//! A ring has one producer at a time, and a thread does not announce its end. The pages of an
//! unused ring may not even exist: on a full disk, touching them raises SIGBUS. So a thread
//! reserves a ring, prepares it, and only then shows it to the writer. Only the writer releases a
//! ring, once the owner has ended and the ring is empty.

use super::super::atomics::{AtomicU32, Ordering};

/// The owners of `N` rings, as thread ids.
#[derive(Debug)]
pub(crate) struct RingOwnership<const N: usize>([AtomicU32; N]);

const FREE: u32 = 0;
/// Reserved but not prepared yet; no thread has this id.
const RESERVED: u32 = u32::MAX;

impl<const N: usize> RingOwnership<N> {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(FREE)))
    }

    /// Claims a free ring with a number of at least `first` for `thread`, and returns its number.
    ///
    /// `prepare` makes the ring ready before the writer sees it. Returns `None` if no ring is free
    /// or `prepare` fails.
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

    /// The rings in use, each with the id of its owner.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (usize, u32)> {
        self.0.iter().enumerate().filter_map(|(index, owner)| match owner.load(Ordering::Acquire) {
            FREE | RESERVED => None,
            thread => Some((index, thread)),
        })
    }

    /// Frees the ring of a thread that has ended. The ring must be empty.
    pub(crate) fn release(&self, index: usize) {
        self.0[index].store(FREE, Ordering::Release);
    }
}
