//! Traces of running programs: the rings are read one after the other while threads write.

use gpumemtrace_format::ring::RingImage;
use gpumemtrace_format::{Event, ThreadId};
use gpumemtrace_replay::report::{TraceNote, VerdictEvidence};
use gpumemtrace_replay::{RingFile, report};
use gpumemtrace_synthetic::{Synthetic, analyse_running, ring_file_of};

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
