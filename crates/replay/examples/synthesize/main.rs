//! Writes a trace of any number of events, for measuring replay (`scripts/benchmarks/replay`).
//!
//! The trace is that of a training run with a leak. Events are generated in rounds, like those
//! that the recorder's writer drains from its rings, and each round is encoded and dropped.
//! Memory grows only with the live blocks: a billion events would take a hundred gigabytes.
//!
//! With STACKS, each step also serves requests: blocks of that many call stacks, of any size, that
//! live between one step and thousands. Such a run fills a large HTML page
//! (`scripts/benchmarks/html`).
//!
//! With RANK and WORLD_SIZE, the trace is that of one rank of a job, in which only the rank in the
//! middle leaks (`scripts/benchmarks/ranks`).
//!
//! usage: synthesize EVENTS FILE [STACKS [RANK WORLD_SIZE]]

mod trace_output;

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{SyncSender, sync_channel};

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::event::FLAG_FREED_AT_ONCE;
use gpumemtrace_format::{
    ApiId, CodeDef, CodeId, Counters, Detail, End, EndReason, Event, EventKind, FrameLink, Meta, NodeId,
    PyNode, ThreadId, definitions,
};
use trace_output::TraceOutput;

/// Events of one round. The recorder wakes its writer when a ring is a quarter full.
const ROUND_EVENTS: usize = 4096;
/// Events of every hundredth round, as if the writer were late: more than one block, so that the
/// sequence numbers of blocks overlap.
const LATE_ROUND_EVENTS: usize = 90_000;
const ROWS_PER_BLOCK: usize = 1 << 16;
const MAIN: u32 = 4242;
const BACKWARD: u32 = 4300;
const LAYERS: usize = 60;
/// Frames of the framework between a line of the model and the allocation.
const DEPTH: i32 = 12;
const REQUESTS_PER_STEP: usize = 400;
const SEGMENT_BYTES: u64 = 20 << 20;
const STARTED_NS: u64 = 1_000_000_000;
const TORCH: &str = "/env/lib/python3.12/site-packages/torch/";

/// Frames and code objects of the trace.
#[derive(Default)]
struct Frames {
    codes: Vec<CodeDef>,
    nodes: Vec<PyNode>,
}

impl Frames {
    /// Adds a code object, or returns that of the same file and function.
    fn code(&mut self, file: &str, function: &str) -> CodeId {
        let known = self.codes.iter().find(|code| code.file == file && code.name == function);
        if let Some(code) = known {
            return code.id;
        }
        let id = CodeId(self.codes.len() as u32 + 1);
        // Each code unit is one line below the one before it.
        let mut line_table = vec![0xe8, 0];
        line_table.extend([0xe8, 2].repeat(299));
        self.codes.push(CodeDef {
            id,
            first_line: 1,
            python: 0x030c,
            truncated: false,
            file: file.to_owned(),
            name: function.to_owned(),
            line_table,
        });
        id
    }

    fn node(&mut self, parent: NodeId, code: CodeId, line: i32, link: FrameLink) -> NodeId {
        let id = NodeId(self.nodes.len() as u32 + 1);
        self.nodes.push(PyNode { id, parent, code, offset_bytes: (line - 1) * 2, link });
        id
    }

    fn frame(&mut self, parent: NodeId, file: &str, function: &str, line: i32) -> NodeId {
        let code = self.code(file, function);
        self.node(parent, code, line, FrameLink::Python)
    }

    /// Adds the framework's frames between a line of user code and the allocation.
    fn add_module_frames(&mut self, mut parent: NodeId, module: &str) -> NodeId {
        for depth in 0..DEPTH {
            parent =
                self.frame(parent, &format!("{TORCH}nn/modules/module.py"), "Module._call_impl", 100 + depth);
        }
        self.frame(parent, &format!("{TORCH}nn/modules/{module}.py"), "forward", 50)
    }
}

/// Adds call stacks of a server: functions in a tree of calls, each with the framework's frames.
fn add_request_lines(frames: &mut Frames, stacks: usize) -> Vec<NodeId> {
    let main = frames.frame(NodeId::NONE, "/work/serve.py", "<module>", 12);
    let mut handlers = Vec::new();
    let lines = (0..stacks as i32).map(|number| {
        let (handler, part) = (number / 40, number % 40);
        if part == 0 {
            let route = frames.frame(main, "/work/serve.py", "handle", 20 + handler % 250);
            let file = format!("/work/handlers/handler{}.py", handler % 32);
            handlers.push(frames.frame(route, &file, "Handler.run", 1 + handler / 32));
        }
        let file = format!("/work/handlers/parts{}.py", handler % 32);
        let call = frames.frame(handlers[handler as usize], &file, "Part.apply", 10 + part);
        frames.add_module_frames(call, ["linear", "activation", "dropout"][number as usize % 3])
    });
    lines.collect()
}

/// Stacks of the lines that allocate.
struct ModelLines {
    parameters: NodeId,
    forward: Vec<[NodeId; 4]>,
    backward: Vec<[NodeId; 4]>,
    loss: NodeId,
    optimizer: Vec<NodeId>,
    leak: NodeId,
    /// Those of requests, if the run serves any.
    requests: Vec<NodeId>,
}

fn add_model_lines(frames: &mut Frames) -> ModelLines {
    let main = frames.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
    let train = frames.frame(main, "/work/train.py", "train", 40);
    let build = frames.frame(main, "/work/train.py", "build", 12);
    let forward: Vec<[NodeId; 4]> = (0..LAYERS as i32)
        .map(|layer| {
            let call = frames.frame(train, "/work/model.py", "Net.forward", 20 + layer);
            ["linear", "activation", "dropout", "normalization"]
                .map(|module| frames.add_module_frames(call, module))
        })
        .collect();
    let backward = forward
        .iter()
        .map(|stacks| stacks.map(|stack| frames.node(stack, CodeId::UNKNOWN, 1, FrameLink::Backward)))
        .collect();
    let step = frames.frame(main, "/work/train.py", "train", 43);
    let wrapper = frames.frame(
        step,
        &format!("{TORCH}optim/optimizer.py"),
        "Optimizer.profile_hook_step.<locals>.wrapper",
        50,
    );
    let optimizer =
        (0..4).map(|line| frames.frame(wrapper, &format!("{TORCH}optim/adam.py"), "Adam.step", 60 + line));
    let optimizer = optimizer.collect();
    let loss = frames.frame(main, "/work/train.py", "train", 42);
    let leak = frames.frame(train, "/work/hooks.py", "Keeper.hook", 7);
    ModelLines { parameters: build, forward, backward, loss, optimizer, leak, requests: Vec::new() }
}

/// The state of the generated run: allocator, clock, and the current round of events.
struct RankRun {
    round: Vec<Event>,
    rounds: u64,
    send: SyncSender<Vec<Event>>,
    seq: u64,
    time_ns: u64,
    random: u64,
    thread: u32,
    free: HashMap<u64, Vec<u64>>,
    segment: (u64, u64),
    allocated: u64,
    reserved: u64,
    steps: u64,
    leaks: bool,
    /// Blocks of requests, by the step that frees them.
    held: BTreeMap<u64, Vec<(Tensor, NodeId)>>,
}

/// An allocated block: address and requested bytes.
type Tensor = (u64, u64);

impl RankRun {
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn event(&mut self, kind: EventKind, (addr, size): (u64, u64), stack: NodeId, requested: Option<u64>) {
        self.time_ns += 600 + self.random() % 1800;
        let is_block = requested.is_some();
        self.round.push(Event {
            seq: self.seq,
            time_ns: self.time_ns,
            thread: ThreadId(self.thread),
            device: 0,
            api: ApiId(u8::from(kind.is_driver_call())),
            flags: if kind == EventKind::BLOCK_FREE { FLAG_FREED_AT_ONCE } else { 0 },
            result: 0,
            in_flight: false,
            addr,
            size,
            aux: if is_block { [self.allocated, self.reserved] } else { [0; 2] },
            python_stack: stack,
            detail: requested.map(|requested_bytes| Detail { requested_bytes, stream: 0, pool: 0 }),
            ..Event::new(kind)
        });
        self.seq += 1;
        let round_events = if self.rounds % 100 == 99 { LATE_ROUND_EVENTS } else { ROUND_EVENTS };
        if self.round.len() == round_events {
            self.rounds += 1;
            self.send_round();
        }
    }

    fn send_round(&mut self) {
        // The receiver is gone after a write error, which `main` reports.
        let _ = self.send.send(std::mem::take(&mut self.round));
    }

    fn alloc(&mut self, stack: NodeId, requested: u64) -> Tensor {
        let size = requested.max(1).next_multiple_of(512);
        let addr = match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(addr) => addr,
            None => self.cut(stack, size),
        };
        self.allocated += size;
        self.event(EventKind::BLOCK_ALLOC, (addr, size), stack, Some(requested));
        (addr, requested)
    }

    /// Cuts a block from the current segment, or from a new one.
    fn cut(&mut self, stack: NodeId, size: u64) -> u64 {
        if self.segment.0 + size > self.segment.1 {
            let bytes = SEGMENT_BYTES.max(size.next_multiple_of(2 << 20));
            let addr = self.segment.1.next_multiple_of(2 << 20) + (2 << 20);
            self.event(EventKind::DEVICE_ALLOC, (addr, bytes), stack, None);
            self.event(EventKind::SEGMENT_ALLOC, (addr, bytes), stack, None);
            self.reserved += bytes;
            self.segment = (addr, addr + bytes);
        }
        self.segment.0 += size;
        self.segment.0 - size
    }

    fn release(&mut self, (addr, requested): Tensor, stack: NodeId) {
        let size = requested.max(1).next_multiple_of(512);
        self.allocated -= size;
        self.free.entry(size).or_default().push(addr);
        self.event(EventKind::BLOCK_FREE, (addr, size), stack, Some(requested));
    }

    /// Serves requests: frees what is due, and allocates. The first stacks get the most requests.
    fn serve(&mut self, stacks: &[NodeId]) {
        self.steps += 1;
        for (tensor, stack) in self.held.remove(&self.steps).unwrap_or_default() {
            self.release(tensor, stack);
        }
        for _ in 0..REQUESTS_PER_STEP.min(stacks.len()) {
            let [first, second] = [self.random(), self.random()].map(|random| random as usize % stacks.len());
            let stack = stacks[first.min(second)];
            let bytes = 512 << (self.random() % 12);
            let most_steps = 1 << (self.random() % 13);
            let steps = 1 + self.random() % most_steps;
            let tensor = self.alloc(stack, bytes);
            self.held.entry(self.steps + steps).or_default().push((tensor, stack));
        }
    }

    /// Runs a step: forward, a hook that leaks, backward on autograd's thread, and the optimizer.
    fn step(&mut self, lines: &ModelLines) {
        self.serve(&lines.requests);
        let mut activations = Vec::new();
        for (layer, stacks) in lines.forward.iter().enumerate() {
            let bytes = 40_000 + layer as u64 * 1000;
            for (stack, part) in stacks.iter().zip(1..) {
                activations.push(self.alloc(*stack, bytes * part));
            }
            let workspace = self.alloc(stacks[0], 3 << 20);
            self.release(workspace, stacks[0]);
        }
        if self.leaks {
            self.alloc(lines.leak, 4000);
        }
        let loss = self.alloc(lines.loss, 4);
        self.thread = BACKWARD;
        for (layer, stacks) in lines.backward.iter().enumerate().rev() {
            for (part, stack) in stacks.iter().enumerate().rev() {
                let gradient = self.alloc(*stack, 40_000 + layer as u64 * 1000);
                self.release(activations[layer * 4 + part], *stack);
                self.release(gradient, *stack);
            }
        }
        self.thread = MAIN;
        self.release(loss, lines.loss);
        for stack in &lines.optimizer {
            for parameter in 0..15 {
                let temporary = self.alloc(*stack, 8192 + parameter * 4096);
                self.release(temporary, *stack);
            }
        }
    }
}

/// `job` is the rank and the number of ranks. Eight ranks are on one host.
fn meta(apis: &[&str], job: Option<(u64, u64)>) -> Meta {
    let mut meta = Meta::default();
    meta.set_text("trace_id", "ab".repeat(16));
    meta.set_number("pid", u64::from(MAIN));
    let host = job.map_or(7, |(rank, _)| rank / 8);
    meta.set_text("host", format!("node{host}"));
    if let Some((rank, world_size)) = job {
        meta.set_number("rank", rank);
        meta.set_number("world_size", world_size);
    }
    meta.set_list("command", vec!["python".to_owned(), "train.py".to_owned()]);
    meta.set_number("started_ns", STARTED_NS);
    meta.set_text("mode", "preload");
    meta.set_text("torch", "2.15.0");
    meta.set_text("python", "3.12.1");
    meta.set_list("apis", apis.iter().map(|api| (*api).to_owned()).collect());
    meta.set_number("device.0.total_bytes", 80 << 30);
    meta
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (events, path, stacks, job) = match arguments.as_slice() {
        [_, events, path] => (events, path, 0, None),
        [_, events, path, stacks] => (events, path, stacks.parse()?, None),
        [_, events, path, stacks, rank, world_size] => {
            (events, path, stacks.parse()?, Some((rank.parse()?, world_size.parse()?)))
        }
        _ => return Err("usage: synthesize EVENTS FILE [STACKS [RANK WORLD_SIZE]]".into()),
    };
    let min_events: u64 = events.replace('_', "").parse()?;
    let mut trace = TraceOutput::create(path)?;
    let (send, rounds) = sync_channel::<Vec<Event>>(16);
    let mut frames = Frames::default();
    let mut lines = add_model_lines(&mut frames);
    if stacks > 0 {
        lines.requests = add_request_lines(&mut frames, stacks);
    }
    let generator = std::thread::spawn(move || {
        let mut run = RankRun {
            round: Vec::with_capacity(ROUND_EVENTS),
            rounds: 0,
            send,
            seq: 0,
            time_ns: STARTED_NS,
            random: 0x9e37_79b9_7f4a_7c15,
            thread: MAIN,
            free: HashMap::new(),
            segment: (0x7f00_0000_0000, 0x7f00_0000_0000),
            allocated: 0,
            reserved: 0,
            steps: 0,
            leaks: job.is_none_or(|(rank, world_size)| rank == world_size / 2),
            held: BTreeMap::new(),
        };
        for parameter in 0..120 {
            run.alloc(lines.parameters, 100_000 + parameter * 3000);
        }
        while run.seq < min_events {
            run.step(&lines);
        }
        run.send_round();
        (run.seq, run.time_ns)
    });
    let Frames { codes, nodes } = &frames;
    trace.add(BlockKind::META, &meta(&["-", "cuMemAlloc_v2"], job).encode(), 0)?;
    trace.add(BlockKind::CODES, &definitions::encode_codes(codes), codes.len())?;
    trace.add(BlockKind::PY_NODES, &definitions::encode_py_nodes(nodes), nodes.len())?;
    trace.add(BlockKind::FRAME_LINKS, &definitions::encode_frame_links(nodes), nodes.len())?;
    for mut round in rounds {
        round.sort_by_key(|event| event.thread);
        for rows in round.chunks(ROWS_PER_BLOCK) {
            trace.add_events(rows)?;
        }
    }
    let (events, time_ns) = generator.join().map_err(|_| "the generator thread panicked")?;
    let end = End {
        reason: EndReason::Exit,
        events,
        time_ns,
        message: String::new(),
        counters: Counters::default(),
    };
    trace.finish(&end)?;
    Ok(())
}
