//! A ring that logs all of its stores.

use gpumemtrace_format::event::{RECORD_BYTES, RECORD_WORDS};
use gpumemtrace_format::ring::{
    PAGE_BYTES, RING_HEAD_AT, RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RingLayout, seal,
    seal_completing, unseal,
};

use super::atomics;
use super::protocol::ring::RingWords;

pub(crate) const SLOTS: usize = 8;
pub(crate) const THREAD: u32 = 4711;
pub(crate) const SHAPE: RingLayout = RingLayout::uniform(1, SLOTS as u32);

pub(crate) struct LoggedRing {
    head: atomics::AtomicU64,
    tail: atomics::AtomicU64,
    tail_copy: atomics::AtomicU64,
    slots: [[atomics::AtomicU64; RECORD_WORDS]; SLOTS],
}

impl LoggedRing {
    pub(crate) fn new() -> Self {
        let offset = |slot: usize, word: usize| RING_RECORDS_AT + slot * RECORD_BYTES + 8 * word;
        let word = |at: usize| atomics::AtomicU64::at(PAGE_BYTES + at);
        Self {
            head: word(RING_HEAD_AT),
            tail: word(RING_TAIL_AT),
            tail_copy: word(RING_TAIL_AGAIN_AT),
            slots: std::array::from_fn(|slot| std::array::from_fn(|at| word(offset(slot, at)))),
        }
    }
}

impl RingWords<RECORD_WORDS> for &LoggedRing {
    fn capacity(&self) -> u64 {
        SLOTS as u64
    }

    fn head(&self) -> &atomics::AtomicU64 {
        &self.head
    }

    fn tail(&self) -> &atomics::AtomicU64 {
        &self.tail
    }

    fn tail_copy(&self) -> &atomics::AtomicU64 {
        &self.tail_copy
    }

    fn slot(&self, number: u64) -> &[atomics::AtomicU64; RECORD_WORDS] {
        &self.slots[number as usize % SLOTS]
    }

    fn seal(&self, number: u64, words: &[u64; RECORD_WORDS]) -> u64 {
        seal(words, number, THREAD)
    }

    fn seal_completing(&self, number: u64, words: &[u64; RECORD_WORDS]) -> u64 {
        seal_completing(words, number, THREAD)
    }

    fn unseal(&self, number: u64, words: &[u64; RECORD_WORDS]) -> Option<[u64; RECORD_WORDS]> {
        unseal(words, number, THREAD)
    }
}
