//! Reads snapshots with known contents in every form, and files that are no snapshots.

mod allocator_model;
mod hostile;
mod labels;
mod packed;
mod pickle_writer;

use std::io::{Cursor, Write as _};

use allocator_model::AllocatorModel;
use gpumemtrace_format::event::FLAG_EXISTED;
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::{Event, EventKind, Meta};
use gpumemtrace_torch_snapshot::transcode;
use pickle_writer::{PickleStyle, pickle};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The metadata and events of the trace that is made of a file.
fn read(bytes: &[u8]) -> (Meta, Vec<Event>) {
    let trace = transcode(&mut Cursor::new(bytes)).expect("it is a snapshot");
    let (mut meta, mut events) = (Meta::default(), Vec::new());
    for item in TraceReader::new(&trace[..]).expect("it is a trace") {
        match item {
            Item::Meta(more) => meta.merge(more),
            Item::Events(more) => events.extend(more),
            Item::CorruptRegion(region) => panic!("{region:?}"),
            _ => {}
        }
    }
    (meta, events)
}

fn json_bytes(snapshot: &Value) -> Vec<u8> {
    serde_json::to_vec(snapshot).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A program of the model: what to do, and two numbers.
fn programs() -> impl Strategy<Value = Vec<(u8, u64, usize)>> {
    proptest::collection::vec((0u8..10, 1u64..40 << 20, any::<usize>()), 1..80)
}

fn run(program: &[(u8, u64, usize)], is_expandable: bool) -> AllocatorModel {
    let mut model = AllocatorModel::new(is_expandable);
    for (what, size, pick) in program {
        let line = 10 + (size % 5) as u32;
        match what {
            0..=2 => model.allocate(size % (1 << 20) + 1, size % 2, *pick, line),
            3 | 4 => model.allocate(*size, 0, *pick, line),
            5 | 6 => model.free(*pick, false),
            7 => model.free(*pick, true),
            8 => model.complete(*pick),
            _ => model.empty_cache(),
        }
    }
    model
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The model's totals and sizes after every event, from any number of last events.
    #[test]
    fn totals_and_sizes_are_exact_whatever_the_ring_kept(
        program in programs(), is_expandable: bool, kept in 0usize..200,
    ) {
        let model = run(&program, is_expandable);
        let (meta, events) = read(&json_bytes(&model.snapshot(kept)));
        prop_assert_eq!(meta.number("snapshot.contradictions"), None);
        prop_assert_eq!(meta.number("snapshot.wrong_sizes"), None);
        let history: Vec<&Event> = events.iter().filter(|event| event.flags & FLAG_EXISTED == 0).collect();
        let expected = &model.events[model.events.len().saturating_sub(kept)..];
        let mut at = 0;
        for event in history {
            let mut truth = &expected[at];
            prop_assert_eq!(event.addr, truth.json["addr"].as_u64().unwrap());
            if event.kind == EventKind::BLOCK_FREE && event.flags & 1 != 0 {
                // A request to free, and its completion.
                if truth.json["action"] == "free_requested" {
                    at += 1;
                    truth = &expected[at];
                }
                prop_assert_eq!(&truth.json["action"], "free_completed");
            }
            at += 1;
            if matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
                prop_assert_eq!(event.size, truth.bytes, "event {}", at);
                prop_assert_eq!(event.aux, [truth.totals.live, truth.totals.reserved], "event {}", at);
            }
        }
        prop_assert_eq!(at, expected.len());
        // The start is complete even without any events.
        let last = events.iter().rfind(|event| matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE));
        let totals = model.totals();
        prop_assert_eq!(last.map_or(0, |event| event.aux[0]), totals.live);
    }

    #[test]
    fn all_forms_give_the_same_trace(program in programs(), kept in 0usize..200, protocol in 2u8..6, shares: bool) {
        let snapshot = run(&program, false).snapshot(kept);
        let (json, pickled) = (json_bytes(&snapshot), pickle(&snapshot, PickleStyle { protocol, shares }));
        let expected = transcode(&mut Cursor::new(&json[..])).unwrap();
        prop_assert!(transcode(&mut Cursor::new(&pickled[..])).unwrap() == expected);
        prop_assert!(transcode(&mut Cursor::new(&gzip(&pickled)[..])).unwrap() == expected);
        prop_assert!(transcode(&mut Cursor::new(&gzip(&json)[..])).unwrap() == expected);
    }
}

#[test]
fn overwritten_ring_is_told_from_a_late_begin() {
    let mut model = AllocatorModel::new(false);
    model.allocate(5000, 0, 0, 11);
    model.allocate(6000, 0, 0, 12);
    model.allocate(7000, 0, 0, 13);
    let number = |snapshot: &Value, name: &str| read(&json_bytes(snapshot)).0.number(name);
    assert_eq!(number(&model.snapshot(9), "snapshot.overwritten"), Some(0));
    let one = model.snapshot(1);
    assert_eq!(number(&one, "snapshot.overwritten"), Some(0), "one event is no history");
    let cut = model.snapshot(2);
    assert_eq!(number(&cut, "snapshot.overwritten"), Some(1), "the first block has a stack");
    assert_eq!(number(&cut, "snapshot.start_blocks"), Some(1));
    let mut late = cut.clone();
    late["segments"][0]["blocks"][0]["frames"] = json!([]);
    assert_eq!(number(&late, "snapshot.overwritten"), Some(0), "its allocation was not recorded");
    late["allocator_settings"]["trace_alloc_max_entries"] = json!(2);
    assert_eq!(number(&late, "snapshot.overwritten"), Some(1), "the ring is full");
}

#[test]
fn unknown_keys_and_actions_are_passed_over_and_counted() {
    let mut model = AllocatorModel::new(false);
    model.allocate(5000, 0, 0, 11);
    let mut snapshot = model.snapshot(9);
    snapshot["device_traces"][0][0]["new_key"] = json!({ "deep": [[1, 2, 3], { "x": null }] });
    snapshot["device_traces"][0].as_array_mut().unwrap().push(json!({ "action": "new_action", "addr": 1 }));
    snapshot["device_traces"][0].as_array_mut().unwrap().push(json!(7));
    snapshot["new_part"] = json!([[{ "a": 1 }], "text", 1.5]);
    for bytes in [json_bytes(&snapshot), pickle(&snapshot, PickleStyle { protocol: 4, shares: true })] {
        let (meta, events) = read(&bytes);
        assert_eq!(meta.number("snapshot.unknown_events"), Some(1));
        assert_eq!(meta.number("snapshot.strange_entries"), Some(1));
        assert_eq!(meta.number("snapshot.unknown_keys"), Some(1));
        assert_eq!(events.iter().filter(|event| event.kind == EventKind::BLOCK_ALLOC).count(), 1);
    }
}

#[test]
fn out_of_memory_and_annotations_become_events() {
    let mut model = AllocatorModel::new(false);
    model.allocate(5000, 0, 0, 11);
    let mut snapshot = model.snapshot(9);
    let time_us = 1_700_000_000_000_001u64;
    snapshot["device_traces"][0].as_array_mut().unwrap().push(
        json!({ "action": "oom", "device_free": 4096, "size": 1 << 30, "stream": 0, "time_us": time_us + 900, "frames": [] }),
    );
    let annotation = |stage: &str, name: &str, at: u64| json!({ "stage": stage, "name": name, "device": 0, "time_us": time_us + at });
    snapshot["external_annotations"] = json!([
        annotation("START", "ProfilerStep#3", 0),
        annotation("START", "forward", 1),
        annotation("END", "forward", 100),
        annotation("END", "ProfilerStep#3", 101),
    ]);
    let (_, events) = read(&json_bytes(&snapshot));
    let oom = events.iter().find(|event| event.kind == EventKind::BLOCK_OOM).unwrap();
    assert_eq!((oom.addr, oom.size, oom.aux), (4096, 1 << 30, [5120, 2 << 20]));
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).filter(|kind| kind.0 >= 96).collect();
    assert_eq!(kinds, [EventKind::MARK, EventKind::PHASE_BEGIN, EventKind::PHASE_END]);
}
