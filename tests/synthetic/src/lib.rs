//! Synthetic traces: the files that a recorder would write for a run that a test describes.
//!
//! [`Synthetic`] has a simple allocator in the manner of PyTorch's. Blocks are rounded to 512
//! bytes and cut from driver segments, freed blocks of equal size are reused, and every event has
//! the running totals. [`Packed`] splits and merges blocks as PyTorch does.
#![allow(missing_docs, reason = "used by tests only; most names say it")]

use std::collections::HashMap;

use gpumemtrace_format::block::{BlockKind, encode_block, file_header};
use gpumemtrace_format::event::RECORD_BYTES;
use gpumemtrace_format::reader::TraceBytes;
use gpumemtrace_format::ring::{
    HEADER_BYTES, NEXT_SEQ_AT, RING_HEAD_AT, RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RingLayout,
    TRACE_BYTES_AT, encode_header, seal,
};
use gpumemtrace_format::{
    ApiId, CodeDef, CodeId, Counters, Detail, End, EndReason, Event, EventKind, FrameLink, Meta, ModuleDef,
    NO_SEQ, NativeNode, NodeId, PyNode, ThreadId, definitions, event_block,
};
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::compare::PerStepTotals;
use gpumemtrace_replay::{
    Analysis, AnalysisOptions, Input, Report, RingFile, analyse, analyse_with, compare, report,
};

pub const TORCH: &str = "/env/lib/python3.11/site-packages/torch/";
pub const TRACE_ID: [u8; 16] = [0xab; 16];
const SEGMENT_BYTES: u64 = 20 << 20;

pub mod dice;
mod packed;
pub mod random;
pub mod scoring;
pub mod streams;
pub use packed::Packed;

#[derive(Default)]
pub struct Synthetic {
    pub events: Vec<Event>,
    pub codes: Vec<CodeDef>,
    pub nodes: Vec<PyNode>,
    pub meta: Meta,
    modules: Vec<ModuleDef>,
    /// Native stack of driver calls; see [`Synthetic::call_driver_from`].
    library: NodeId,
    pub thread: u32,
    pub device: u8,
    /// CUDA stream of the blocks, as PyTorch's tracker reports it. `None` without a tracker.
    pub stream: Option<u64>,
    /// Native stack of the driver calls that the allocator makes.
    pub allocator_native: NodeId,
    pub time_ns: u64,
    live: HashMap<u64, u64>,
    free: HashMap<u64, Vec<u64>>,
    allocated: u64,
    pub reserved: u64,
    /// Driver memory that the allocator did not request.
    pub other_driver_bytes: u64,
    /// Capacity of the device in bytes; 0 for no limit.
    pub capacity: u64,
    segment: (u64, u64),
    /// If set, blocks are split and merged as by PyTorch's allocator.
    pub packed: Option<Packed>,
    /// More encoded blocks of the file.
    pub more_blocks: Vec<u8>,
    node_ids: HashMap<(NodeId, u32, i32), NodeId>,
}

impl Synthetic {
    pub fn new() -> Self {
        let mut meta = Meta::default();
        meta.set_text("trace_id", TRACE_ID.map(|byte| format!("{byte:02x}")).concat());
        meta.set_number("pid", 4242);
        meta.set_text("host", "node7");
        meta.set_list("command", ["python", "train.py", "--epochs", "3"].map(str::to_owned).to_vec());
        meta.set_number("started_ns", 1_000_000_000);
        meta.set_text("mode", "preload");
        meta.set_text("torch", "2.15.0");
        meta.set_text("python", "3.11.7");
        meta.set_number("cuda_runtime", 13020);
        meta.set_list("apis", ["-", "cuMemAlloc_v2", "cuMemFree_v2"].map(str::to_owned).to_vec());
        meta.set_number("device.0.total_bytes", 24 << 30);
        Self {
            meta,
            thread: 77,
            time_ns: 1_000_000_000,
            segment: (0x7f00_0000_0000, 0x7f00_0000_0000),
            ..Self::default()
        }
    }

    /// Adds a frame. Frames of the same file and function share a code object, which starts at
    /// line 1.
    pub fn frame(&mut self, parent: NodeId, file: &str, function: &str, line: i32) -> NodeId {
        let known = self.codes.iter().find(|code| code.file == file && code.name == function);
        let code = known.map_or(self.codes.len() as u32 + 1, |code| code.id.0);
        if known.is_none() {
            // Each code unit is one line below the one before it.
            let mut line_table = vec![0xe8, 0];
            line_table.extend([0xe8, 2].repeat(999));
            self.codes.push(CodeDef {
                id: CodeId(code),
                first_line: 1,
                python: 0x030b,
                truncated: false,
                file: file.to_owned(),
                name: function.to_owned(),
                line_table,
            });
        }
        let next = NodeId(self.nodes.len() as u32 + 1);
        let id = *self.node_ids.entry((parent, code, line)).or_insert(next);
        if id == next {
            self.nodes.push(PyNode {
                id,
                parent,
                code: CodeId(code),
                offset_bytes: (line - 1) * 2,
                link: if parent == NodeId::NONE { FrameLink::C } else { FrameLink::Python },
            });
        }
        id
    }

    pub fn event(&mut self, kind: EventKind, addr: u64, size: u64, aux: [u64; 2], stack: NodeId) {
        self.time_ns += 1000;
        let is_driver = kind.is_driver_call();
        self.events.push(Event {
            seq: self.events.len() as u64,
            time_ns: self.time_ns,
            thread: ThreadId(self.thread),
            kind,
            device: self.device,
            api: ApiId(u8::from(is_driver)),
            flags: 0,
            result: 0,
            in_flight: false,
            addr,
            size,
            aux,
            python_stack: stack,
            native_stack: if is_driver { self.library } else { NodeId::NONE },
            detail: None,
        });
    }

    /// Makes the library at `path` the caller of all further driver calls.
    pub fn call_driver_from(&mut self, path: &str) {
        let index = self.modules.iter().position(|module| module.path == path).unwrap_or_else(|| {
            let start = 0x10_0000 * (self.modules.len() as u64 + 1);
            let (end, path, build_id) = (start + 0x1000, path.to_owned(), Vec::new());
            self.modules.push(ModuleDef { load_bias: start, start, end, path, build_id });
            self.modules.len() - 1
        });
        self.library = NodeId(index as u32 + 1);
    }

    pub fn alloc(&mut self, stack: NodeId, bytes: u64) -> u64 {
        let size = bytes.max(1).next_multiple_of(512);
        let (addr, size) = if let Some(mut packed) = self.packed.take() {
            let place = packed.take(size).unwrap_or_else(|| {
                if self.is_full_with(Packed::segment_bytes(size)) {
                    self.empty_cache(&mut packed, stack);
                }
                let (addr, bytes) = packed.new_segment(size);
                self.segment_event([EventKind::DEVICE_ALLOC, EventKind::SEGMENT_ALLOC], (addr, bytes), stack);
                self.reserved += bytes;
                packed.take(size).expect("room in a new segment")
            });
            self.packed = Some(packed);
            place
        } else {
            let reused = self.free.get_mut(&size).and_then(Vec::pop);
            (reused.unwrap_or_else(|| self.cut(stack, size)), size)
        };
        self.live.insert(addr, size);
        self.allocated += size;
        self.block_event(EventKind::BLOCK_ALLOC, (addr, size), bytes, stack);
        addr
    }

    fn block_event(&mut self, kind: EventKind, (addr, size): (u64, u64), requested: u64, stack: NodeId) {
        self.event(kind, addr, size, [self.allocated, self.reserved], stack);
        let detail = self.stream.map(|stream| Detail { requested_bytes: requested.max(1), stream, pool: 0 });
        self.events.last_mut().expect("an event").detail = detail;
    }

    fn segment_event(&mut self, kinds: [EventKind; 2], (addr, bytes): (u64, u64), stack: NodeId) {
        let size = if kinds[0] == EventKind::DEVICE_FREE { 0 } else { bytes };
        self.event(kinds[0], addr, size, [0; 2], stack);
        self.events.last_mut().expect("an event").native_stack = self.allocator_native;
        if let Some(stream) = self.stream {
            self.event(kinds[1], addr, bytes, [stream, 0], stack);
        }
    }

    /// Returns all free segments to the driver, as PyTorch does before it raises out of memory.
    fn empty_cache(&mut self, packed: &mut Packed, stack: NodeId) {
        for (addr, bytes) in packed.release_free_segments() {
            self.segment_event([EventKind::DEVICE_FREE, EventKind::SEGMENT_FREE], (addr, bytes), stack);
            self.reserved -= bytes;
        }
    }

    /// Cuts a block from the current segment, or from a new one.
    fn cut(&mut self, stack: NodeId, size: u64) -> u64 {
        if self.segment.0 + size > self.segment.1 {
            let segment = SEGMENT_BYTES.max(size.next_multiple_of(2 << 20));
            let addr = self.segment.1 + (1 << 30);
            self.event(EventKind::DEVICE_ALLOC, addr, segment, [0; 2], stack);
            self.reserved += segment;
            self.segment = (addr, addr + segment);
        }
        self.segment.0 += size;
        self.segment.0 - size
    }

    /// Size of a live block in bytes.
    pub fn size_of(&self, addr: u64) -> u64 {
        self.live[&addr]
    }

    pub fn release(&mut self, addr: u64, stack: NodeId) {
        let size = self.live.remove(&addr).expect("a live block");
        self.allocated -= size;
        match &mut self.packed {
            Some(packed) => packed.give_back(addr, size),
            None => self.free.entry(size).or_default().push(addr),
        }
        self.block_event(EventKind::BLOCK_FREE, (addr, size), size, stack);
    }

    /// True if the driver's memory exceeds the capacity. A test then ends the run.
    pub fn is_full(&self) -> bool {
        self.is_full_with(0)
    }

    fn is_full_with(&self, more_bytes: u64) -> bool {
        self.capacity > 0 && self.reserved + self.other_driver_bytes + more_bytes > self.capacity
    }

    pub fn oom(&mut self, stack: NodeId, bytes: u64) {
        self.event(EventKind::BLOCK_OOM, 0, bytes, [self.allocated, self.reserved], stack);
    }

    pub fn release_all(&mut self) {
        self.release_all_below(u64::MAX);
    }

    /// Frees all blocks below this address. Returns the number of the others.
    pub fn release_all_below(&mut self, end: u64) -> usize {
        let mut addresses: Vec<_> = self.live.keys().copied().filter(|addr| *addr < end).collect();
        addresses.sort_unstable();
        for addr in addresses {
            self.release(addr, NodeId::NONE);
        }
        self.live.len()
    }

    /// A training run: parameters, then steps of forward, backward and Adam. Calls `each_step` in
    /// each.
    pub fn train(steps: u64, mut each_step: impl FnMut(&mut Self, u64, NodeId)) -> Self {
        let mut run = Self::new();
        let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 90);
        let init = run.frame(main, "/work/train.py", "build", 12);
        let parameters: Vec<u64> = (0..10u64).map(|i| run.alloc(init, (i + 1) * 4096)).collect();
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let train = run.frame(at, "/work/train.py", "train", 40);
        let call = run.frame(train, &format!("{TORCH}nn/modules/module.py"), "Module._call_impl", 200);
        let forward: Vec<NodeId> =
            (0..8).map(|layer| run.frame(call, "/work/model.py", "Net.forward", 20 + layer)).collect();
        let backward = run.frame(at, "/work/train.py", "train", 42);
        let step_line = run.frame(at, "/work/train.py", "train", 43);
        let wrapper = run.frame(
            step_line,
            &format!("{TORCH}optim/optimizer.py"),
            "Optimizer.profile_hook_step.<locals>.wrapper",
            50,
        );
        let adam = run.frame(wrapper, &format!("{TORCH}optim/adam.py"), "Adam.step", 60);
        let mut gradients = Vec::new();
        for step in 0..steps {
            let activations: Vec<u64> = forward.iter().map(|layer| run.alloc(*layer, 1 << 20)).collect();
            each_step(&mut run, step, train);
            run.thread = 78;
            for addr in activations.into_iter().rev() {
                run.release(addr, NodeId::NONE);
                if step == 0 {
                    gradients.push(run.alloc(NodeId::NONE, 4096));
                }
            }
            run.thread = 77;
            let loss = run.alloc(backward, 512);
            run.release(loss, train);
            if step == 0 {
                for i in 0..2 * parameters.len() as u64 {
                    run.alloc(adam, (i / 2 + 1) * 4096);
                }
            }
            let temporary = run.alloc(adam, 8192);
            run.release(temporary, adam);
        }
        run
    }

    /// The trace file of a process that exited normally, in blocks of `rows` events.
    pub fn file(&self, rows: usize) -> Vec<u8> {
        let mut file = self.file_without_end(rows);
        let end = End {
            reason: EndReason::Exit,
            events: self.events.len() as u64,
            time_ns: self.time_ns,
            message: String::new(),
            counters: Counters::default(),
        };
        file.extend(encode_block(BlockKind::END, &end.encode(), 3));
        file
    }

    /// The trace file of a process that was killed.
    pub fn file_without_end(&self, rows: usize) -> Vec<u8> {
        self.file_of(&self.events, rows)
    }

    pub fn file_of(&self, events: &[Event], rows: usize) -> Vec<u8> {
        let mut file = file_header().to_vec();
        file.extend(encode_block(BlockKind::META, &self.meta.encode(), 3));
        for events in events.chunks(rows) {
            let mut events = events.to_vec();
            events.sort_by_key(|event| (event.thread, event.seq));
            file.extend(encode_block(BlockKind::EVENTS, &event_block::encode(&events, 0).payload, 3));
        }
        // Definitions may follow their use, and readers must accept that.
        file.extend(encode_block(BlockKind::CODES, &definitions::encode_codes(&self.codes), 3));
        file.extend(encode_block(BlockKind::PY_NODES, &definitions::encode_py_nodes(&self.nodes), 3));
        file.extend(encode_block(BlockKind::FRAME_LINKS, &definitions::encode_frame_links(&self.nodes), 3));
        file.extend(&self.more_blocks);
        if !self.modules.is_empty() {
            let frame = |(module, id): (&ModuleDef, u32)| NativeNode {
                id: NodeId(id),
                parent: NodeId::NONE,
                return_address: module.start + 0x10,
            };
            let nodes: Vec<NativeNode> = self.modules.iter().zip(1..).map(frame).collect();
            file.extend(encode_block(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(&nodes), 3));
            file.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&self.modules), 3));
        }
        file
    }

    pub fn analyse(&self) -> Analysis {
        analyse_bytes(&self.file(1000), RingFile::Absent)
    }

    pub fn report(&self) -> Report {
        report(&[self.analyse()], &[])
    }
}

pub fn analyse_bytes(bytes: &[u8], ring: RingFile) -> Analysis {
    with_input(bytes, ring, analyse).expect("a trace")
}

/// Analyses with options, such as a start time.
pub fn analyse_part(bytes: &[u8], options: AnalysisOptions) -> Analysis {
    with_input(bytes, RingFile::Absent, |input| analyse_with(input, options)).expect("a trace")
}

pub fn analyse_for_peak(bytes: &[u8]) -> Analysis {
    let read =
        |input: Input<'_>| gpumemtrace_replay::analyse_for_peak(input, AnalysisOptions::default()).unwrap().0;
    with_input(bytes, RingFile::Absent, read)
}

/// Analyses for a comparison. `None` if the trace cannot be read.
pub fn analyse_by_steps(bytes: &[u8]) -> Option<(Analysis, PerStepTotals)> {
    with_input(bytes, RingFile::Absent, |input| compare::analyse_by_steps(input, UserCodePaths::default()))
        .ok()
}

/// Analyses the files of a program that is running.
pub fn analyse_running(bytes: &[u8], ring: RingFile) -> Analysis {
    with_input(bytes, ring, |input| analyse(Input { is_locked: true, ..input })).expect("a trace")
}

fn with_input<T>(bytes: &[u8], ring: RingFile, read: impl FnOnce(Input<'_>) -> T) -> T {
    let bytes = std::sync::Arc::<[u8]>::from(bytes);
    let open = || Ok(Box::new(std::io::Cursor::new(bytes.clone())) as Box<dyn TraceBytes>);
    let path = "run.trace";
    read(Input { path, open: &open, ring, is_locked: false, files: Vec::new(), absent: Vec::new() })
}

/// A ring file of a killed process, with one ring that holds these events.
pub fn ring_file(events: &[Event], next_seq: u64) -> Vec<u8> {
    let records: Vec<_> = events.iter().map(Event::to_words).collect();
    ring_file_of(records.len().max(1).next_power_of_two(), &[(77, 0, records)], next_seq, 0)
}

/// A ring: its thread, the number of its first record, and its records.
pub type Ring = (u32, u64, Vec<[u64; 8]>);

/// A ring file of a killed process that had written `trace_bytes` of its trace.
pub fn ring_file_of(per_ring: usize, rings: &[Ring], next_seq: u64, trace_bytes: u64) -> Vec<u8> {
    let shape = RingLayout::uniform(rings.len() as u32, per_ring as u32);
    let mut bytes = vec![0; shape.file_bytes() as usize];
    bytes[..HEADER_BYTES].copy_from_slice(&encode_header(TRACE_ID, 4242, &shape));
    let mut put = |at: usize, value: u64| bytes[at..][..8].copy_from_slice(&value.to_le_bytes());
    put(NEXT_SEQ_AT, next_seq);
    put(TRACE_BYTES_AT, trace_bytes);
    for (index, (thread, tail, records)) in rings.iter().enumerate() {
        let ring = shape.ring(index).unwrap().0 as usize;
        put(ring, u64::from(*thread));
        put(ring + RING_HEAD_AT, tail + records.len() as u64);
        put(ring + RING_TAIL_AT, *tail);
        put(ring + RING_TAIL_AGAIN_AT, *tail);
        for (number, record) in (*tail..).zip(records) {
            let mut words = *record;
            words[7] = seal(&words, number, *thread);
            let at = ring + RING_RECORDS_AT + number as usize % per_ring * RECORD_BYTES;
            words.iter().enumerate().for_each(|(word, value)| put(at + 8 * word, *value));
        }
    }
    bytes
}

/// The event as a ring has it while the call runs.
pub fn in_flight(mut event: Event) -> Event {
    event.in_flight = true;
    if !event.kind.is_ordered_before_call() {
        event.seq = NO_SEQ;
    }
    event
}
