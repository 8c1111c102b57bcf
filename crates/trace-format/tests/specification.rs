//! Checks `docs/trace-format.md` against this crate: its examples byte for byte, and its table of
//! event kinds row by row.
//!
//! An example stands in the document after a line `<!-- example: NAME -->`, in a code block. Each
//! line of the block begins with bytes in hexadecimal; two spaces end them.

use std::collections::BTreeMap;
use std::fmt::Write;

use gpumemtrace_format::block::{BLOCK_HEADER_BYTES, BlockKind, BlockPacker, encode_raw_block, file_header};
use gpumemtrace_format::index::{Index, IndexBuilder, TraceTail};
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::{
    ApiId, CodeDef, CodeId, Counters, Detail, End, EndReason, Event, EventKind, FrameLink, Meta, NodeId,
    PyNode, ThreadId, definitions, event_block, put_delta, put_varint,
};

/// The times of the example are exact in units of 2 ns.
const TIME_SHIFT: u8 = 1;

fn specification() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/trace-format.md");
    std::fs::read_to_string(path).unwrap()
}

/// The examples of the document by name.
fn examples_in_specification() -> BTreeMap<String, Vec<u8>> {
    let text = specification();
    let mut examples = BTreeMap::new();
    for part in text.split("<!-- example: ").skip(1) {
        let (name, rest) = part.split_once(" -->").unwrap();
        let block = rest.split("```").nth(1).unwrap();
        let bytes = block.lines().skip(1).flat_map(|line| {
            let hex = line.split("  ").next().unwrap_or_default();
            hex.split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("{name}: {line}")))
                .collect::<Vec<u8>>()
        });
        assert!(
            examples.insert(name.to_owned(), bytes.collect()).is_none(),
            "two examples are called {name}"
        );
    }
    examples
}

fn event(seq: u64, kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Event {
    Event {
        seq,
        time_ns: 1_000_000 + 250 * seq,
        thread: ThreadId(77),
        device: 0,
        addr,
        size,
        aux,
        python_stack: NodeId(2),
        ..Event::new(kind)
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the type of Event::detail")]
fn detail(requested_bytes: u64) -> Option<Detail> {
    Some(Detail { requested_bytes, stream: 0, pool: 0 })
}

/// A segment from the driver, two blocks in it, and a free of the first one.
fn events() -> Vec<Event> {
    vec![
        Event { api: ApiId(1), ..event(0, EventKind::DEVICE_ALLOC, 0x7f00_0000_0000, 2 << 20, [0x5000, 0]) },
        Event {
            detail: detail(4000),
            ..event(1, EventKind::BLOCK_ALLOC, 0x7f00_0000_0000, 4096, [4096, 2 << 20])
        },
        Event {
            detail: detail(512),
            ..event(2, EventKind::BLOCK_ALLOC, 0x7f00_0000_1000, 512, [4608, 2 << 20])
        },
        Event {
            detail: detail(4000),
            flags: 1,
            ..event(3, EventKind::BLOCK_FREE, 0x7f00_0000_0000, 4096, [512, 2 << 20])
        },
    ]
}

/// The same, and an allocation at the freed address.
fn events_with_reuse() -> Vec<Event> {
    let mut events = events();
    events.push(Event {
        detail: detail(3000),
        ..event(4, EventKind::BLOCK_ALLOC, 0x7f00_0000_0000, 3072, [3584, 2 << 20])
    });
    events
}

fn code() -> CodeDef {
    CodeDef {
        id: CodeId(1),
        first_line: 10,
        python: 0x030c,
        truncated: false,
        file: "train.py".into(),
        name: "step".into(),
        line_table: vec![0x80, 0x00, 0xd8],
    }
}

fn nodes() -> Vec<PyNode> {
    let node = |id, parent, offset_bytes, link| PyNode {
        id: NodeId(id),
        parent: NodeId(parent),
        code: CodeId(1),
        offset_bytes,
        link,
    };
    vec![node(1, 0, 8, FrameLink::C), node(2, 1, 44, FrameLink::Python)]
}

fn meta() -> Meta {
    let mut meta = Meta::default();
    meta.set_number("pid", 42);
    meta.set_list("apis", vec!["-".into(), "cuMemAlloc_v2".into()]);
    meta
}

fn end() -> End {
    End {
        reason: EndReason::Exit,
        events: 4,
        time_ns: 1_002_000,
        message: String::new(),
        counters: Counters::default(),
    }
}

/// A stored payload of two planes: one repeated byte, and three other bytes.
fn pieces() -> Vec<u8> {
    let payload = [&[0x40; 5000][..], &[1, 2, 3]].concat();
    BlockPacker::new(3).encode_block(BlockKind::EVENTS, &payload, &[5000])[BLOCK_HEADER_BYTES..].to_vec()
}

/// A whole trace, its INDEX payload and its TAIL block.
fn trace() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (mut file, mut index) = (file_header().to_vec(), IndexBuilder::default());
    let mut add = |kind, payload: &[u8], rows| {
        let block = encode_raw_block(kind, payload);
        if kind == BlockKind::EVENTS {
            index.add_event_block(block.len(), &events());
        } else {
            index.add_block(kind, file.len() as u64, block.len(), rows);
        }
        file.extend(block);
    };
    add(BlockKind::META, &meta().encode(), 0);
    add(BlockKind::CODES, &definitions::encode_codes(&[code()]), 1);
    add(BlockKind::PY_NODES, &definitions::encode_py_nodes(&nodes()), 2);
    add(BlockKind::FRAME_LINKS, &definitions::encode_frame_links(&nodes()), 2);
    add(BlockKind::EVENTS, &event_block::encode(&events(), TIME_SHIFT).payload, 4);
    let index_at = file.len() as u64;
    let index_payload = index.encode(index_at);
    file.extend(encode_raw_block(BlockKind::INDEX, &index_payload));
    let end_at = file.len() as u64;
    file.extend(encode_raw_block(BlockKind::END, &end().encode()));
    let at = file.len() as u64;
    let tail = TraceTail { index_bytes: at - index_at, end_bytes: at - end_at }.encode_block();
    file.extend(&tail);
    (file, index_payload, tail)
}

#[test]
fn specification_examples_match_the_encoders() {
    let varints = [0, 127, 300, u64::MAX].into_iter().fold(Vec::new(), |mut out, value| {
        put_varint(&mut out, value);
        out
    });
    let deltas =
        [(10, 10), (10, 11), (11, 10), (0, 1 << 20)].into_iter().fold(Vec::new(), |mut out, (from, to)| {
            put_delta(&mut out, from, to);
            out
        });
    let (_, index, tail) = trace();
    let written = BTreeMap::from([
        ("varints", varints),
        ("deltas", deltas),
        ("file header", file_header().to_vec()),
        ("a block", encode_raw_block(BlockKind::FRAME_LINKS, &definitions::encode_frame_links(&nodes()))),
        ("meta", meta().encode()),
        ("codes", definitions::encode_codes(&[code()])),
        ("nodes", definitions::encode_py_nodes(&nodes())),
        ("events", event_block::encode(&events_with_reuse(), TIME_SHIFT).payload),
        ("pieces", pieces()),
        ("index", index),
        ("tail", tail),
    ]);
    let printed = examples_in_specification();
    for (name, bytes) in &written {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        let found = printed.get(*name).map(|bytes| hex(bytes));
        assert_eq!(found, Some(hex(bytes)), "example {name:?}");
    }
    assert_eq!(printed.len(), written.len(), "the specification has examples that this test does not check");
}

#[test]
fn trace_of_the_examples_round_trips() {
    let (file, index, tail) = trace();
    let items: Vec<Item> = TraceReader::new(&file[..]).unwrap().collect();
    let tail = TraceTail::from_last_bytes(tail.as_slice().try_into().unwrap()).unwrap();
    let expected = [
        Item::Meta(meta()),
        Item::Codes(vec![code()]),
        Item::PyNodes(nodes().into_iter().map(|node| PyNode { link: FrameLink::Unknown, ..node }).collect()),
        Item::FrameLinks(vec![(NodeId(1), FrameLink::C), (NodeId(2), FrameLink::Python)]),
        Item::Events(events()),
        Item::Index(Index::decode(&index).unwrap()),
        Item::End(end()),
        Item::Tail(tail),
    ];
    assert_eq!(items, expected);
}

/// The table of event kinds as the specification must print it.
fn event_kind_table() -> String {
    let mut table = String::from(
        "| kind | name | seq | meaning | addr | size | aux0 | aux1 |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in EventKind::TABLE {
        let seq = if row.is_before_call { "before" } else { "after" };
        let fields = [row.meaning, row.addr, row.size, row.aux0, row.aux1].join(" | ");
        writeln!(table, "| {} | {} | {seq} | {fields} |", row.kind.0, row.name).unwrap();
    }
    table
}

#[test]
fn specification_lists_every_event_kind() {
    let expected = event_kind_table();
    let text = specification();
    let (_, rest) = text.split_once("<!-- event kinds -->\n").expect("the table of event kinds");
    let (printed, _) = rest.split_once("<!-- end -->").expect("the end of the table");
    assert!(printed == expected, "docs/trace-format.md must have this table of event kinds:\n\n{expected}");
}
