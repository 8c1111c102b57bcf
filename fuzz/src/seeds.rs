//! Seeds of the fuzz targets: a synthetic run in the bytes of our encoders, and the golden traces.

use std::io;
use std::path::{Path, PathBuf};

use gpumemtrace_format::block::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, BlockPacker, FILE_HEADER_BYTES, encode_block, file_header,
};
use gpumemtrace_format::event::{Event, RECORD_WORDS};
use gpumemtrace_format::ring::{encode_code_records, encode_native_node_record, encode_py_node_record};
use gpumemtrace_format::{
    AddressNames, Detail, Meta, ModuleDef, ModuleNames, NamedFrame, NativeNode, NodeId, definitions,
};

use crate::files::RING;
use gpumemtrace_synthetic::Synthetic;

const SUMMARY: &str = r#"{"schema":"gpumemtrace.summary","version":1,"traces":[{"host":"node0","pid":7,
"started_unix_ns":1,"path":"run.trace","rank":0,"world_size":2,"command":["python"],"torch":null,
"allocator_conf":null,"git_commit":"4f2a","labels":{"team":"nlp"},"events":9,"duration_ns":5,"end":"killed","missing":["a part"],"steps":3,
"step_source":"optimizer","leak_assessment":"assessed","worst_finding":{"severity":"critical","summary":"Leak"},"devices":[{"device":0,"name":null,"total_bytes":80,
"peak_live_bytes":60,"peak_reserved_bytes":70,"end_live_bytes":10,"live_bytes_over_time":[60,null],
"peak_sites":[{"site":{"id":"a1","text":"train.py:14"},"bytes":50}],"more_peak_sites":0}],"leaks":[{"device":0,"kind":"tensors",
"site":{"id":"a1","text":"train.py:14"},"bytes":50,"bytes_per_step":0.1,"first_step":1}],"more_leaks":0,
"ooms":[{"device":0,"step":2,"time_ns":4,"requested_bytes":30,"site":{"id":"b2","text":"train.py:9"}}],
"more_ooms":0}],"unreadable":[{"path":"b.trace","why":"b.trace is empty"}]}"#;

/// Snapshots of PyTorch: JSON, a pickle with shared frames, and JSON in xz, in a zip archive, and a
/// page.
const SNAPSHOTS: &[&[u8]] = &[
    br#"{"segments":[{"device":0,"address":4096,"total_size":2097152,"stream":0,"segment_pool_id":[0,0],"is_expandable":false,"frames":[],"blocks":[{"address":4096,"size":512,"requested_size":4,"state":"active_allocated","frames":[{"filename":"a.py","line":3,"name":"f"}]},{"address":4608,"size":2096640,"requested_size":0,"state":"inactive","frames":[]}]}],"device_traces":[[{"action":"free_requested","addr":8192,"size":9,"stream":0,"time_us":5,"frames":[]},{"action":"segment_unmap","addr":40960,"size":4096,"stream":1,"time_us":6},{"action":"oom","device_free":1,"size":2,"stream":0,"time_us":7}]],"external_annotations":[{"stage":"START","name":"x","device":0,"time_us":5}],"allocator_settings":{"max_split_size":-1,"roundup_power2_divisions":{"1":4}}}"#,
    b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94]\x94(}\x94(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94J\x00\x10\x00\x00\x8c\x04size\x94K\x04\x8c\x06stream\x94K\x00\x8c\x06frames\x94]\x94}\x94(\x8c\x08filename\x94\x8c\x04a.py\x94\x8c\x04line\x94K\x03\x8c\x04name\x94\x8c\x01f\x94uau}\x94(h\x06\x8c\x0efree_requested\x94h\x08J\x00\x10\x00\x00h\x09K\x04h\x0bh\x0cueau.",
    b"\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4F\x02\x00!\x01\x16\x00\x00\x00t/\xe5\xa3\x01\x00#{\"segments\":[],\"device_traces\":[[]]}\x00_\xdd4\x18F5\xb6p\x00\x01<$\x05(vo\x1f\xb6\xf3}\x01\x00\x00\x00\x00\x04YZ",
    b"PK\x03\x04\x14\x00\x00\x00\x08\x00\x00\x00!\x00\xdb\x0f\x89\xa7$\x00\x00\x00$\x00\x00\x00\x06\x00\x00\x00a.json\xabV*NM\xcfM\xcd+)V\xb2\x8a\x8e\xd5QJI-\xcbLN\x8d/)JLN\x05\x09E\xc7\xc6\xd6\x02\x00PK\x01\x02\x14\x03\x14\x00\x00\x00\x08\x00\x00\x00!\x00\xdb\x0f\x89\xa7$\x00\x00\x00$\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x01\x00\x00\x00\x00a.jsonPK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x004\x00\x00\x00H\x00\x00\x00\x00\x00",
    b"<script>import \"MemoryViz.js\"\nconst local_files = [{\"name\": \"a.pickle\", \"base64\": \"gAR9KIwIc2VnbWVudHNdjA1kZXZpY2VfdHJhY2VzXXUuAAA=\"}]\n",
];

/// Writes seeds to `folder/<target>/seed-*`.
pub fn write(folder: &Path) -> io::Result<()> {
    let run = run();
    let mut traces = vec![run.file(40), with_natives(run.file(1000))];
    for golden in golden_traces()? {
        traces.push(golden);
    }
    for (number, trace) in traces.iter().enumerate() {
        let name = format!("seed-{number}");
        put(folder, "trace", &name, trace)?;
        put(folder, "blocks", &name, &as_blocks(trace, &ring(&run)))?;
        for (kind, payload) in payloads(trace) {
            if let Some(target) = target_of(kind) {
                put(folder, target, &format!("{name}-{}", payload.len()), &payload)?;
            }
        }
    }
    for (number, snapshot) in SNAPSHOTS.iter().enumerate() {
        put(folder, "snapshot", &format!("seed-{number}"), snapshot)?;
    }
    let pieces = [&[7; 5000][..], &run.file(40)[..1500], &[0; 8192 - 6500]].concat();
    let packed = BlockPacker::new(3).encode_block(BlockKind::EVENTS, &pieces, &[5000]);
    put(folder, "pieces", "seed", &packed[BLOCK_HEADER_BYTES..])?;
    put(folder, "ring", "seed", &ring(&run))?;
    put(folder, "records", "seed", &records(&run).concat())?;
    for code in run.codes.iter().take(1) {
        for (python, name) in [(0x030bu16, "311"), (0x030a, "310")] {
            let mut bytes = python.to_le_bytes().to_vec();
            bytes.extend([10, 0, 0, 0, 0, 20, 0, 0, 0]);
            bytes.extend(&code.line_table[..40]);
            put(folder, "line_table", &format!("seed-{name}"), &bytes)?;
        }
    }
    put(folder, "summary", "seed", SUMMARY.as_bytes())?;
    put(folder, "cache", "seed", &as_blocks(&cached_names(), &[]))?;
    put(folder, "cache", "seed-file", &cached_names())?;
    for program in ["universal", "hardened-both", "restrict-segment"] {
        let packed = std::fs::read(golden().join("macho").join(format!("{program}.zlib")))?;
        let program_bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("a sample");
        put(folder, "macho", &format!("seed-{program}"), &program_bytes)?;
        // Its signature and both forms of its entitlements, found by their magic numbers.
        for (name, head) in [
            ("signature", [0xfa, 0xde, 0x0c, 0xc0]),
            ("plist", [0xfa, 0xde, 0x71, 0x71]),
            ("der", [0xfa, 0xde, 0x71, 0x72]),
        ] {
            let found = program_bytes.windows(4).position(|word| word == head);
            if let Some(part) = found.map(|at| &program_bytes[at + if name == "signature" { 0 } else { 8 }..])
            {
                put(folder, "macho", &format!("seed-{program}-{name}"), part)?;
            }
        }
    }
    put(folder, "macho", "seed-script", b"#!/usr/bin/env -S python3 -u\n")?;
    Ok(())
}

fn put(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = folder.join(target);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(name), bytes)
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

fn golden_traces() -> io::Result<Vec<Vec<u8>>> {
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(golden())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "trace") {
            traces.push(std::fs::read(path)?);
        }
    }
    Ok(traces)
}

fn run() -> Synthetic {
    let mut run = Synthetic::train(2, |run, step, line| {
        if step == 1 {
            run.alloc(line, 5000);
            run.oom(line, 1 << 40);
        }
    });
    for code in &mut run.codes {
        code.line_table.truncate(90);
    }
    for (event, number) in run.events.iter_mut().zip(0u64..) {
        event.native_stack = NodeId(number as u32 % 4);
        event.detail =
            (number % 3 == 0).then_some(Detail { requested_bytes: event.size, stream: 7, pool: 0 });
    }
    run
}

fn natives() -> Vec<NativeNode> {
    let node = |id: u32| NativeNode {
        id: NodeId(id),
        parent: NodeId(id - 1),
        return_address: 0x1000 + u64::from(id),
    };
    (1..4).map(node).collect()
}

fn names() -> Vec<ModuleNames> {
    let frame = NamedFrame { function: "grow".into(), file: "pool.c".into(), line: 7 };
    let addresses = (1..4).map(|address| AddressNames { address, frames: vec![frame.clone()] });
    vec![ModuleNames { build_id: vec![1; 20], addresses: addresses.collect() }]
}

/// Appends native stacks and their names.
fn with_natives(mut trace: Vec<u8>) -> Vec<u8> {
    let module = ModuleDef {
        load_bias: 0x1000,
        start: 0x1000,
        end: 0x2000,
        path: "/lib/liba.so".into(),
        build_id: vec![1; 20],
    };
    trace.extend(encode_block(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(&natives()), 3));
    trace.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&[module]), 3));
    trace.extend(encode_block(BlockKind::NAMES, &definitions::encode_names(&names()), 3));
    trace
}

fn cached_names() -> Vec<u8> {
    let mut meta = Meta::default();
    meta.set_text("made_from", "lib");
    let mut file = file_header().to_vec();
    file.extend(encode_block(BlockKind::META, &meta.encode(), 3));
    file.extend(encode_block(BlockKind::NAMES, &definitions::encode_names(&names()), 3));
    file
}

fn target_of(kind: BlockKind) -> Option<&'static str> {
    Some(match kind {
        BlockKind::META => "meta",
        BlockKind::EVENTS => "events",
        BlockKind::CODES => "codes",
        BlockKind::PY_NODES => "py_nodes",
        BlockKind::NATIVE_NODES => "native_nodes",
        BlockKind::MODULES => "modules",
        BlockKind::END => "end",
        BlockKind::NAMES => "names",
        BlockKind::FRAME_LINKS => "frame_links",
        BlockKind::INDEX => "index",
        BlockKind::TAIL => "tail",
        _ => return None,
    })
}

fn payloads(trace: &[u8]) -> Vec<(BlockKind, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = &trace[FILE_HEADER_BYTES..];
    while let Some(header) = rest.first_chunk::<BLOCK_HEADER_BYTES>().and_then(BlockHeader::decode) {
        let stored = &rest[BLOCK_HEADER_BYTES..][..header.stored_len];
        found.push((header.kind, header.unpack(stored).expect("a valid block")));
        rest = &rest[BLOCK_HEADER_BYTES + header.stored_len..];
    }
    found
}

/// In the input form of [`crate::files::valid_trace`].
fn as_blocks(trace: &[u8], ring: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |kind: u8, payload: &[u8]| {
        if let Ok(len) = u16::try_from(payload.len()) {
            bytes.push(kind);
            bytes.extend(len.to_le_bytes());
            bytes.extend(payload);
        }
    };
    for (kind, payload) in payloads(trace) {
        put(kind.0, &payload);
    }
    if !ring.is_empty() {
        put(RING, ring);
    }
    bytes
}

fn records(run: &Synthetic) -> Vec<[u8; 64]> {
    let mut words: Vec<[u64; RECORD_WORDS]> = Vec::new();
    let mut code = run.codes[0].clone();
    code.line_table.truncate(30);
    words.extend(encode_code_records(&code));
    words.extend(run.nodes.iter().take(3).map(|node| encode_py_node_record(*node)));
    words.extend(natives().into_iter().map(|node| encode_native_node_record(node, 0)));
    for (event, number) in run.events.iter().rev().take(6).zip(0u64..) {
        let event = Event { in_flight: number == 0, ..*event };
        words.extend(event.separate_detail_record());
        words.push(event.to_words());
    }
    words.iter().map(|words| std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])).collect()
}

/// In the input form of [`crate::rings::valid_ring`].
fn ring(run: &Synthetic) -> Vec<u8> {
    let records = records(run);
    let mut bytes = vec![32];
    bytes.extend([0; 16]);
    bytes.extend((run.events.len() as u64).to_le_bytes());
    bytes.extend([0, 9, 5, records.len() as u8]);
    bytes.extend(records.concat());
    bytes
}
