//! Damaged files never give wrong totals: flips every bit of traces and ring files, and cuts them
//! at every length.
//!
//! For each damaged file: reading does not panic, every event that is read is one of the run, and
//! either the reader reports that events are missing or it reads the same as from the intact
//! files.
//!
//! All flips and cuts are a quarter of a million reads, too many for a debug build. Without
//! `GPUMEMTRACE_EVERY_BIT=1` (set by `scripts/nightly` for a release build), a pseudo-random sample
//! is taken.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use gpumemtrace_format::block::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, FILE_HEADER_BYTES, encode_block,
};
use gpumemtrace_format::definitions::encode_names;
use gpumemtrace_format::reader::{Item, OpenError, TraceBytes, TraceReader};
use gpumemtrace_format::ring::{
    NEXT_SEQ_AT, RingImage, encode_code_records, encode_native_node_record, encode_py_node_record,
};
use gpumemtrace_format::{
    AddressNames, CodeDef, CodeId, Detail, Event, Meta, ModuleDef, ModuleNames, NamedFrame, NativeNode,
    NodeId, ThreadId, definitions,
};
use gpumemtrace_replay::ingest::{MissingEvents, TraceHead, find_losses, read_events};
use gpumemtrace_replay::report::TraceLoss;
use gpumemtrace_replay::{Input, RingFile};
use gpumemtrace_synthetic::{Synthetic, in_flight, ring_file_of};

/// Number of threads of the run.
const THREADS: u64 = 2;

/// Everything that is read from a trace and its ring file.
#[derive(PartialEq, Debug)]
struct ReadEvents {
    events: Vec<Event>,
    unplaced: Vec<Event>,
    missing: MissingEvents,
    /// Everything else as text, with definitions sorted.
    rest: String,
}

/// Reads the files. Also returns the losses.
fn read(trace: &Arc<[u8]>, ring: Option<&[u8]>) -> Result<(ReadEvents, Vec<TraceLoss>), OpenError> {
    let open = || Ok(Box::new(std::io::Cursor::new(trace.clone())) as Box<dyn TraceBytes>);
    let ring = ring.map_or(RingFile::Absent, |bytes| match RingImage::decode(bytes) {
        Ok(image) => RingFile::Loaded(Box::new(image)),
        Err(error) => RingFile::Unusable(error.to_string()),
    });
    let head = TraceHead::read(Input {
        path: "run.trace",
        open: &open,
        ring,
        is_locked: false,
        files: Vec::new(),
        absent: Vec::new(),
    })?;
    let mut events = Vec::new();
    let body = read_events(&open, &head, &mut |event| {
        events.push(*event);
        ControlFlow::Continue(())
    })?;
    let (missing, losses) = find_losses(&head, &body, THREADS);
    let rest = if losses.is_empty() { rest_of(&head) } else { String::new() };
    Ok((ReadEvents { events, unplaced: body.order.unplaced, missing, rest }, losses))
}

fn rest_of(head: &TraceHead) -> String {
    fn sorted<T: std::fmt::Debug>(values: impl Iterator<Item = T>) -> Vec<String> {
        let mut lines: Vec<String> = values.map(|value| format!("{value:?}")).collect();
        lines.sort();
        lines
    }
    let known = &head.definitions;
    let names = known.names.iter().map(|(id, names)| (id, sorted(names.iter())));
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        head.meta,
        head.end,
        head.counters(),
        head.ending(),
        sorted(known.codes.values()),
        sorted(known.python.values()),
        sorted(known.native.values()),
        known.modules,
        sorted(names),
    )
}

/// An intact trace, perhaps with its ring file.
struct IntactTrace {
    trace: Arc<[u8]>,
    ring: Option<Vec<u8>>,
    read: ReadEvents,
}

impl IntactTrace {
    fn new(trace: Vec<u8>, ring: Option<Vec<u8>>) -> Self {
        let trace = Arc::from(trace);
        let (events, losses) = read(&trace, ring.as_deref()).unwrap();
        assert_eq!(losses, Vec::<TraceLoss>::new());
        assert!(!events.events.is_empty());
        Self { trace, ring, read: events }
    }

    /// Reads damaged files. Returns true if the reader reports the damage, and panics if it reads
    /// anything wrong.
    fn reports_damage(&self, trace: &Arc<[u8]>, ring: Option<&[u8]>, damage: &str) -> bool {
        let Ok((found, losses)) = read(trace, ring) else { return true };
        let mut intact = self.read.events.iter();
        for event in &found.events {
            // The details of an event may be in a record of their own, which was lost.
            let is_it = |one: &Event| *one == *event || Event { detail: None, ..*one } == *event;
            assert!(intact.any(is_it), "{damage}: made up: {event:?}");
        }
        assert!(found.unplaced.iter().all(|event| self.read.unplaced.contains(event)), "{damage}: made up");
        if losses.is_empty() {
            assert!(found == self.read, "{damage}: not reported");
        }
        !losses.is_empty()
    }
}

/// True if all positions are tried, not a sample of them.
fn tries_every_position() -> bool {
    std::env::var_os("GPUMEMTRACE_EVERY_BIT").is_some()
}

/// The positions below `count` that are tried: all, or a sample of one in `one_in`.
fn positions(count: usize, one_in: usize) -> impl Iterator<Item = usize> {
    let every = tries_every_position();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    (0..count).filter(move |_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        every || random.is_multiple_of(one_in as u64)
    })
}

fn flip_bit(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

fn natives() -> Vec<NativeNode> {
    let node = |id: u32| NativeNode {
        id: NodeId(id),
        parent: NodeId(id - 1),
        return_address: 0x1000 + u64::from(id),
    };
    (1..4).map(node).collect()
}

/// A run with every property that events can have. `noise` in nanoseconds makes its times hard to
/// compress.
fn run(steps: u64, noise: u64) -> Synthetic {
    let mut run = Synthetic::train(steps, |run, _, line| {
        run.alloc(line, 5000);
        run.oom(line, 1 << 40);
    });
    let mut time_ns = 1_000_000_000;
    for (event, number) in run.events.iter_mut().zip(0u64..) {
        time_ns += 100 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % noise;
        event.time_ns = time_ns;
        event.thread = ThreadId(77 + (number % 2) as u32);
        event.native_stack = NodeId(number as u32 % 4);
        event.detail = (number % 3 == 0).then_some(Detail {
            requested_bytes: event.size,
            stream: number % 5,
            pool: if number % 2 == 0 { u64::from(u32::MAX) } else { 1 },
        });
    }
    run.time_ns = time_ns;
    for code in &mut run.codes {
        code.line_table.truncate(120);
    }
    run
}

/// The blocks that a recorder writes for native stacks, and `symbolize` for their names.
fn native_blocks() -> Vec<u8> {
    let module = ModuleDef {
        load_bias: 0x1000,
        start: 0x1000,
        end: 0x2000,
        path: "/lib/liba.so".into(),
        build_id: vec![1; 20],
    };
    let frame = NamedFrame { function: "grow".into(), file: "pool.c".into(), line: 7 };
    let addresses = (1..4).map(|address| AddressNames { address, frames: vec![frame.clone()] }).collect();
    let names = ModuleNames { build_id: vec![1; 20], addresses };
    let mut blocks = encode_block(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(&natives()), 3);
    blocks.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&[module]), 3));
    blocks.extend(encode_block(BlockKind::NAMES, &encode_names(&[names]), 3));
    blocks
}

/// The trace of a program that exited normally under `gpumemtrace run`.
fn closed_trace(run: &Synthetic, rows: usize) -> IntactTrace {
    let mut trace = run.file(rows);
    let blocks = native_blocks();
    trace.splice(FILE_HEADER_BYTES..FILE_HEADER_BYTES, blocks);
    let mut meta = Meta::default();
    meta.set_text("wait_status", "exit 0");
    trace.extend(encode_block(BlockKind::META, &meta.encode(), 3));
    IntactTrace::new(trace, None)
}

/// The files of a killed program: the rings have the last events of two threads with their
/// definitions, and a call in flight.
fn killed_trace(run: &Synthetic, rows: usize) -> IntactTrace {
    let (written, in_rings) = run.events.split_at(run.events.len() - 12);
    let mut trace = run.file_of(written, rows);
    trace.extend(native_blocks());
    let mut rings = [(77u32, 13u64, Vec::new()), (78, 2, Vec::new())];
    let mut code = run.codes[0].clone();
    code.line_table.truncate(40);
    rings[0].2.extend(encode_code_records(&code));
    rings[0].2.extend(run.nodes.iter().take(2).map(|node| encode_py_node_record(*node)));
    rings[1].2.extend(natives().into_iter().take(2).map(|node| encode_native_node_record(node, 0)));
    for event in in_rings {
        let ring = &mut rings[(event.thread.0 - 77) as usize].2;
        ring.extend(event.separate_detail_record());
        ring.push(event.to_words());
    }
    rings[1].2.push(in_flight(run.events[0]).to_words());
    let ring = ring_file_of(32, &rings, run.events.len() as u64, trace.len() as u64);
    IntactTrace::new(trace, Some(ring))
}

fn golden_trace(name: &str) -> IntactTrace {
    let path = format!("{}/../../tests/golden/{name}.trace", env!("CARGO_MANIFEST_DIR"));
    IntactTrace::new(std::fs::read(path).unwrap(), None)
}

/// Byte ranges of the file header and of each block of an intact file.
fn header_and_blocks(trace: &[u8]) -> Vec<Range<usize>> {
    let header = 0..FILE_HEADER_BYTES;
    std::iter::successors(Some(header), |piece| {
        let header =
            BlockHeader::decode(trace.get(piece.end..)?.first_chunk::<BLOCK_HEADER_BYTES>()?).unwrap();
        Some(piece.end..piece.end + BLOCK_HEADER_BYTES + header.stored_len)
    })
    .collect()
}

/// Checks that a flipped bit loses only its block, and that the reader reports where. Returns the
/// number of flips.
fn check_flips_of_trace(intact: &IntactTrace) -> u64 {
    let trace = &intact.trace;
    let pieces = header_and_blocks(trace);
    let items: Vec<Item> = TraceReader::new(&trace[..]).unwrap().collect();
    assert_eq!(items.len() + 1, pieces.len());
    let mut flips = 0;
    for bit in positions(trace.len() * 8, 60) {
        let piece = pieces.iter().position(|piece| piece.contains(&(bit / 8))).unwrap();
        let begin = pieces[piece].start as u64;
        let bytes: Arc<[u8]> = flip_bit(trace, bit).into();
        let damage = format!("bit {bit}");

        let mut corrupt_regions = 0;
        let mut read = Vec::new();
        for item in TraceReader::new(&bytes[..]).unwrap() {
            match item {
                Item::CorruptRegion(region) => {
                    assert_eq!((region.offset, region.len), (begin, pieces[piece].len() as u64), "{damage}");
                    corrupt_regions += 1;
                }
                item => read.push(item),
            }
        }
        assert_eq!(corrupt_regions, 1, "{damage}");
        let rest = items.iter().enumerate().filter(|(at, _)| at + 1 != piece).map(|(_, item)| item);
        assert!(rest.eq(read.iter()), "{damage}: more than one block was lost");

        let (_, losses) = self::read(&bytes, intact.ring.as_deref()).unwrap();
        let is_here = |loss: &TraceLoss| matches!(loss, TraceLoss::Damage { offset_bytes, .. } if *offset_bytes == begin);
        assert!(losses.iter().any(is_here), "{damage}: {losses:?}");
        assert!(intact.reports_damage(&bytes, intact.ring.as_deref(), &damage));
        flips += 1;
    }
    flips
}

/// Checks that a cut trace is reported as incomplete. Returns the number of cuts.
fn check_cuts_of_trace(intact: &IntactTrace, one_in: usize) -> u64 {
    let pieces = header_and_blocks(&intact.trace);
    let mut cuts = 0;
    for len in positions(intact.trace.len(), one_in) {
        // `gpumemtrace run` appends one block after the recorder's end block. Without it, all
        // events are there.
        let has_end = intact.ring.is_none() && pieces.last().is_some_and(|last| last.start == len);
        let bytes: Arc<[u8]> = intact.trace[..len].into();
        let is_complete =
            has_end && read(&bytes, None).is_ok_and(|(found, _)| found.events == intact.read.events);
        let damage = format!("cut at {len}");
        assert!(is_complete || intact.reports_damage(&bytes, intact.ring.as_deref(), &damage), "{damage}");
        cuts += 1;
    }
    cuts
}

#[test]
fn flipped_bit_of_a_trace_is_reported_and_loses_one_block() {
    let run = run(2, 1 << 12);
    let goldens = ["cuda-train", "metal-retained"].map(golden_trace);
    let intact = [closed_trace(&run, 15), killed_trace(&run, 15)].into_iter().chain(goldens);
    let flips: u64 = intact.map(|intact| check_flips_of_trace(&intact)).sum();
    assert!(flips > if tries_every_position() { 100_000 } else { 1000 }, "{flips}");
}

#[test]
fn cut_trace_is_reported_as_incomplete() {
    let run_of_two = run(2, 1 << 12);
    let goldens = ["cuda-train", "metal-retained"].map(golden_trace);
    let short = [closed_trace(&run_of_two, 15), killed_trace(&run_of_two, 15)].into_iter().chain(goldens);
    // Incompressible line tables make the file long, and are quick to read.
    let mut long = run(10, 1 << 30);
    let mut random = 1u64;
    for id in 100..123 {
        let line_table = (0..4200).map(|_| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 56) as u8
        });
        long.codes.push(CodeDef { id: CodeId(id), line_table: line_table.collect(), ..CodeDef::default() });
    }
    let cuts = short.map(|intact| check_cuts_of_trace(&intact, 20)).sum::<u64>()
        + check_cuts_of_trace(&closed_trace(&long, 200), 1000);
    assert!(cuts > if tries_every_position() { 100_000 } else { 200 }, "{cuts}");
}

#[test]
fn flipped_bit_of_a_ring_file_is_reported_or_has_no_effect() {
    let intact = killed_trace(&run(2, 1 << 12), 15);
    let ring = intact.ring.as_ref().unwrap();
    let (mut flips, mut reported) = (0, 0);
    for bit in positions(ring.len() * 8, 100) {
        // All threads increment the next sequence number, so it has no checksum. A smaller number
        // is noticed. A number that is larger by at most one per thread looks like calls in
        // flight that have no record yet, and loses nothing.
        if (NEXT_SEQ_AT..NEXT_SEQ_AT + 8).contains(&(bit / 8)) {
            let bytes = flip_bit(ring, bit);
            let (found, losses) = read(&intact.trace, Some(&bytes)).unwrap();
            let number = |ring: &[u8]| u64::from_le_bytes(ring[NEXT_SEQ_AT..][..8].try_into().unwrap());
            let is_plausible = (1..=THREADS).contains(&number(&bytes).wrapping_sub(number(ring)));
            assert!(found.events == intact.read.events, "bit {bit}");
            assert_eq!(losses.is_empty(), is_plausible, "bit {bit}: {losses:?}");
            continue;
        }
        let damage = format!("bit {bit}");
        reported += u64::from(intact.reports_damage(&intact.trace, Some(&flip_bit(ring, bit)), &damage));
        flips += 1;
    }
    assert!(flips > if tries_every_position() { 95_000 } else { 500 });
    assert!(reported > 100);
}

#[test]
fn cut_ring_file_is_reported_as_incomplete() {
    let intact = killed_trace(&run(2, 1 << 12), 15);
    let ring = intact.ring.as_ref().unwrap();
    let mut cuts = 0;
    for len in positions(ring.len(), 40) {
        let damage = format!("cut at {len}");
        assert!(intact.reports_damage(&intact.trace, Some(&ring[..len]), &damage), "{damage}");
        cuts += 1;
    }
    assert!(cuts > if tries_every_position() { 12_000 } else { 100 });
}
