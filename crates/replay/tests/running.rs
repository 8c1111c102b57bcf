//! Traces of running programs: the rings are read one after the other while threads write.

use gpumemtrace_format::reader::Item;
use gpumemtrace_format::ring::RingImage;
use gpumemtrace_format::{Event, ThreadId};
use gpumemtrace_format::{EventKind, NodeId};
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::report::{TraceNote, VerdictEvidence};
use gpumemtrace_replay::{RingFile, RunFollower, report};
use gpumemtrace_synthetic::{Synthetic, analyse_running, in_flight, ring_file_of};

/// The events of a run, of which the last `in_rings` are in the rings of two threads.
fn run_of_two_threads(in_rings: usize) -> (Synthetic, Vec<Event>) {
    let run = Synthetic::train(40, |run, _, train| {
        run.alloc(train, 1 << 20);
    });
    let mut events = run.events.clone();
    let written = events.len() - in_rings;
    for (event, number) in events[written..].iter_mut().zip(0u32..) {
        event.thread = ThreadId(77 + number % 2);
    }
    (run, events)
}

/// The ring file as its reading leaves it: when the second ring was read, both threads had stored
/// events that the image of the first one lacks. Its first page has the number `cut`.
fn rings_read_one_after_the_other(events: &[Event], cut: u64) -> RingFile {
    let of_thread = |thread: u32, end: u64| {
        let own = events.iter().filter(|event| event.thread.0 == thread && event.seq < end);
        (thread, 0, own.map(Event::to_words).collect::<Vec<_>>())
    };
    let rings = [of_thread(77, cut), of_thread(78, u64::MAX)];
    RingFile::Loaded(Box::new(RingImage::decode(&ring_file_of(64, &rings, cut, 0)).unwrap()))
}

#[test]
fn view_of_a_running_program_ends_where_the_reading_began() {
    let (run, events) = run_of_two_threads(60);
    let written = events.len() - 60;
    let trace = run.file_of(&events[..written], 100);
    for cut in [written + 2, written + 21, written + 40, events.len()].map(|number| number as u64) {
        let analysis = analyse_running(&trace, rings_read_one_after_the_other(&events[written..], cut));
        let report = report(&[analysis], &[]);
        let info = &report.traces[0];
        assert!(info.complete && info.end_detail.is_none(), "{cut}: {:?}", info.incomplete);
        assert_eq!(info.events.values().sum::<u64>(), cut, "all events before the cut");
        let mismatch = |evidence: &VerdictEvidence| matches!(evidence, VerdictEvidence::TotalMismatch { .. });
        assert!(!report.verdicts.iter().flatten().any(|verdict| mismatch(&verdict.evidence)), "{cut}");
        let in_flight = info.notes.iter().any(|note| matches!(note.fact, TraceNote::CallsInFlight { .. }));
        assert!(!in_flight, "{cut}: {:?}", info.notes);
    }
}

/// The follower of a run, and its events: 4 allocations, a free of the first one, and 3 more
/// allocations, of which the first gets the same address.
fn followed_frees() -> (RunFollower, Vec<Event>) {
    let mut run = Synthetic::new();
    for address in [1u64, 2, 3, 4, 0, 1, 5, 6] {
        let kind = if address == 0 { EventKind::DEVICE_FREE } else { EventKind::DEVICE_ALLOC };
        let bytes = if address == 0 { 0 } else { 1 << 20 };
        run.event(kind, address.max(1) << 30, bytes, [0; 2], NodeId::NONE);
    }
    (RunFollower::new(UserCodePaths::default()), run.events)
}

fn add_ring(follower: &mut RunFollower, events: &[Event], next_seq: u64) {
    let records = events.iter().map(Event::to_words).collect();
    let ring = RingImage::decode(&ring_file_of(64, &[(77, 0, records)], next_seq, 0)).unwrap();
    follower.add_ring(&ring);
}

fn driver_mib(follower: &mut RunFollower) -> u64 {
    follower.take_view().devices[&0].driver >> 20
}

#[test]
fn free_that_waits_in_the_driver_holds_nothing_up() {
    let (mut follower, events) = followed_frees();
    let mut now = events[..5].to_vec();
    now[4] = in_flight(now[4]);
    add_ring(&mut follower, &now, 5);
    assert_eq!(driver_mib(&mut follower), 4);
    // Its address is handed out again: the free took effect.
    now.extend(&events[5..]);
    add_ring(&mut follower, &now, 8);
    assert_eq!((follower.next_seq(), driver_mib(&mut follower)), (8, 6));
    // It returns.
    follower.add_item(Item::Events(vec![events[4]]));
    assert_eq!((driver_mib(&mut follower), follower.read_gauges(true).missing_events), (6, 0));
}

#[test]
fn event_that_comes_late_is_applied_and_one_that_never_comes_is_counted() {
    let (mut follower, events) = followed_frees();
    let without_free: Vec<Event> = [&events[..4], &events[6..]].concat();
    for (reading, applied) in [(1, 4), (2, 4), (3, 8)] {
        add_ring(&mut follower, &without_free, 8);
        assert_eq!(follower.next_seq(), applied, "reading {reading}");
    }
    assert_eq!((driver_mib(&mut follower), follower.read_gauges(true).missing_events), (6, 2));
    follower.add_item(Item::Events(vec![events[4]]));
    assert_eq!((driver_mib(&mut follower), follower.read_gauges(true).missing_events), (5, 1));
}

#[test]
fn huge_gap_is_passed_over_at_once() {
    let (mut follower, mut events) = followed_frees();
    events[7].seq = 1 << 50;
    for _ in 0..3 {
        add_ring(&mut follower, &events, (1 << 50) + 1);
    }
    assert_eq!(follower.next_seq(), (1 << 50) + 1);
    assert_eq!(follower.read_gauges(true).missing_events, (1 << 50) - 7);
}
