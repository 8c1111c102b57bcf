//! Runs a scenario in a process of its own, and reads what it left.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::ring::{Record, RingImage};
use gpumemtrace_format::{
    ApiId, CodeDef, Counters, Detail, End, Event, EventKind, Meta, NO_SEQ, NativeNode, PyNode,
};
use gpumemtrace_recorder::{Draft, begin_call, record_event};

/// Units of time in a block: 2^10 ns, as `recorder/src/trace_file.rs` has it.
const TIME_SHIFT: u8 = 10;

/// Everything a process left, put together as a reader must.
#[derive(Default)]
pub struct TraceLeftovers {
    pub meta: Meta,
    /// By place in the order; what is in block and ring stands once.
    pub events: BTreeMap<u64, Event>,
    /// Allocations that had not returned.
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
                Item::Links(links) => {
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
                // A kill may cut the last block; its events are still in the ring.
                Item::Cut { .. } => assert!(ring_path(trace).exists(), "a cut trace without a ring"),
                other => panic!("{other:?}"),
            }
        }
        if let Ok(bytes) = std::fs::read(ring_path(trace)) {
            let mut image = RingImage::decode(&bytes).unwrap();
            assert_eq!(image.malformed, 0);
            for record in std::mem::take(&mut image.records) {
                match record {
                    Record::Event(event) => left.add(event),
                    Record::Code(code) => left.codes.push(code),
                    Record::PyNode(node) => left.py_nodes.push(node),
                    Record::NativeNode(node) => left.native_nodes.push(node),
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
            // A block has times in units, the ring has them as they were.
            let in_units = |event: Event| Event { time_ns: event.time_ns >> TIME_SHIFT, ..event };
            assert_eq!(in_units(before), in_units(event), "one place in the order, two different events");
        }
    }

    /// Places that were given out and are not there.
    pub fn missing(&self) -> u64 {
        let given = match (&self.end, &self.image) {
            // A thread that was held up while the recording ended comes after the end.
            (Some(end), Some(image)) => end.events.max(image.next_seq),
            (Some(end), None) => end.events,
            (None, Some(image)) => image.next_seq,
            (None, None) => panic!("neither an end nor a ring"),
        };
        given - self.events.len() as u64
    }

    pub fn counters(&self) -> &Counters {
        match (&self.end, &self.image) {
            (Some(end), _) => &end.counters,
            (None, Some(image)) => &image.counters,
            (None, None) => panic!("neither an end nor a ring"),
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

/// Runs a scenario to its end.
pub fn run(scenario: &str, trace: &Path) -> ExitStatus {
    command(scenario, trace).status().unwrap()
}

/// The scenario this process was started for, if it was.
pub fn asked_scenario() -> Option<String> {
    std::env::var("SCENARIO").ok()
}

/// A driver call that works at once.
pub fn call(kind: EventKind, addr: u64, size: u64) {
    let mut draft = Draft::new(kind, ApiId(1));
    draft.addr = addr;
    draft.size = size;
    if let Some(call) = begin_call(&draft) {
        call.complete(0, |event| event.addr = addr);
    }
}

/// A block of PyTorch's.
pub fn block(kind: EventKind, addr: u64, size: u64) {
    let mut draft = Draft::new(kind, ApiId::default());
    draft.device = 0;
    draft.addr = addr;
    draft.size = size;
    draft.detail = Some(Detail { requested_bytes: size, stream: 7, pool: 0 });
    record_event(&draft);
}
