//! Kills a process between any two stores. A reader of ring file and trace must then find every
//! recorded event complete and once. The event that was being recorded must be complete or absent.
//!
//! The protocol's own code runs on words that log each store. Then the files are rebuilt as they
//! were after each store, and read as the command line tool reads them. The stores of a thread
//! reach the mapping in program order, so these are all the states that a kill can leave of one
//! ring.
#![allow(missing_docs, unreachable_pub, reason = "the protocol's files are private to the recorder")]

mod atomics;
mod logged_ring;
#[path = "../src/ring/protocol/mod.rs"]
#[allow(dead_code, reason = "only the ring is used")]
mod protocol;

use std::collections::{BTreeMap, BTreeSet};

use atomics::{KillStep, LOG};
use gpumemtrace_format::event::{RECORD_BYTES, RECORD_WORDS};
use gpumemtrace_format::ring::{
    HEADER_BYTES, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT, RING_RECORDS_AT, RING_TAIL_AT, RING_THREAD_AT,
    RecordDecoder, RingImage, RingRecord, encode_code_records, encode_header, unseal,
};
use gpumemtrace_format::{CodeDef, CodeId, Detail, Event, EventKind, ThreadId};
use logged_ring::{LoggedRing, SHAPE, SLOTS, THREAD};
use proptest::prelude::*;
use protocol::ring::{RingProducer, RingWords, Space};

/// The next action of the program or the writer.
#[derive(Clone, Copy, Debug)]
enum RingAction {
    /// An event. A long one has a detail that needs a record of its own.
    Event { is_long: bool },
    /// A driver call, which is published before and completed after it. A free takes its sequence
    /// number before.
    Call { is_free: bool },
    /// A definition of several records.
    Define,
    /// The writer drains the ring.
    Drain,
}

fn any_act() -> impl Strategy<Value = RingAction> {
    prop_oneof![
        3 => any::<bool>().prop_map(|is_long| RingAction::Event { is_long }),
        3 => any::<bool>().prop_map(|is_free| RingAction::Call { is_free }),
        1 => Just(RingAction::Define),
        2 => Just(RingAction::Drain),
    ]
}

/// Something that was recorded, and the numbers of the stores that record it.
#[derive(Debug)]
struct RecordedThing {
    /// From this store on, a reader may find it.
    begun: usize,
    /// From this store on, a reader must find it.
    done: usize,
    /// From this store on, and until done, a reader must find it as in flight.
    published: Option<usize>,
    record: RingRecord,
}

fn stores_so_far() -> usize {
    LOG.with_borrow(Vec::len)
}

fn drain(ring: &LoggedRing) {
    let mut decoder = RecordDecoder::new(ThreadId(THREAD));
    let mut records = Vec::new();
    let number = ring.visit_complete_records(false, |words| {
        records.extend(decoder.push(words));
        true
    });
    assert!(decoder.is_between_records() && decoder.malformed() == 0);
    LOG.with_borrow_mut(|log| log.push(KillStep::Append(records)));
    ring.release_until(number);
}

fn event(seq: u64, kind: EventKind) -> Event {
    let mark = 512 * (seq + 1);
    let mut event = Event::new(kind);
    (event.seq, event.time_ns, event.thread) = (seq, mark, ThreadId(THREAD));
    (event.addr, event.size, event.aux) = (mark, mark, [mark; 2]);
    event
}

fn run_actions(actions: &[RingAction]) -> Vec<RecordedThing> {
    LOG.set(Vec::new());
    let words = LoggedRing::new();
    let mut producer = RingProducer::resume(&words, 0);
    let mut made = Vec::new();
    let mut seq = 0;
    for (number, action) in actions.iter().enumerate() {
        let reserve = |producer: &mut RingProducer<_, RECORD_WORDS>, records| {
            while producer.space(records) == Space::Full {
                drain(&words);
            }
            stores_so_far()
        };
        match *action {
            RingAction::Event { is_long } => {
                let mut event = event(seq, EventKind::BLOCK_ALLOC);
                let stream = if is_long { u64::MAX / 3 } else { 7 };
                event.detail = Some(Detail { requested_bytes: event.size, stream, pool: 0 });
                let begun = reserve(&mut producer, 2);
                assert_eq!(event.separate_detail_record().is_some(), is_long);
                if let Some(detail) = event.separate_detail_record() {
                    producer.put(&detail);
                }
                producer.push(&event.to_words());
                made.push(RecordedThing {
                    begun,
                    done: stores_so_far(),
                    published: None,
                    record: RingRecord::Event(event),
                });
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
                let begun = reserve(&mut producer, 1);
                let at = producer.push(&before.to_words());
                let published = Some(stores_so_far());
                // The writer drains while the call is in flight.
                drain(&words);
                (*producer.ring().unwrap()).complete(at, &done.to_words());
                made.push(RecordedThing {
                    begun,
                    done: stores_so_far(),
                    published,
                    record: RingRecord::Event(done),
                });
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
                let begun = reserve(&mut producer, records.len() as u64);
                for words in &records {
                    producer.put(words);
                }
                producer.publish();
                made.push(RecordedThing {
                    begun,
                    done: stores_so_far(),
                    published: None,
                    record: RingRecord::Code(code),
                });
            }
            RingAction::Drain => drain(&words),
        }
    }
    made
}

/// What a reader finds in both files: events by sequence number, definitions by id, and calls
/// without a number.
#[derive(Default)]
struct RecoveredRecords {
    events: BTreeMap<u64, Event>,
    codes: BTreeMap<u32, CodeDef>,
    unplaced: Vec<Event>,
}

impl RecoveredRecords {
    fn add(&mut self, record: RingRecord) {
        match record {
            RingRecord::Event(event) if event.seq == gpumemtrace_format::NO_SEQ => self.unplaced.push(event),
            RingRecord::Event(event) => {
                let before = self.events.insert(event.seq, event);
                assert!(before.is_none_or(|before| before == event), "two events with one sequence number");
            }
            RingRecord::Code(code) => {
                self.codes.insert(code.id.0, code);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The ring file after these steps.
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

/// A record that is not published yet, half new and half of an earlier lap, with a 13-bit checksum
/// that happens to match: one in 8192, as the format says. The last word of a record is stored
/// last.
fn accidental_match(steps: &[KillStep]) -> Option<[u64; RECORD_WORDS]> {
    let bytes = file_after(steps);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (head, tail) = (word(PAGE_BYTES + RING_HEAD_AT), word(PAGE_BYTES + RING_TAIL_AT));
    (head..tail + SLOTS as u64).find_map(|number| {
        let slot = PAGE_BYTES + RING_RECORDS_AT + number as usize % SLOTS * RECORD_BYTES;
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
            RingRecord::Event(event) => found.events.get(&event.seq).copied().map(RingRecord::Event),
            RingRecord::Code(code) => found.codes.get(&code.id.0).cloned().map(RingRecord::Code),
            other => panic!("{other:?}"),
        };
        if killed >= made.done {
            assert_eq!(there.as_ref(), Some(&made.record), "lost or changed");
        } else if killed <= made.begun {
            assert_eq!(there, None, "found before it was recorded");
        } else if made.published.is_some_and(|published| killed >= published) {
            // While it is completed, the record may mix words of both states, and is marked as in
            // flight.
            let unfinished: Vec<&Event> = found.unplaced.iter().chain(found.events.values()).collect();
            let unfinished: Vec<_> = unfinished.into_iter().filter(|event| event.in_flight).collect();
            let RingRecord::Event(event) = &made.record else { panic!("only calls are in flight") };
            match there {
                Some(RingRecord::Event(there)) if !there.in_flight => assert_eq!(there, *event),
                _ => {
                    assert_eq!(unfinished.len(), 1, "the call is lost");
                    assert_eq!((unfinished[0].kind, unfinished[0].size), (event.kind, event.size));
                    in_flight += 1;
                }
            }
        } else if let (Some(RingRecord::Event(there)), RingRecord::Event(event)) = (&there, &made.record) {
            assert_eq!((there.size, there.time_ns), (event.size, event.time_ns), "half of an event");
        } else if let Some(there) = there {
            assert_eq!(there, made.record, "half of a definition");
        }
    }
    let unfinished = found.events.values().chain(&found.unplaced).filter(|event| event.in_flight).count();
    assert!(unfinished <= 1 && in_flight <= unfinished, "a thread can be in one call only");
    let begun = made.iter().filter(|made| killed > made.begun).count();
    assert!(
        found.events.len() + found.codes.len() + found.unplaced.len() <= begun,
        "more records than were made"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kill_after_any_store_leaves_each_record_complete_or_absent(actions in prop::collection::vec(any_act(), 1..24)) {
        let made = run_actions(&actions);
        let steps = LOG.take();
        // A store that changes nothing gives the same accidental match again, so matches are
        // counted once.
        let mut accidental = BTreeSet::new();
        for killed in 0..=steps.len() {
            match accidental_match(&steps[..killed]) {
                Some(words) => drop(accidental.insert(words)),
                None => check(&steps[..killed], &made),
            }
        }
        // Out of some hundred states.
        prop_assert!(accidental.len() <= 2, "{accidental:x?} of {} are too many", steps.len());
    }
}

/// Without the "completing" state, a completed record could be half old and half new.
#[test]
fn completion_without_completing_state_is_detected() {
    let made = run_actions(&[RingAction::Call { is_free: true }]);
    let steps = LOG.take();
    let last_word = PAGE_BYTES + RING_RECORDS_AT + RECORD_BYTES - 8;
    let state_stores = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| matches!(step, KillStep::Store(at, _) if *at == last_word));
    let (at, _) = state_stores.clone().nth(1).expect("in flight, completing, done");
    assert_eq!(state_stores.count(), 3);
    let mut broken = steps.clone();
    broken.remove(at);
    let check_all = || (0..broken.len()).for_each(|killed| drop(read(&broken[..killed])));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check_all)).is_err());
    check(&steps, &made);
}

/// Checks the check above: it must fail if the head is stored before its record.
#[test]
fn head_stored_before_its_record_is_detected() {
    let made = run_actions(&[
        RingAction::Event { is_long: true },
        RingAction::Call { is_free: true },
        RingAction::Define,
    ]);
    let steps = LOG.take();
    let head_at = PAGE_BYTES + RING_HEAD_AT;
    let mut detected = 0;
    for at in 1..steps.len() {
        if !matches!(steps[at], KillStep::Store(place, _) if place == head_at) {
            continue;
        }
        let mut swapped = steps.clone();
        swapped.swap(at - 1, at);
        let check_all = || (0..=swapped.len()).for_each(|killed| check(&swapped[..killed], &made));
        detected += usize::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check_all)).is_err());
    }
    assert_eq!(detected, 3, "each head must be detected");
}
