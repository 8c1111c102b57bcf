//! Models of the start, the pause and the end of a recording.

use std::sync::Arc;

use gpumemtrace_format::event::STATE_IN_FLIGHT;
use loom::cell::UnsafeCell;
use loom::thread;

use super::{TwoSlotRing, done, record, wait};
use crate::atomics::{AtomicU32, Ordering, run_delayed_stores};
use crate::protocol::ring::{RingProducer, RingWords};
use crate::protocol::shutdown::Shutdown;
use crate::protocol::start::{OFF, StartState};

/// The shutdown thread accesses what the hooks write to, which is not atomic.
pub(super) fn shutdown() {
    run_shutdown(true);
}

/// The same, without waiting for the hooks inside. Must fail.
pub(crate) fn hasty_shutdown() {
    run_shutdown(false);
}

fn run_shutdown(waits: bool) {
    let shared = Arc::new((Shutdown::<2>::new(), [UnsafeCell::new(0u64), UnsafeCell::new(0u64)]));
    let threads: Vec<_> = (0..2)
        .map(|index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..2 - index {
                    if let Some(_guard) = shared.0.enter_hook(index, wait) {
                        // SAFETY: loom checks that no other thread accesses it.
                        shared.1[index].with_mut(|word| unsafe { *word += 1 });
                    }
                    run_delayed_stores();
                }
            })
        })
        .collect();
    while !shared.0.end() && waits {
        wait();
    }
    for word in &shared.1 {
        // SAFETY: loom checks that no other thread accesses it, now or later.
        word.with_mut(|word| unsafe { *word = 7 });
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for word in &shared.1 {
        // SAFETY: all threads have ended.
        word.with(|word| assert_eq!(unsafe { *word }, 7, "a hook stored after the end"));
    }
}

/// The pausing thread changes what the hooks write to, which is not atomic. No hook loses an event.
pub(super) fn pause() {
    let shared = Arc::new((Shutdown::<1>::new(), UnsafeCell::new(0u64)));
    let owner = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            for _ in 0..2 {
                let _guard = shared.0.enter_hook(0, wait).expect("an event is lost in a pause");
                // SAFETY: loom checks that no other thread accesses it.
                shared.1.with_mut(|word| unsafe { *word += 1 });
            }
            run_delayed_stores();
        }
    });
    while !shared.0.pause() {
        wait();
    }
    // SAFETY: loom checks that no other thread accesses it.
    shared.1.with_mut(|word| unsafe { *word += 10 });
    shared.0.resume();
    owner.join().unwrap();
    // SAFETY: the thread has ended.
    shared.1.with(|word| assert_eq!(unsafe { *word }, 12));
}

/// A pause does not revoke an end that comes meanwhile, and no thread waits for ever.
pub(super) fn end_in_pause() {
    let shutdown = Arc::new(Shutdown::<1>::new());
    let others = [true, false].map(|is_end| {
        let shutdown = Arc::clone(&shutdown);
        thread::spawn(move || {
            if is_end {
                shutdown.announce_end();
            } else {
                drop(shutdown.enter_hook(0, wait));
            }
            run_delayed_stores();
        })
    });
    shutdown.pause();
    shutdown.resume();
    for other in others {
        other.join().unwrap();
    }
    assert!(shutdown.enter_hook(0, wait).is_none(), "a hook enters after the end");
}

/// A call that returns while the recording ends is drained once: either in flight or complete.
pub(super) fn closing() {
    let (shutdown, ring) = (Arc::new(Shutdown::<1>::new()), TwoSlotRing::new());
    let owner = thread::spawn({
        let (shutdown, ring) = (Arc::clone(&shutdown), ring.clone());
        move || {
            let mut producer = RingProducer::resume(ring, 0);
            let number = match shutdown.enter_hook(0, wait) {
                Some(_guard) => producer.push(&record(0, STATE_IN_FLIGHT)),
                None => return run_delayed_stores(),
            };
            if let Some(_guard) = shutdown.enter_hook(0, wait) {
                producer.ring().unwrap().complete(number, &done(0));
            }
            run_delayed_stores();
        }
    });
    while !shutdown.end() {
        wait();
    }
    let mut drained = Vec::new();
    let number = ring.visit_complete_records(true, |words| {
        drained.push(*words);
        true
    });
    owner.join().unwrap();
    assert_eq!(ring.head().load(Ordering::Relaxed), number, "published after the end");
    for (number, words) in drained.iter().enumerate() {
        let number = number as u64;
        assert!([done(number), record(number, STATE_IN_FLIGHT)].contains(words), "torn: {words:?}");
        assert_eq!(ring.load(number), *words, "changed after the end");
    }
}

/// Two threads make the first event.
pub(super) fn start() {
    start_with_two_threads(false);
}

/// The same, with a recording that fails on its writer thread at once.
pub(super) fn failed_start() {
    start_with_two_threads(true);
}

fn start_with_two_threads(fails: bool) {
    let start = Arc::new(StartState::<UnsafeCell<u64>>::idle());
    let made = Arc::new(AtomicU32::new(0));
    let first_events: Vec<_> = (0..2)
        .map(|_| {
            let (start, made) = (Arc::clone(&start), Arc::clone(&made));
            thread::spawn(move || {
                let mut writer = None;
                let make = || {
                    made.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).expect("made twice");
                    let session: &'static UnsafeCell<u64> = Box::leak(Box::new(UnsafeCell::new(0)));
                    // SAFETY: no other thread knows it yet.
                    session.with_mut(|word| unsafe { *word = 42 });
                    let start = Arc::clone(&start);
                    writer = fails.then(|| {
                        thread::spawn(move || {
                            start.end(OFF);
                            run_delayed_stores();
                        })
                    });
                    Some(session)
                };
                let started = start.start(make, || {
                    wait();
                    true
                });
                assert!(fails || started.is_some(), "an event without a recording");
                if let Some(session) = started {
                    // SAFETY: no thread changes it any more.
                    session.with(|word| assert_eq!(unsafe { *word }, 42));
                }
                run_delayed_stores();
                writer.map(thread::JoinHandle::join);
            })
        })
        .collect();
    for thread in first_events {
        thread.join().unwrap();
    }
    assert_eq!(start.running().is_some(), !fails, "an ended recording must not run");
}
