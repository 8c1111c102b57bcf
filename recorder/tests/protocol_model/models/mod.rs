//! Small models in which the protocol must hold.
//!
//! A record has three words here, and a ring two slots. Errors that occur with eight words and 8192
//! slots occur with these too.

mod recording;
mod rings;

use std::sync::Arc;

use gpumemtrace_format::event::{STATE_DONE, STATE_IN_FLIGHT};
use loom::cell::UnsafeCell;
use loom::thread;

use crate::atomics::{AtomicU64, run_delayed_stores};
use crate::protocol::ring::{RingProducer, RingWords, Space};

pub(crate) use recording::hasty_shutdown;
pub(crate) use rings::overfull_ring;

/// All models by name.
pub(crate) const MODELS: &[(&str, fn())] = &[
    ("ring", rings::ring),
    ("full ring", rings::full_ring),
    ("in flight", rings::in_flight),
    ("ownership", rings::ownership),
    ("shutdown", recording::shutdown),
    ("pause", recording::pause),
    ("end in a pause", recording::end_in_pause),
    ("closing", recording::closing),
    ("start", recording::start),
    ("failed start", recording::failed_start),
];

const WORDS: usize = 3;
const SLOTS: usize = 2;

/// A ring that claims to have `CLAIMED` slots.
#[derive(Clone, Debug)]
struct ModelRing<const CLAIMED: u64>(Arc<ModelRingState>);

type TwoSlotRing = ModelRing<{ SLOTS as u64 }>;

#[derive(Debug)]
struct ModelRingState {
    head: AtomicU64,
    tail: AtomicU64,
    tail_copy: AtomicU64,
    slots: [[AtomicU64; WORDS]; SLOTS],
    /// Accesses to each slot. Loom never moves a load behind a later store, so a missing ordering
    /// that only prevents that would go unnoticed; for these cells it demands an order.
    accesses: [UnsafeCell<()>; SLOTS],
}

impl<const CLAIMED: u64> ModelRing<CLAIMED> {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        let slot = || std::array::from_fn(|_| word());
        Self(Arc::new(ModelRingState {
            head: word(),
            tail: word(),
            tail_copy: word(),
            slots: std::array::from_fn(|_| slot()),
            accesses: std::array::from_fn(|_| UnsafeCell::new(())),
        }))
    }

    /// Notes that the owner stores to a slot.
    fn note_store(&self, number: u64) {
        self.0.accesses[number as usize % SLOTS].with_mut(|_| ());
    }

    /// Notes that the writer loads from a slot.
    fn note_load(&self, number: u64) {
        self.0.accesses[number as usize % SLOTS].with(|_| ());
    }
}

impl<const CLAIMED: u64> RingWords<WORDS> for ModelRing<CLAIMED> {
    fn capacity(&self) -> u64 {
        CLAIMED
    }

    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }

    fn tail(&self) -> &AtomicU64 {
        &self.0.tail
    }

    fn tail_copy(&self) -> &AtomicU64 {
        &self.0.tail_copy
    }

    fn slot(&self, number: u64) -> &[AtomicU64; WORDS] {
        &self.0.slots[number as usize % SLOTS]
    }

    // There is no checksum: it would detect errors that the models must detect themselves.
    fn seal(&self, _: u64, words: &[u64; WORDS]) -> u64 {
        words[WORDS - 1]
    }

    fn seal_completing(&self, _: u64, words: &[u64; WORDS]) -> u64 {
        words[WORDS - 1] & ((1 << 48) - 1) | u64::from(STATE_IN_FLIGHT) << 48
    }

    fn unseal(&self, _: u64, words: &[u64; WORDS]) -> Option<[u64; WORDS]> {
        Some(*words)
    }
}

/// Record `number`, in a form that shows whether it is complete.
fn record(number: u64, state: u16) -> [u64; WORDS] {
    let mark = if state == STATE_DONE { 100 } else { 200 };
    [mark + number, mark + number, number | u64::from(state) << 48]
}

fn done(number: u64) -> [u64; WORDS] {
    record(number, STATE_DONE)
}

fn wait() {
    run_delayed_stores();
    thread::yield_now();
}

fn reserve<R: RingWords<WORDS>>(producer: &mut RingProducer<R, WORDS>, records: u64) {
    while producer.space(records) == Space::Full {
        wait();
    }
}

/// Drains the ring like the writer until it has `count` records.
fn drain_until<const CLAIMED: u64>(ring: &ModelRing<CLAIMED>, count: u64) {
    let mut written = 0;
    while written < count {
        let number = ring.visit_complete_records(false, |words| {
            assert_eq!(*words, done(written), "record {written}");
            ring.note_load(written);
            written += 1;
            true
        });
        assert_eq!(number, written);
        ring.release_until(number);
        if written < count {
            wait();
        }
    }
    run_delayed_stores();
}
