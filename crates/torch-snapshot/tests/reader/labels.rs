//! Labels of blocks, frames of forward calls, and what our export adds to a snapshot.

use std::io::Cursor;

use gpumemtrace_format::definitions::FrameLink;
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::{CodeDef, CodeId, Event, EventKind, NodeId, PyNode};
use gpumemtrace_torch_snapshot::{BACKWARD_FRAME, transcode};
use serde_json::{Value, json};

use super::allocator_model::AllocatorModel;
use super::json_bytes;
use super::pickle_writer::{PickleStyle, pickle};

/// The model's snapshot with every field that newer versions of PyTorch add.
pub(crate) fn with_new_fields(mut snapshot: Value) -> Value {
    let events = snapshot["device_traces"][0].as_array_mut().unwrap();
    for (number, event) in events.iter_mut().enumerate() {
        event["compile_context"] = json!("0/0");
        event["internal_metadata"] = json!("mallocWithAddress");
        event["user_metadata"] = json!(["", "weights", "{\"step\":1}"][number % 3]);
        if number % 5 == 0 {
            event["category"] = json!("gradient");
        }
        if number % 2 == 0 {
            event["forward_frames"] = json!([
                "  File \"/home/me/train.py\", line 40, in <module>\n    main()\n",
                format!("  File \"/home/me/model.py\", line {number}, in forward\n    x = self.f(x)\n"),
            ]);
            event["frames"] = json!([{ "filename": "/x/libtorch_cpu.so", "line": 7, "name": "at::empty()" }]);
        }
    }
    let addr = events[0]["addr"].clone();
    events.push(
        json!({ "action": "annotate", "addr": addr, "size": 1, "stream": 0, "user_metadata": "input", "frames": [] }),
    );
    snapshot
}

/// What the trace of a snapshot has besides its metadata.
struct TraceParts {
    events: Vec<Event>,
    codes: Vec<CodeDef>,
    nodes: Vec<PyNode>,
}

impl TraceParts {
    fn read(bytes: &[u8]) -> Self {
        let trace = transcode(&mut Cursor::new(bytes)).expect("it is a snapshot");
        let mut parts = Self { events: Vec::new(), codes: Vec::new(), nodes: Vec::new() };
        for item in TraceReader::new(&trace[..]).expect("it is a trace") {
            match item {
                Item::Events(more) => parts.events.extend(more),
                Item::Codes(more) => parts.codes.extend(more),
                Item::PyNodes(more) => parts.nodes.extend(more),
                Item::FrameLinks(links) => {
                    for (id, link) in links {
                        parts.nodes.iter_mut().filter(|node| node.id == id).for_each(|node| node.link = link);
                    }
                }
                _ => {}
            }
        }
        parts
    }

    fn name(&self, id: u64) -> &str {
        self.codes.iter().find(|code| u64::from(code.id.0) == id).map_or("?", |code| &code.name)
    }

    fn of_kind(&self, kind: EventKind) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.kind == kind)
    }

    /// Function and link of the frames of an event, innermost first.
    fn stack(&self, event: &Event) -> Vec<(&str, FrameLink)> {
        let (mut frames, mut at) = (Vec::new(), event.python_stack);
        while at != NodeId::NONE {
            let node = self.nodes.iter().find(|node| node.id == at).expect("the node is defined");
            let is_known = node.code != CodeId::UNKNOWN;
            frames.push((if is_known { self.name(u64::from(node.code.0)) } else { "" }, node.link));
            at = node.parent;
        }
        frames
    }
}

/// A model with one block for each line.
fn model_of_blocks(lines: u32) -> AllocatorModel {
    let mut model = AllocatorModel::new(false);
    for line in 0..lines {
        model.allocate(5000, 0, 0, 11 + line);
    }
    model
}

#[test]
fn category_comes_before_metadata_and_annotations_follow() {
    let mut snapshot = model_of_blocks(3).snapshot(99);
    let events = snapshot["device_traces"][0].as_array_mut().unwrap();
    let addrs: Vec<u64> = events.iter().map(|event| event["addr"].as_u64().unwrap()).collect();
    // The first event is that of the segment.
    events[1]["user_metadata"] = json!("weights");
    events[1]["category"] = json!("parameter");
    events[2]["user_metadata"] = json!("  ");
    events[3]["user_metadata"] = json!("x".repeat(1000));
    let annotation =
        |addr: u64| json!({ "action": "annotate", "addr": addr, "size": 1, "user_metadata": "input" });
    events.push(annotation(addrs[2]));
    events.push(annotation(12345));
    for bytes in [json_bytes(&snapshot), pickle(&snapshot, PickleStyle { protocol: 4, shares: true })] {
        let parts = TraceParts::read(&bytes);
        let labels: Vec<(u64, &str)> = parts
            .of_kind(EventKind::BLOCK_LABEL)
            .map(|event| (event.addr, parts.name(event.aux[0])))
            .collect();
        let long = "x".repeat(200);
        assert_eq!(labels, [(addrs[1], "parameter"), (addrs[3], long.as_str()), (addrs[2], "input")]);
        assert_eq!(parts.of_kind(EventKind::TORCH_ANNOTATE).count(), 2);
    }
}

#[test]
fn distinct_labels_are_bounded() {
    let mut snapshot = model_of_blocks(1200).snapshot(9999);
    for (number, event) in snapshot["device_traces"][0].as_array_mut().unwrap().iter_mut().enumerate() {
        event["user_metadata"] = json!(format!("label {number}"));
    }
    let parts = TraceParts::read(&json_bytes(&snapshot));
    let others =
        parts.of_kind(EventKind::BLOCK_LABEL).filter(|event| parts.name(event.aux[0]) == "other labels");
    assert_eq!(others.count(), 200);
}

#[test]
fn forward_frames_are_the_callers_of_a_backward_pass() {
    use FrameLink::{Backward, C, Native, Python};
    let mut snapshot = model_of_blocks(3).snapshot(99);
    let events = snapshot["device_traces"][0].as_array_mut().unwrap();
    let line = |line: u32, name: &str| {
        format!("  File \"/me/train.py\", line {line}, in {name}\n    code\n    ^^^^\n")
    };
    let forward = json!([line(9, "<module>"), "no frame", line(5, "forward"), 7]);
    events[1]["forward_frames"] = forward.clone();
    events[1]["frames"] = json!([{ "filename": "/x/libtorch_cpu.so", "line": 7, "name": "at::empty()" }]);
    events[2]["forward_frames"] = forward;
    events[2]["frames"] = json!([]);
    // A backward function in Python: its own line is more useful.
    events[3]["forward_frames"] = json!([line(9, "<module>")]);
    // Two events share the list of lines.
    let shared = pickle(&snapshot, PickleStyle { protocol: 4, shares: true });
    let single = pickle(&snapshot, PickleStyle { protocol: 2, shares: false });
    for bytes in [json_bytes(&snapshot), single, shared] {
        let parts = TraceParts::read(&bytes);
        let stacks: Vec<_> = parts.of_kind(EventKind::BLOCK_ALLOC).map(|event| parts.stack(event)).collect();
        let forward = [("", Backward), ("forward", Python), ("<module>", C)];
        assert_eq!(stacks[0][0], ("at::empty()", Native));
        assert_eq!(stacks[0][1..], forward);
        assert_eq!(stacks[1], forward);
        assert_eq!(stacks[2], [("step", Python), ("<module>", C)]);
    }
}

#[test]
fn names_of_profiled_calls_become_frames() {
    let mut snapshot = model_of_blocks(1).snapshot(99);
    let frame = |name: &str| json!({ "filename": "none", "line": 0, "name": name });
    snapshot["device_traces"][0][1]["frames"] = json!([
        frame("<built-in method randn>"),
        frame("torch/nn/modules/linear.py(134): forward"),
        frame("a.py(5): <module>")
    ]);
    let parts = TraceParts::read(&json_bytes(&snapshot));
    let event = parts.of_kind(EventKind::BLOCK_ALLOC).next().unwrap();
    let stack = parts.stack(event);
    assert_eq!(stack[0], ("<built-in method randn>", FrameLink::Native));
    assert_eq!(stack[1..], [("forward", FrameLink::Python), ("<module>", FrameLink::C)]);
    let files: Vec<&str> = parts.codes.iter().map(|code| code.file.as_str()).collect();
    assert!(
        files.contains(&"site-packages/torch/nn/modules/linear.py") && files.contains(&"a.py"),
        "{files:?}"
    );
}

#[test]
fn marks_of_our_export_are_read_and_those_of_others_are_not() {
    let mut snapshot = model_of_blocks(2).snapshot(99);
    let events = snapshot["device_traces"][0].as_array_mut().unwrap();
    let entry = |text: &str| json!({ "action": "user_defined", "addr": 0, "size": 0, "stream": 0, "user_metadata": text });
    events.insert(1, entry("step 1 begins"));
    events.insert(2, entry("phase load begins"));
    events.push(entry("phase load ends"));
    events[3]["frames"] = json!([
        { "filename": "??", "line": 0, "name": BACKWARD_FRAME },
        { "filename": "/me/train.py", "line": 5, "name": "forward" },
    ]);
    let kinds = |parts: &TraceParts| -> Vec<EventKind> {
        parts.events.iter().map(|event| event.kind).filter(|kind| kind.0 >= 96).collect()
    };
    let parts = TraceParts::read(&json_bytes(&snapshot));
    assert_eq!(kinds(&parts), []);
    snapshot["gpumemtrace"] = json!({ "format_version": 1 });
    let parts = TraceParts::read(&json_bytes(&snapshot));
    assert_eq!(kinds(&parts), [EventKind::MARK, EventKind::PHASE_BEGIN, EventKind::PHASE_END]);
    let first = parts.of_kind(EventKind::BLOCK_ALLOC).next().unwrap();
    assert_eq!(parts.stack(first), [("", FrameLink::Backward), ("forward", FrameLink::C)]);
}
