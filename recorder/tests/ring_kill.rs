//! A process that is killed between any two stores: what a reader finds in the mapped ring and in the trace is every event
//! that had been recorded, whole and once, and of the one that was just being recorded all or nothing.
//!
//! The protocol's own code runs on words that write down each store; then the file is put together as it stood after each of
//! them, and read as the command reads it. Stores of a thread reach the mapping in the order of its instructions, so these are
//! all the states a kill can leave of one ring.
#![allow(missing_docs, unreachable_pub, reason = "the protocol's files are private to the recorder")]

#[path = "../src/ring/protocol/mod.rs"]
#[allow(dead_code, reason = "only rings are looked at")]
mod protocol;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_format::event::{RECORD_BYTES, RECORD_WORDS};
use gpumemtrace_format::ring::{
    HEADER_BYTES, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT, RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT,
    RING_THREAD_AT, Record, RecordDecoder, RingImage, Shape, encode_code_records, encode_header, seal,
    seal_completing, unseal,
};
use gpumemtrace_format::{CodeDef, CodeId, Detail, Event, EventKind, ThreadId};
use proptest::prelude::*;
use protocol::ring::{RingProducer, RingWords, Space};

/// Atomics that write down what is stored, and where in the file.
mod atomics {
    use std::cell::Cell;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

    use super::{KillStep, LOG};

    #[derive(Debug)]
    pub(crate) struct AtomicU64 {
        value: Cell<u64>,
        pub(crate) at: usize,
    }

    impl AtomicU64 {
        pub(crate) fn at(at: usize) -> Self {
            Self { value: Cell::new(0), at }
        }

        pub(crate) fn load(&self, _: Ordering) -> u64 {
            self.value.get()
        }

        pub(crate) fn store(&self, value: u64, _: Ordering) {
            self.value.set(value);
            LOG.with_borrow_mut(|log| log.push(KillStep::Store(self.at, value)));
        }
    }

    pub(crate) fn light_fence() {}

    pub(crate) fn heavy_fence() {}
}

/// What happens to the files.
#[derive(Clone, Debug)]
enum KillStep {
    /// Into the ring file.
    Store(usize, u64),
    /// Onto the trace.
    Append(Vec<Record>),
}

thread_local! {
    static LOG: RefCell<Vec<KillStep>> = const { RefCell::new(Vec::new()) };
}

const PLACES: usize = 8;
const THREAD: u32 = 4711;
const SHAPE: Shape = Shape::uniform(1, PLACES as u32);

struct LoggedRing {
    head: atomics::AtomicU64,
    tail: atomics::AtomicU64,
    tail_again: atomics::AtomicU64,
    slots: [[atomics::AtomicU64; RECORD_WORDS]; PLACES],
}

impl LoggedRing {
    fn new() -> Self {
        let place = |slot: usize, word: usize| RING_RECORDS_AT + slot * RECORD_BYTES + 8 * word;
        let word = |at: usize| atomics::AtomicU64::at(PAGE_BYTES + at);
        Self {
            head: word(RING_HEAD_AT),
            tail: word(RING_TAIL_AT),
            tail_again: word(RING_TAIL_AGAIN_AT),
            slots: std::array::from_fn(|slot| std::array::from_fn(|at| word(place(slot, at)))),
        }
    }
}

impl RingWords<RECORD_WORDS> for &LoggedRing {
    fn capacity(&self) -> u64 {
        PLACES as u64
    }

    fn head(&self) -> &atomics::AtomicU64 {
        &self.head
    }

    fn tail(&self) -> &atomics::AtomicU64 {
        &self.tail
    }

    fn tail_again(&self) -> &atomics::AtomicU64 {
        &self.tail_again
    }

    fn slot(&self, number: u64) -> &[atomics::AtomicU64; RECORD_WORDS] {
        &self.slots[number as usize % PLACES]
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

/// What the program or the writer does next.
#[derive(Clone, Copy, Debug)]
enum RingAction {
    /// An event; with a detail that needs a record of its own.
    Event { is_long: bool },
    /// A driver call, shown before and completed after it; what gives memory back has its place before.
    Call { is_free: bool },
    /// A definition of several records.
    Define,
    /// The writer empties the ring.
    Write,
}

fn any_act() -> impl Strategy<Value = RingAction> {
    prop_oneof![
        3 => any::<bool>().prop_map(|is_long| RingAction::Event { is_long }),
        3 => any::<bool>().prop_map(|is_free| RingAction::Call { is_free }),
        1 => Just(RingAction::Define),
        2 => Just(RingAction::Write),
    ]
}

/// A recorded thing: from which store on it may be there, and from which on it must.
#[derive(Debug)]
struct RecordedThing {
    begun: usize,
    done: usize,
    /// Shown as in flight, from here on until done.
    shown: Option<usize>,
    record: Record,
}

fn now() -> usize {
    LOG.with_borrow(Vec::len)
}

fn write(ring: &LoggedRing) {
    let mut decoder = RecordDecoder::new(ThreadId(THREAD));
    let mut records = Vec::new();
    let number = ring.take(false, |words| {
        records.extend(decoder.push(words));
        true
    });
    assert!(decoder.is_between_records() && decoder.malformed() == 0);
    LOG.with_borrow_mut(|log| log.push(KillStep::Append(records)));
    ring.empty(number);
}

fn event(seq: u64, kind: EventKind) -> Event {
    let mark = 512 * (seq + 1);
    let mut event = Event::new(kind);
    (event.seq, event.time_ns, event.thread) = (seq, mark, ThreadId(THREAD));
    (event.addr, event.size, event.aux) = (mark, mark, [mark; 2]);
    event
}

fn play(acts: &[RingAction]) -> Vec<RecordedThing> {
    LOG.set(Vec::new());
    let words = LoggedRing::new();
    let mut lane = RingProducer::resume(&words, 0);
    let mut made = Vec::new();
    let mut seq = 0;
    for (number, act) in acts.iter().enumerate() {
        let reserve = |lane: &mut RingProducer<_, RECORD_WORDS>, records| {
            while lane.room(records) == Space::Full {
                write(&words);
            }
            now()
        };
        match *act {
            RingAction::Event { is_long } => {
                let mut event = event(seq, EventKind::BLOCK_ALLOC);
                let stream = if is_long { u64::MAX / 3 } else { 7 };
                event.detail = Some(Detail { requested_bytes: event.size, stream, pool: 0 });
                let begun = reserve(&mut lane, 2);
                assert_eq!(event.detail_apart().is_some(), is_long);
                if let Some(detail) = event.detail_apart() {
                    lane.put(&detail);
                }
                lane.push(&event.to_words());
                made.push(RecordedThing { begun, done: now(), shown: None, record: Record::Event(event) });
                seq += 1;
            }
            RingAction::Call { is_free } => {
                let kind = if is_free { EventKind::DEVICE_FREE } else { EventKind::DEVICE_ALLOC };
                let done = event(seq, kind);
                let before = Event { in_flight: true, aux: [0; 2], ..done };
                let before = if is_free {
                    before
                } else {
                    Event { seq: gpumemtrace_format::NO_SEQ, addr: 0, ..before }
                };
                let begun = reserve(&mut lane, 1);
                let at = lane.push(&before.to_words());
                let shown = Some(now());
                // The writer does not wait for the call.
                write(&words);
                (*lane.ring().unwrap()).complete(at, &done.to_words());
                made.push(RecordedThing { begun, done: now(), shown, record: Record::Event(done) });
                seq += 1;
            }
            RingAction::Define => {
                let code = CodeDef {
                    id: CodeId(number as u32 + 1),
                    file: "a/file/of/a/name/that/takes/more/than/one/record.py".to_owned(),
                    name: format!("function_{number}"),
                    ..CodeDef::default()
                };
                let records = encode_code_records(&code);
                assert!(records.len() > 2);
                let begun = reserve(&mut lane, records.len() as u64);
                for words in &records {
                    lane.put(words);
                }
                lane.publish();
                made.push(RecordedThing { begun, done: now(), shown: None, record: Record::Code(code) });
            }
            RingAction::Write => write(&words),
        }
    }
    made
}

/// What a reader makes of the two files: events by their place, definitions by id, and calls that have no place.
#[derive(Default)]
struct RecoveredRecords {
    events: BTreeMap<u64, Event>,
    codes: BTreeMap<u32, CodeDef>,
    unplaced: Vec<Event>,
}

impl RecoveredRecords {
    fn add(&mut self, record: Record) {
        match record {
            Record::Event(event) if event.seq == gpumemtrace_format::NO_SEQ => self.unplaced.push(event),
            Record::Event(event) => {
                let before = self.events.insert(event.seq, event);
                assert!(before.is_none_or(|before| before == event), "one place, two events");
            }
            Record::Code(code) => {
                self.codes.insert(code.id.0, code);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The ring file as it stood after these.
fn file_after(steps: &[KillStep]) -> Vec<u8> {
    let mut bytes = vec![0; SHAPE.file_bytes() as usize];
    bytes[..HEADER_BYTES].copy_from_slice(&encode_header([1; 16], 1, &SHAPE));
    bytes[NEXT_SEQ_AT..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
    bytes[PAGE_BYTES + RING_THREAD_AT..][..4].copy_from_slice(&THREAD.to_le_bytes());
    for step in steps {
        if let KillStep::Store(at, value) = step {
            bytes[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// A record that was not shown yet, half of it new and half of an earlier round, whose 13 bits happen to fit: one in 8192, as the format
/// says. The last word of a record is the last to be stored.
fn believed_by_chance(steps: &[KillStep]) -> Option<[u64; RECORD_WORDS]> {
    let bytes = file_after(steps);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (head, tail) = (word(PAGE_BYTES + RING_HEAD_AT), word(PAGE_BYTES + RING_TAIL_AT));
    (head..tail + PLACES as u64).find_map(|number| {
        let slot = PAGE_BYTES + RING_RECORDS_AT + number as usize % PLACES * RECORD_BYTES;
        let of_slot = slot..slot + RECORD_BYTES;
        let last = steps.iter().rev().find_map(|step| match step {
            KillStep::Store(at, _) if of_slot.contains(at) => Some(*at),
            _ => None,
        });
        let words: [u64; RECORD_WORDS] = std::array::from_fn(|at| word(slot + 8 * at));
        let is_half = last.is_some_and(|last| last != slot + RECORD_BYTES - 8);
        (is_half && unseal(&words, number, THREAD).is_some()).then_some(words)
    })
}

fn read(steps: &[KillStep]) -> RecoveredRecords {
    let mut found = RecoveredRecords::default();
    for step in steps {
        if let KillStep::Append(records) = step {
            records.iter().cloned().for_each(|record| found.add(record));
        }
    }
    let bytes = file_after(steps);
    let image = RingImage::decode(&bytes).unwrap();
    assert_eq!(image.malformed, 0);
    image.records.into_iter().for_each(|record| found.add(record));
    found
}

fn check(steps: &[KillStep], made: &[RecordedThing]) {
    let killed = steps.len();
    let found = read(steps);
    let mut in_flight = 0;
    for made in made {
        let there = match &made.record {
            Record::Event(event) => found.events.get(&event.seq).copied().map(Record::Event),
            Record::Code(code) => found.codes.get(&code.id.0).cloned().map(Record::Code),
            other => panic!("{other:?}"),
        };
        if killed >= made.done {
            assert_eq!(there.as_ref(), Some(&made.record), "lost, or not what it was");
        } else if killed <= made.begun {
            assert_eq!(there, None, "there before it was made");
        } else if made.shown.is_some_and(|shown| killed >= shown) {
            // Being completed: it may hold words of both states, and says that it has not returned.
            let unfinished: Vec<&Event> = found.unplaced.iter().chain(found.events.values()).collect();
            let unfinished: Vec<_> = unfinished.into_iter().filter(|event| event.in_flight).collect();
            let Record::Event(event) = &made.record else { panic!("only calls are in flight") };
            match there {
                Some(Record::Event(there)) if !there.in_flight => assert_eq!(there, *event),
                _ => {
                    assert_eq!(unfinished.len(), 1, "the call is lost");
                    assert_eq!((unfinished[0].kind, unfinished[0].size), (event.kind, event.size));
                    in_flight += 1;
                }
            }
        } else if let (Some(Record::Event(there)), Record::Event(event)) = (&there, &made.record) {
            assert_eq!((there.size, there.time_ns), (event.size, event.time_ns), "half of an event");
        } else if let Some(there) = there {
            assert_eq!(there, made.record, "half of a definition");
        }
    }
    let unfinished = found.events.values().chain(&found.unplaced).filter(|event| event.in_flight).count();
    assert!(unfinished <= 1 && in_flight <= unfinished, "one thread is in one call");
    let begun = made.iter().filter(|made| killed > made.begun).count();
    assert!(found.events.len() + found.codes.len() + found.unplaced.len() <= begun, "more than was made");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_kill_after_any_store_leaves_each_record_whole_or_not_at_all(acts in prop::collection::vec(any_act(), 1..24)) {
        let made = play(&acts);
        let steps = LOG.take();
        // A store of what was there already changes nothing, and is no other chance.
        let mut by_chance = BTreeSet::new();
        for killed in 0..=steps.len() {
            match believed_by_chance(&steps[..killed]) {
                Some(words) => drop(by_chance.insert(words)),
                None => check(&steps[..killed], &made),
            }
        }
        // Of some hundreds.
        prop_assert!(by_chance.len() <= 2, "{by_chance:x?} of {} are no chance", steps.len());
    }
}

/// A call that returns is not half of what it was and half of what it is, without a word.
#[test]
fn a_record_that_is_replaced_without_saying_so_is_noticed() {
    let made = play(&[RingAction::Call { is_free: true }]);
    let steps = LOG.take();
    let last_word = PAGE_BYTES + RING_RECORDS_AT + RECORD_BYTES - 8;
    let says_so = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| matches!(step, KillStep::Store(at, _) if *at == last_word));
    let (at, _) = says_so.clone().nth(1).expect("in flight, completing, done");
    assert_eq!(says_so.count(), 3);
    let mut silent = steps.clone();
    silent.remove(at);
    let check_all = || (0..silent.len()).for_each(|killed| drop(read(&silent[..killed])));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check_all)).is_err());
    check(&steps, &made);
}

/// If any two neighbouring stores may be exchanged, the check above sees nothing.
#[test]
fn a_head_that_is_shown_before_its_record_is_noticed() {
    let made =
        play(&[RingAction::Event { is_long: true }, RingAction::Call { is_free: true }, RingAction::Define]);
    let steps = LOG.take();
    let head_at = PAGE_BYTES + RING_HEAD_AT;
    let mut noticed = 0;
    for at in 1..steps.len() {
        if !matches!(steps[at], KillStep::Store(place, _) if place == head_at) {
            continue;
        }
        let mut swapped = steps.clone();
        swapped.swap(at - 1, at);
        let check_all = || (0..=swapped.len()).for_each(|killed| check(&swapped[..killed], &made));
        noticed += usize::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check_all)).is_err());
    }
    assert_eq!(noticed, 3, "each of the heads");
}
