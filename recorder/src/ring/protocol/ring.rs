//! A ring: how one thread's records reach the writer whole, once and in order.
//!
//! Constraint: one thread stores, another loads, neither waits for the other, and the process may be killed between any two
//! stores. Consequence: a record's words come first, the word that says its state last, and the head that shows it after
//! that; a record that was shown is completed in place: its state says so first, and what it is at last. The writer moves the tail
//! only after it has brought the records to safety, and the owner stores to a place only after it has seen the tail beyond it.

use std::sync::atomic::compiler_fence;

use super::super::atomics::{AtomicU64, Ordering};
use gpumemtrace_format::ring::{is_in_flight, without_check};

/// Rings of so many records are large.
const LARGE_RECORDS: u64 = 1 << 15;

/// Where the words of a ring are. `N` words a record; the last holds its state.
pub(crate) trait RingWords<const N: usize> {
    /// Records there is room for.
    fn capacity(&self) -> u64;

    /// Records ever published.
    fn head(&self) -> &AtomicU64;

    /// Records that are in the trace.
    fn tail(&self) -> &AtomicU64;

    /// The same once more, for readers of a damaged file.
    fn tail_again(&self) -> &AtomicU64;

    /// The place of record number `number`.
    fn slot(&self, number: u64) -> &[AtomicU64; N];

    /// The last word of a record as it stands in the ring: with a check of all of it.
    fn seal(&self, number: u64, words: &[u64; N]) -> u64;

    /// The last word while the others are replaced by these.
    fn seal_completing(&self, number: u64, words: &[u64; N]) -> u64;

    /// The words that were sealed, if they are as they were.
    fn unseal(&self, number: u64, words: &[u64; N]) -> Option<[u64; N]>;

    /// Stores a record: the last word, which holds its state, at the end.
    #[inline]
    fn store(&self, number: u64, words: &[u64; N]) {
        let slot = self.slot(number);
        for (place, word) in slot.iter().zip(words).take(N - 1) {
            place.store(*word, Ordering::Relaxed);
        }
        slot[N - 1].store(self.seal(number, words), Ordering::Release);
    }

    /// Completes in place a record that was stored as in flight.
    #[inline]
    fn complete(&self, number: u64, words: &[u64; N]) {
        let last = self.seal_completing(number, words);
        self.slot(number)[N - 1].store(last, Ordering::Relaxed);
        // Whoever is killed has stored what comes first in the program.
        compiler_fence(Ordering::SeqCst);
        self.store(number, words);
    }

    /// Loads a record; its other words are of the state that it has, unless it is in flight. One that the program has written
    /// over is all zero, which no record is.
    fn load(&self, number: u64) -> [u64; N] {
        let slot = self.slot(number);
        let last = slot[N - 1].load(Ordering::Acquire);
        let mut words = [0; N];
        for (word, place) in words.iter_mut().zip(slot).take(N - 1) {
            *word = place.load(Ordering::Relaxed);
        }
        words[N - 1] = last;
        if is_in_flight(last) {
            words[N - 1] = without_check(last);
            return words;
        }
        self.unseal(number, &words).unwrap_or([0; N])
    }

    /// Shows the writer what is complete, in order, as long as `see` wants more; returns the number after the last. A call
    /// that has not returned ends it, unless the recording is closing: then nobody will wait for it, and it is taken as it is.
    /// The records stay where they are until [`Self::empty`].
    fn take(&self, is_closing: bool, mut see: impl FnMut(&[u64; N]) -> bool) -> u64 {
        let (head, mut number) = (self.head().load(Ordering::Acquire), self.tail().load(Ordering::Relaxed));
        while number < head {
            let words = self.load(number);
            if is_in_flight(words[N - 1]) && !is_closing {
                break;
            }
            number += 1;
            if !see(&words) {
                break;
            }
        }
        number
    }

    /// Gives the owner the places of the records before `number` back: they are safe elsewhere.
    fn empty(&self, number: u64) {
        self.tail_again().store(number, Ordering::Relaxed);
        self.tail().store(number, Ordering::Release);
    }

    /// Records that were ever shown.
    fn shown(&self) -> u64 {
        self.head().load(Ordering::Acquire)
    }

    /// Those of them that are safe elsewhere.
    fn emptied(&self) -> u64 {
        self.tail().load(Ordering::Relaxed)
    }

    /// Records that wait for the writer.
    fn waiting(&self) -> u64 {
        let tail = self.tail().load(Ordering::Relaxed);
        self.head().load(Ordering::Relaxed) - tail
    }

    /// True if the writer should not let it get fuller.
    fn is_low(&self) -> bool {
        self.waiting() + 1 >= wake_at(self.capacity())
    }
}

/// The producing end of a ring.
#[derive(Debug)]
pub(crate) struct RingProducer<R, const N: usize> {
    ring: Option<R>,
    /// The ring's number.
    index: usize,
    head: u64,
    /// A tail seen earlier: the real one is at least that.
    tail: u64,
    /// How full the ring may get before the writer is woken.
    wake_at: u64,
}

/// Whether there is room in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// More than the writer needs to be told about.
    Ample,
    /// There is, and the writer should be woken.
    Low,
    /// There is not.
    Full,
}

/// Records that wait for the writer before it is woken. A ring this large has room for a burst when it is three quarters full, and
/// blocks of many rows pack best.
fn wake_at(capacity: u64) -> u64 {
    if capacity >= LARGE_RECORDS { capacity / 4 * 3 } else { capacity / 4 }
}

impl<R: RingWords<N>, const N: usize> RingProducer<R, N> {
    /// Goes on where the ring's last owner ended.
    pub(crate) fn resume(ring: R, index: usize) -> Self {
        let (head, tail) = (ring.head().load(Ordering::Relaxed), ring.tail().load(Ordering::Relaxed));
        let wake_at = wake_at(ring.capacity());
        Self { ring: Some(ring), index, head, tail, wake_at }
    }

    /// Whether `records` can be stored now.
    #[inline]
    pub(crate) fn room(&mut self, records: u64) -> Space {
        let Some(ring) = &self.ring else { return Space::Full };
        if self.head + records - self.tail <= self.wake_at {
            return Space::Ample;
        }
        self.tail = ring.tail().load(Ordering::Acquire);
        match self.head + records - self.tail {
            used if used > ring.capacity() => Space::Full,
            used if used > self.wake_at => Space::Low,
            _ => Space::Ample,
        }
    }

    /// Puts one record into room that there is; returns its number.
    #[inline]
    pub(crate) fn push(&mut self, words: &[u64; N]) -> u64 {
        let number = self.put(words);
        self.publish();
        number
    }

    /// Stores a record without showing it yet: for definitions of several records, which appear as one.
    pub(crate) fn put(&mut self, words: &[u64; N]) -> u64 {
        let number = self.head;
        if let Some(ring) = &self.ring {
            ring.store(number, words);
            self.head += 1;
        }
        number
    }

    /// Shows everything stored so far.
    #[inline]
    pub(crate) fn publish(&self) {
        if let Some(ring) = &self.ring {
            ring.head().store(self.head, Ordering::Release);
        }
    }

    /// The ring, for completing a record in place.
    pub(crate) fn ring(&self) -> Option<&R> {
        self.ring.as_ref()
    }

    /// The ring's number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}
