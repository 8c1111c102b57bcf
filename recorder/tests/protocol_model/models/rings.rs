//! Models of one ring and of the ownership of rings.

use std::sync::Arc;

use gpumemtrace_format::event::{STATE_DONE, STATE_IN_FLIGHT};
use loom::cell::UnsafeCell;
use loom::thread;

use super::{ModelRing, SLOTS, TwoSlotRing, done, drain_until, record, reserve, wait};
use crate::atomics::{AtomicU32, Ordering, run_delayed_stores};
use crate::protocol::ownership::RingOwnership;
use crate::protocol::ring::{RingProducer, RingWords, Space};

/// A definition of several records becomes visible at once and complete.
pub(super) fn ring() {
    let ring = TwoSlotRing::new();
    let owner = thread::spawn({
        let ring = ring.clone();
        move || {
            let mut producer = RingProducer::resume(ring, 0);
            reserve(&mut producer, 2);
            producer.put(&done(0));
            producer.put(&done(1));
            producer.publish();
            run_delayed_stores();
        }
    });
    let number = ring.visit_complete_records(false, |words| {
        assert_eq!(words[0], words[1]);
        true
    });
    assert!(number == 0 || number == 2, "half of a definition");
    drain_until(&ring, 2);
    owner.join().unwrap();
}

/// More records than slots.
pub(super) fn full_ring() {
    run_full_ring(&TwoSlotRing::new());
}

/// The same, with an owner that does not wait for the last slot. Must fail.
pub(crate) fn overfull_ring() {
    run_full_ring(&ModelRing::<{ SLOTS as u64 + 1 }>::new());
}

fn run_full_ring<const CLAIMED: u64>(ring: &ModelRing<CLAIMED>) {
    let owner = thread::spawn({
        let ring = ring.clone();
        move || {
            let mut producer = RingProducer::resume(ring, 0);
            for number in 0..3 {
                reserve(&mut producer, 1);
                producer.ring().unwrap().note_store(number);
                assert_eq!(producer.push(&done(number)), number);
            }
            run_delayed_stores();
        }
    });
    drain_until(ring, 3);
    owner.join().unwrap();
    assert_eq!(ring.waiting(), 0);
}

/// A record that is published before it is complete, and another one after it.
pub(super) fn in_flight() {
    let ring = TwoSlotRing::new();
    let owner = thread::spawn({
        let ring = ring.clone();
        move || {
            let mut producer = RingProducer::resume(ring, 0);
            reserve(&mut producer, 1);
            let number = producer.push(&record(0, STATE_IN_FLIGHT));
            producer.ring().unwrap().complete(number, &done(0));
            reserve(&mut producer, 1);
            producer.push(&done(1));
            run_delayed_stores();
        }
    });
    drain_until(&ring, 2);
    owner.join().unwrap();
}

/// One ring, owned by two threads in turn. The thread's private block is not atomic.
pub(super) fn ownership() {
    let ownership = Arc::new(RingOwnership::<1>::new());
    let ring = TwoSlotRing::new();
    let block = Arc::new(UnsafeCell::new(0u64));
    let prepared = Arc::new(UnsafeCell::new(0));
    let gone: Arc<[AtomicU32; 2]> = Arc::new(std::array::from_fn(|_| AtomicU32::new(0)));
    let threads: Vec<_> = [1u32, 2]
        .into_iter()
        .map(|id| {
            let (ownership, ring, block) = (Arc::clone(&ownership), ring.clone(), Arc::clone(&block));
            let (prepared, gone) = (Arc::clone(&prepared), Arc::clone(&gone));
            thread::spawn(move || {
                let prepare = |_| {
                    // SAFETY: loom checks that no other thread accesses it.
                    prepared.with_mut(|prepared| unsafe { *prepared = id });
                    true
                };
                let is_mine = ownership.claim(id, 0, prepare).is_some();
                if is_mine {
                    let mut producer = RingProducer::resume(ring, 0);
                    assert_eq!(producer.space(2), Space::Low, "an empty ring");
                    // SAFETY: loom checks that no other thread accesses it.
                    block.with_mut(|block| unsafe { *block += 1 });
                    producer.push(&[u64::from(id), 0, u64::from(STATE_DONE) << 48]);
                    run_delayed_stores();
                    gone[id as usize - 1].store(1, Ordering::Release);
                }
                run_delayed_stores();
                u32::from(is_mine)
            })
        })
        .collect();
    let mut written = 0;
    let mut drain = || {
        for (index, id) in ownership.in_use() {
            // SAFETY: loom checks that no other thread changes it.
            prepared.with(|prepared| assert_eq!(unsafe { *prepared }, id, "visible before it was prepared"));
            let number = ring.visit_complete_records(false, |words| {
                assert_eq!(words[0], u64::from(id), "another thread's record");
                written += 1;
                true
            });
            ring.release_until(number);
            if gone[id as usize - 1].load(Ordering::Acquire) == 1 && ring.waiting() == 0 {
                ownership.release(index);
            }
        }
        run_delayed_stores();
    };
    drain();
    wait();
    drain();
    let claimed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    drain();
    assert_eq!(written, claimed);
}
