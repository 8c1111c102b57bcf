//! The single-producer, single-consumer ring buffer that carries records from a thread to the
//! writer.
//!
//! Producer and consumer never wait for each other inside the protocol, and the process may be
//! killed between any two stores. So the producer stores the words of a record first, the word with
//! its state last, and after that the head that publishes the record. A published record is
//! completed in place: its state says "completing" first, then the words change, and the final
//! state comes last. The writer advances the tail only after it has saved the records. The producer
//! reuses a slot only after it has seen the tail beyond it.

use std::sync::atomic::compiler_fence;

use super::super::atomics::{AtomicU64, Ordering};
use gpumemtrace_format::ring::{clear_check, is_in_flight};

/// From this capacity on, a ring counts as large.
const LARGE_RING_RECORDS: u64 = 1 << 15;

/// The words of a ring in memory. A record has `N` words; the last one holds its state.
pub(crate) trait RingWords<const N: usize> {
    /// Number of slots, in records.
    fn capacity(&self) -> u64;

    /// Number of records ever published.
    fn head(&self) -> &AtomicU64;

    /// Number of records that the writer has saved.
    fn tail(&self) -> &AtomicU64;

    /// A copy of the tail, for readers of a damaged ring file.
    fn tail_copy(&self) -> &AtomicU64;

    /// The slot of record `number`.
    fn slot(&self, number: u64) -> &[AtomicU64; N];

    /// The last word of a record as it is stored: with a checksum over the record.
    fn seal(&self, number: u64, words: &[u64; N]) -> u64;

    /// The last word while the other words are being replaced by `words`.
    fn seal_completing(&self, number: u64, words: &[u64; N]) -> u64;

    /// Checks and removes the seal. Returns `None` if the record was changed since it was sealed.
    fn unseal(&self, number: u64, words: &[u64; N]) -> Option<[u64; N]>;

    /// Stores a record; the last word, which holds its state, comes last.
    #[inline]
    fn store(&self, number: u64, words: &[u64; N]) {
        let slot = self.slot(number);
        for (place, word) in slot.iter().zip(words).take(N - 1) {
            place.store(*word, Ordering::Relaxed);
        }
        slot[N - 1].store(self.seal(number, words), Ordering::Release);
    }

    /// Completes a record in place that was stored as in flight.
    #[inline]
    fn complete(&self, number: u64, words: &[u64; N]) {
        let last = self.seal_completing(number, words);
        self.slot(number)[N - 1].store(last, Ordering::Relaxed);
        // A kill leaves the stores in program order.
        compiler_fence(Ordering::SeqCst);
        self.store(number, words);
    }

    /// Loads a record. Unless it is in flight, all its words belong to the state that it shows. A
    /// record that the program has overwritten loads as zeros, which no valid record has.
    fn load(&self, number: u64) -> [u64; N] {
        let slot = self.slot(number);
        let last = slot[N - 1].load(Ordering::Acquire);
        let mut words = [0; N];
        for (word, place) in words.iter_mut().zip(slot).take(N - 1) {
            *word = place.load(Ordering::Relaxed);
        }
        words[N - 1] = last;
        if is_in_flight(last) {
            words[N - 1] = clear_check(last);
            return words;
        }
        self.unseal(number, &words).unwrap_or([0; N])
    }

    /// Passes complete records to `visit`, in order, until it returns false. Returns the number
    /// after the last visited record.
    ///
    /// A record in flight ends the visit. If the recording is closing, the record is visited as it
    /// is, because the writer will not wait for it. Slots stay occupied until
    /// [`Self::release_until`].
    fn visit_complete_records(&self, is_closing: bool, mut visit: impl FnMut(&[u64; N]) -> bool) -> u64 {
        let (head, mut number) = (self.head().load(Ordering::Acquire), self.tail().load(Ordering::Relaxed));
        while number < head {
            let words = self.load(number);
            if is_in_flight(words[N - 1]) && !is_closing {
                break;
            }
            number += 1;
            if !visit(&words) {
                break;
            }
        }
        number
    }

    /// Returns the slots of all records before `number` to the producer. The records must be saved.
    fn release_until(&self, number: u64) {
        self.tail_copy().store(number, Ordering::Relaxed);
        self.tail().store(number, Ordering::Release);
    }

    /// Number of records ever published.
    fn published(&self) -> u64 {
        self.head().load(Ordering::Acquire)
    }

    /// Number of records that were saved, with their slots returned to the producer.
    fn released(&self) -> u64 {
        self.tail().load(Ordering::Relaxed)
    }

    /// Number of records that wait for the writer.
    fn waiting(&self) -> u64 {
        let tail = self.tail().load(Ordering::Relaxed);
        self.head().load(Ordering::Relaxed) - tail
    }

    /// True if the writer should drain the ring now.
    fn is_low(&self) -> bool {
        self.waiting() + 1 >= wake_level(self.capacity())
    }
}

/// The producing end of a ring. Zero bytes are a producer without a ring.
#[derive(Debug)]
pub(crate) struct RingProducer<R, const N: usize> {
    ring: Option<R>,
    /// The number of the ring.
    index: usize,
    head: u64,
    /// The tail when it was last loaded; the real one may be further.
    tail: u64,
    /// Number of waiting records from which on the writer is woken.
    wake_level: u64,
}

/// How much space a ring has for new records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Enough, and the writer need not be woken.
    Ample,
    /// Enough, but the writer should be woken.
    Low,
    /// Not enough for these records.
    Full,
}

/// Number of waiting records from which on the writer is woken. A large ring absorbs a burst even
/// when it is three quarters full, and blocks of many rows compress best.
fn wake_level(capacity: u64) -> u64 {
    if capacity >= LARGE_RING_RECORDS { capacity / 4 * 3 } else { capacity / 4 }
}

impl<R: RingWords<N>, const N: usize> RingProducer<R, N> {
    /// Continues where the ring's last owner stopped.
    pub(crate) fn resume(ring: R, index: usize) -> Self {
        let (head, tail) = (ring.head().load(Ordering::Relaxed), ring.tail().load(Ordering::Relaxed));
        let wake_level = wake_level(ring.capacity());
        Self { ring: Some(ring), index, head, tail, wake_level }
    }

    /// Whether `records` more records fit now. Loads the tail only if the last known one does not
    /// do.
    #[inline]
    pub(crate) fn space(&mut self, records: u64) -> Space {
        let Some(ring) = &self.ring else { return Space::Full };
        if self.head + records - self.tail <= self.wake_level {
            return Space::Ample;
        }
        self.tail = ring.tail().load(Ordering::Acquire);
        match self.head + records - self.tail {
            used if used > ring.capacity() => Space::Full,
            used if used > self.wake_level => Space::Low,
            _ => Space::Ample,
        }
    }

    /// The tail when space was last asked for.
    pub(crate) fn known_tail(&self) -> u64 {
        self.tail
    }

    /// Stores and publishes one record, and returns its number. There must be space for it.
    #[inline]
    pub(crate) fn push(&mut self, words: &[u64; N]) -> u64 {
        let number = self.put(words);
        self.publish();
        number
    }

    /// Stores a record without publishing it. Definitions of several records are published
    /// together.
    pub(crate) fn put(&mut self, words: &[u64; N]) -> u64 {
        let number = self.head;
        if let Some(ring) = &self.ring {
            ring.store(number, words);
            self.head += 1;
        }
        number
    }

    /// Publishes everything stored so far.
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

    pub(crate) fn index(&self) -> usize {
        self.index
    }
}
