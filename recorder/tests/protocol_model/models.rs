//! Small worlds in which the protocol must hold. Each record has three words here, each ring two places: what can go wrong with
//! eight and 8192 goes wrong with these.

use std::sync::Arc;

use gpumemtrace_format::event::{STATE_DONE, STATE_IN_FLIGHT};
use loom::cell::UnsafeCell;
use loom::thread;

use crate::atomics::{AtomicU32, AtomicU64, Ordering, catch_up};
use crate::protocol::ownership::RingOwnership;
use crate::protocol::ring::{RingProducer, RingWords, Space};
use crate::protocol::shutdown::Shutdown;
use crate::protocol::start::{OFF, StartState};

/// All models, by name.
pub(crate) const MODELS: &[(&str, fn())] = &[
    ("ring", ring),
    ("full ring", full_ring),
    ("in flight", in_flight),
    ("owners", owners),
    ("ending", ending),
    ("pausing", pausing),
    ("end in a pause", end_in_pause),
    ("closing", closing),
    ("start", start),
    ("start in vain", start_in_vain),
];

const WORDS: usize = 3;
const PLACES: usize = 2;

/// A ring that says it has `CLAIMED` places.
#[derive(Clone, Debug)]
struct ModelRing<const CLAIMED: u64>(Arc<ModelRingState>);

type TwoSlotRing = ModelRing<{ PLACES as u64 }>;

#[derive(Debug)]
struct ModelRingState {
    head: AtomicU64,
    tail: AtomicU64,
    tail_again: AtomicU64,
    slots: [[AtomicU64; WORDS]; PLACES],
    /// Whose turn it is at a place. Loom lets no load come after a later store, so an order that only keeps that from
    /// happening would not be missed; of these it demands an order.
    turns: [UnsafeCell<()>; PLACES],
}

impl<const CLAIMED: u64> ModelRing<CLAIMED> {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        let slot = || std::array::from_fn(|_| word());
        Self(Arc::new(ModelRingState {
            head: word(),
            tail: word(),
            tail_again: word(),
            slots: std::array::from_fn(|_| slot()),
            turns: std::array::from_fn(|_| UnsafeCell::new(())),
        }))
    }

    /// The owner stores to a place.
    fn is_written(&self, number: u64) {
        self.0.turns[number as usize % PLACES].with_mut(|_| ());
    }

    /// The writer loads from a place.
    fn is_read(&self, number: u64) {
        self.0.turns[number as usize % PLACES].with(|_| ());
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

    fn tail_again(&self) -> &AtomicU64 {
        &self.0.tail_again
    }

    fn slot(&self, number: u64) -> &[AtomicU64; WORDS] {
        &self.0.slots[number as usize % PLACES]
    }

    // A check would see what the models are to see themselves.
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

/// Record `number`, in a form that shows whether it is whole.
fn record(number: u64, state: u16) -> [u64; WORDS] {
    let mark = if state == STATE_DONE { 100 } else { 200 };
    [mark + number, mark + number, number | u64::from(state) << 48]
}

fn done(number: u64) -> [u64; WORDS] {
    record(number, STATE_DONE)
}

fn wait() {
    catch_up();
    thread::yield_now();
}

fn reserve<R: RingWords<WORDS>>(lane: &mut RingProducer<R, WORDS>, records: u64) {
    while lane.room(records) == Space::Full {
        wait();
    }
}

/// What the writer does until it has this many records.
fn write_until<const CLAIMED: u64>(ring: &ModelRing<CLAIMED>, count: u64) {
    let mut written = 0;
    while written < count {
        let number = ring.take(false, |words| {
            assert_eq!(*words, done(written), "record {written}");
            ring.is_read(written);
            written += 1;
            true
        });
        assert_eq!(number, written);
        ring.empty(number);
        if written < count {
            wait();
        }
    }
    catch_up();
}

/// Definitions of several records appear as one; what is seen is whole.
fn ring() {
    let ring = TwoSlotRing::new();
    let producer = thread::spawn({
        let ring = ring.clone();
        move || {
            let mut lane = RingProducer::resume(ring, 0);
            reserve(&mut lane, 2);
            lane.put(&done(0));
            lane.put(&done(1));
            lane.publish();
            catch_up();
        }
    });
    let number = ring.take(false, |words| {
        assert_eq!(words[0], words[1]);
        true
    });
    assert!(number == 0 || number == 2, "half a definition");
    write_until(&ring, 2);
    producer.join().unwrap();
}

/// More records than there are places.
fn full_ring() {
    fill(&TwoSlotRing::new());
}

/// And the owner does not wait for the last of them.
pub(crate) fn overfull_ring() {
    fill(&ModelRing::<{ PLACES as u64 + 1 }>::new());
}

fn fill<const CLAIMED: u64>(ring: &ModelRing<CLAIMED>) {
    let producer = thread::spawn({
        let ring = ring.clone();
        move || {
            let mut lane = RingProducer::resume(ring, 0);
            for number in 0..3 {
                reserve(&mut lane, 1);
                lane.ring().unwrap().is_written(number);
                assert_eq!(lane.push(&done(number)), number);
            }
            catch_up();
        }
    });
    write_until(ring, 3);
    producer.join().unwrap();
    assert_eq!(ring.waiting(), 0);
}

/// A record that is shown before it is done, and one behind it.
fn in_flight() {
    let ring = TwoSlotRing::new();
    let producer = thread::spawn({
        let ring = ring.clone();
        move || {
            let mut lane = RingProducer::resume(ring, 0);
            reserve(&mut lane, 1);
            let number = lane.push(&record(0, STATE_IN_FLIGHT));
            lane.ring().unwrap().complete(number, &done(0));
            reserve(&mut lane, 1);
            lane.push(&done(1));
            catch_up();
        }
    });
    write_until(&ring, 2);
    producer.join().unwrap();
}

/// One ring, two threads after each other. What the thread keeps of the ring is no atomic.
fn owners() {
    let owners = Arc::new(RingOwnership::<1>::new());
    let ring = TwoSlotRing::new();
    let block = Arc::new(UnsafeCell::new(0u64));
    let prepared = Arc::new(UnsafeCell::new(0));
    let gone: Arc<[AtomicU32; 2]> = Arc::new(std::array::from_fn(|_| AtomicU32::new(0)));
    let threads: Vec<_> = [1u32, 2]
        .into_iter()
        .map(|id| {
            let (owners, ring, block) = (Arc::clone(&owners), ring.clone(), Arc::clone(&block));
            let (prepared, gone) = (Arc::clone(&prepared), Arc::clone(&gone));
            thread::spawn(move || {
                let prepare = |_| {
                    // SAFETY: loom checks that nobody else is there.
                    prepared.with_mut(|prepared| unsafe { *prepared = id });
                    true
                };
                let is_mine = owners.claim(id, 0, prepare).is_some();
                if is_mine {
                    let mut lane = RingProducer::resume(ring, 0);
                    assert_eq!(lane.room(2), Space::Low, "an empty ring");
                    // SAFETY: loom checks that nobody else is there.
                    block.with_mut(|block| unsafe { *block += 1 });
                    lane.push(&[u64::from(id), 0, u64::from(STATE_DONE) << 48]);
                    catch_up();
                    gone[id as usize - 1].store(1, Ordering::Release);
                }
                catch_up();
                u32::from(is_mine)
            })
        })
        .collect();
    let mut written = 0;
    let mut write = || {
        for (index, id) in owners.in_use() {
            // SAFETY: loom checks that it is not being changed.
            prepared.with(|prepared| assert_eq!(unsafe { *prepared }, id, "shown before it was ready"));
            let number = ring.take(false, |words| {
                assert_eq!(words[0], u64::from(id), "another thread's record");
                written += 1;
                true
            });
            ring.empty(number);
            if gone[id as usize - 1].load(Ordering::Acquire) == 1 && ring.waiting() == 0 {
                owners.release(index);
            }
        }
        catch_up();
    };
    write();
    wait();
    write();
    let claimed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    write();
    assert_eq!(written, claimed);
}

/// Who ends looks at what the others write to, which is no atomic.
fn ending() {
    end(true);
}

/// And does not wait for those inside.
pub(crate) fn hasty_ending() {
    end(false);
}

fn end(waits: bool) {
    let shared = Arc::new((Shutdown::<2>::new(), [UnsafeCell::new(0u64), UnsafeCell::new(0u64)]));
    let threads: Vec<_> = (0..2)
        .map(|index| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..2 - index {
                    if let Some(_inside) = shared.0.go_inside(index, wait) {
                        // SAFETY: loom checks that nobody else is there.
                        shared.1[index].with_mut(|word| unsafe { *word += 1 });
                    }
                    catch_up();
                }
            })
        })
        .collect();
    while !shared.0.detach() && waits {
        wait();
    }
    for word in &shared.1 {
        // SAFETY: loom checks that nobody else is there, now and later.
        word.with_mut(|word| unsafe { *word = 7 });
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for word in &shared.1 {
        // SAFETY: all threads have ended.
        word.with(|word| assert_eq!(unsafe { *word }, 7, "somebody wrote after the end"));
    }
}

/// Who pauses changes what the others write to, which is no atomic; and they all do write.
fn pausing() {
    let shared = Arc::new((Shutdown::<1>::new(), UnsafeCell::new(0u64)));
    let owner = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            for _ in 0..2 {
                let _inside = shared.0.go_inside(0, wait).expect("an event is lost in a pause");
                // SAFETY: loom checks that nobody else is there.
                shared.1.with_mut(|word| unsafe { *word += 1 });
            }
            catch_up();
        }
    });
    while !shared.0.pause() {
        wait();
    }
    // SAFETY: loom checks that nobody else is there.
    shared.1.with_mut(|word| unsafe { *word += 10 });
    shared.0.resume();
    owner.join().unwrap();
    // SAFETY: the thread has ended.
    shared.1.with(|word| assert_eq!(unsafe { *word }, 12));
}

/// A pause does not take back an end that comes meanwhile, and nobody waits for ever.
fn end_in_pause() {
    let ending = Arc::new(Shutdown::<1>::new());
    let others = [true, false].map(|is_end| {
        let ending = Arc::clone(&ending);
        thread::spawn(move || {
            if is_end {
                ending.announce();
            } else {
                drop(ending.go_inside(0, wait));
            }
            catch_up();
        })
    });
    ending.pause();
    ending.resume();
    for other in others {
        other.join().unwrap();
    }
    assert!(ending.go_inside(0, wait).is_none(), "it goes on after its end");
}

/// A call that returns while the recording ends is in the trace once: as it was before, or as it is after.
fn closing() {
    let (ending, ring) = (Arc::new(Shutdown::<1>::new()), TwoSlotRing::new());
    let producer = thread::spawn({
        let (ending, ring) = (Arc::clone(&ending), ring.clone());
        move || {
            let mut lane = RingProducer::resume(ring, 0);
            let number = match ending.go_inside(0, wait) {
                Some(_inside) => lane.push(&record(0, STATE_IN_FLIGHT)),
                None => return catch_up(),
            };
            if let Some(_inside) = ending.go_inside(0, wait) {
                lane.ring().unwrap().complete(number, &done(0));
            }
            catch_up();
        }
    });
    while !ending.detach() {
        wait();
    }
    let mut taken = Vec::new();
    let number = ring.take(true, |words| {
        taken.push(*words);
        true
    });
    producer.join().unwrap();
    assert_eq!(ring.head().load(Ordering::Relaxed), number, "shown after the end");
    for (number, words) in taken.iter().enumerate() {
        let number = number as u64;
        assert!([done(number), record(number, STATE_IN_FLIGHT)].contains(words), "torn: {words:?}");
        assert_eq!(ring.load(number), *words, "changed after the end");
    }
}

/// Two threads make the first event.
fn start() {
    start_by_two(false);
}

/// And the recording fails on its own thread at once.
fn start_in_vain() {
    start_by_two(true);
}

fn start_by_two(in_vain: bool) {
    let start = Arc::new(StartState::<UnsafeCell<u64>>::idle());
    let made = Arc::new(AtomicU32::new(0));
    let first_events: Vec<_> = (0..2)
        .map(|_| {
            let (start, made) = (Arc::clone(&start), Arc::clone(&made));
            thread::spawn(move || {
                let mut own_thread = None;
                let make = || {
                    made.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).expect("made twice");
                    let session: &'static UnsafeCell<u64> = Box::leak(Box::new(UnsafeCell::new(0)));
                    // SAFETY: nobody else knows it yet.
                    session.with_mut(|word| unsafe { *word = 42 });
                    let start = Arc::clone(&start);
                    own_thread = in_vain.then(|| {
                        thread::spawn(move || {
                            start.end(OFF);
                            catch_up();
                        })
                    });
                    Some(session)
                };
                let started = start.start(make, || {
                    wait();
                    true
                });
                assert!(in_vain || started.is_some(), "an event without a recording");
                if let Some(session) = started {
                    // SAFETY: nobody changes it any more.
                    session.with(|word| assert_eq!(unsafe { *word }, 42));
                }
                catch_up();
                own_thread.map(thread::JoinHandle::join);
            })
        })
        .collect();
    for thread in first_events {
        thread.join().unwrap();
    }
    assert_eq!(start.running().is_some(), !in_vain, "what has ended does not run");
}
