//! Runs a scenario in a process of its own, and reads the files that it leaves.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{
    ApiId, CodeDef, Counters, Detail, End, Event, EventKind, Meta, NO_SEQ, NativeNode, PyNode,
};
use gpumemtrace_recorder::{Draft, begin_call, record_event};

/// Times in a block have units of 2^10 ns; the constant of `recorder/src/writer/block_file.rs`.
const TIME_SHIFT: u8 = 10;

/// Trace and ring file of a process, merged as a reader must.
#[derive(Default)]
pub struct TraceLeftovers {
    pub meta: Meta,
    /// Events by sequence number. An event that is in trace and ring file counts once.
    pub events: BTreeMap<u64, Event>,
    /// Allocations in flight, which have no sequence number.
    pub unplaced: Vec<Event>,
    pub codes: Vec<CodeDef>,
    pub py_nodes: Vec<PyNode>,
    pub native_nodes: Vec<NativeNode>,
    pub end: Option<End>,
    pub image: Option<RingImage>,
    pub event_blocks: usize,
}

impl TraceLeftovers {
    pub fn read(trace: &Path) -> Self {
        let mut left = Self::default();
        let bytes = std::fs::read(trace).unwrap();
        for item in TraceReader::new(&bytes[..]).unwrap() {
            match item {
                Item::Meta(meta) => left.meta.merge(meta),
                Item::Events(events) => {
                    left.event_blocks += 1;
                    for event in events {
                        left.add(event);
                    }
                }
                Item::Codes(codes) => left.codes.extend(codes),
                Item::PyNodes(nodes) => left.py_nodes.extend(nodes),
                Item::FrameLinks(links) => {
                    for (id, link) in links {
                        left.py_nodes
                            .iter_mut()
                            .filter(|node| node.id == id)
                            .for_each(|node| node.link = link);
                    }
                }
                Item::NativeNodes(nodes) => left.native_nodes.extend(nodes),
                Item::End(end) => left.end = Some(end),
                Item::Modules(_) | Item::Index(_) | Item::Tail(_) => {}
                // A kill may truncate the last block; its events are still in the ring file.
                Item::TruncatedBlock { .. } => {
                    assert!(ring_path(trace).exists(), "a truncated trace without a ring file");
                }
                other => panic!("{other:?}"),
            }
        }
        if let Ok(bytes) = std::fs::read(ring_path(trace)) {
            let mut image = RingImage::decode(&bytes).unwrap();
            assert_eq!(image.malformed, 0);
            for record in std::mem::take(&mut image.records) {
                match record {
                    RingRecord::Event(event) => left.add(event),
                    RingRecord::Code(code) => left.codes.push(code),
                    RingRecord::PyNode(node) => left.py_nodes.push(node),
                    RingRecord::NativeNode(node) => left.native_nodes.push(node),
                }
            }
            left.image = Some(image);
        }
        left
    }

    fn add(&mut self, event: Event) {
        if event.seq == NO_SEQ {
            self.unplaced.push(event);
        } else if let Some(before) = self.events.insert(event.seq, event) {
            // Blocks round the times, ring files do not.
            let in_units = |event: Event| Event { time_ns: event.time_ns >> TIME_SHIFT, ..event };
            assert_eq!(in_units(before), in_units(event), "two different events have one sequence number");
        }
    }

    /// Number of sequence numbers that were taken and have no event.
    pub fn missing_events(&self) -> u64 {
        let taken = match (&self.end, &self.image) {
            // A thread that was delayed while the recording ended may have taken numbers after the
            // end block.
            (Some(end), Some(image)) => end.events.max(image.next_seq),
            (Some(end), None) => end.events,
            (None, Some(image)) => image.next_seq,
            (None, None) => panic!("neither an end block nor a ring file"),
        };
        taken - self.events.len() as u64
    }

    pub fn counters(&self) -> &Counters {
        match (&self.end, &self.image) {
            (Some(end), _) => &end.counters,
            (None, Some(image)) => &image.counters,
            (None, None) => panic!("neither an end block nor a ring file"),
        }
    }
}

pub fn ring_path(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".ring");
    name.into()
}

/// Starts the test `scenario` of this binary in a process of its own, writing to `trace`.
pub fn command(scenario: &str, trace: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["scenario", "--exact", "--nocapture", "--test-threads=1"]);
    command.env("SCENARIO", scenario).env("GPUMEMTRACE_OUTPUT", trace).env_remove("RANK");
    command.stdout(Stdio::null());
    command
}

/// Runs a scenario until it exits.
pub fn run(scenario: &str, trace: &Path) -> ExitStatus {
    command(scenario, trace).status().unwrap()
}

/// The scenario that this process was started for, or `None` in the test process itself.
pub fn requested_scenario() -> Option<String> {
    std::env::var("SCENARIO").ok()
}

/// Records a driver call that succeeds.
pub fn record_call(kind: EventKind, addr: u64, size: u64) {
    let mut draft = Draft::new(kind, ApiId(1));
    draft.addr = addr;
    draft.size = size;
    if let Some(call) = begin_call(&draft) {
        call.complete(0, |event| event.addr = addr);
    }
}

/// Records an event of PyTorch's allocator.
pub fn record_block(kind: EventKind, addr: u64, size: u64) {
    let mut draft = Draft::new(kind, ApiId::default());
    draft.device = 0;
    draft.addr = addr;
    draft.size = size;
    draft.detail = Some(Detail { requested_bytes: size, stream: 7, pool: 0 });
    record_event(&draft);
}
