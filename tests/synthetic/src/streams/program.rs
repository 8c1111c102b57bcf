//! A running program: its loop, its frames, and the parts that it executes in each step.

use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{EventKind, ModuleDef, NativeNode, NodeId, definitions};

use super::plan::{Ending, StepsBy, StreamPlan};
use crate::dice::Dice;
use crate::{Packed, Synthetic, TORCH};

/// Threads: the main thread, autograd's, and a data loader's.
const THREADS: [u32; 3] = [77, 78, 79];
/// Lowest address of the segments of the side stream.
const SIDE_STREAM_ADDR: u64 = 0x4000_0000_0000;
const SIDE_STREAM: u64 = 7;
/// Load address of PyTorch's allocator, and of a library that calls the driver itself.
const LIBRARIES: [(u64, &str); 2] =
    [(0x7000_0000_0000, "/env/lib/libc10_cuda.so"), (0x7100_0000_0000, "/env/lib/libfastops.so")];

/// A part of a program. It runs once in each step.
pub type Part = Box<dyn FnMut(&mut Program)>;

/// A part, and where it runs.
struct PlacedPart {
    part: Part,
    thread: u32,
    is_on_side_stream: bool,
}

/// Frames that the parts share.
#[derive(Clone, Copy)]
pub struct Frames {
    /// The line of the main module that calls `train()`.
    pub main: NodeId,
    /// A line of `train()`.
    pub train: NodeId,
    /// A line of `evaluate()`.
    pub evaluate: NodeId,
    /// PyTorch's optimizer, called by the main module.
    pub adam: NodeId,
}

pub struct Program {
    pub run: Synthetic,
    pub dice: Dice,
    /// The current step, from 0.
    pub step: u64,
    pub plan: StreamPlan,
    pub frames: Frames,
    parts: Vec<PlacedPart>,
    /// The allocator of the stream that is not current.
    other_stream: Packed,
    /// Live driver allocations of this program's own: address and whether in host memory.
    own_driver_calls: u64,
    lines: i32,
}

impl Program {
    pub fn new(plan: StreamPlan, seed: u64) -> Self {
        let mut run = Synthetic::new();
        run.packed = Some(Packed::default());
        run.stream = plan.has_tracker.then_some(0);
        run.meta.set_number("device.0.total_bytes", plan.device_bytes);
        let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let train = run.frame(main, "/work/train.py", "train", 40);
        let evaluate = run.frame(main, "/work/train.py", "evaluate", 60);
        let wrapper = "Optimizer.profile_hook_step.<locals>.wrapper";
        let wrapper = run.frame(main, &format!("{TORCH}optim/optimizer.py"), wrapper, 50);
        let adam = run.frame(wrapper, &format!("{TORCH}optim/adam.py"), "Adam.step", 60);
        let mut program = Self {
            run,
            dice: Dice::new(seed),
            step: 0,
            plan,
            frames: Frames { main, train, evaluate, adam },
            parts: Vec::new(),
            other_stream: Packed::above(SIDE_STREAM_ADDR),
            own_driver_calls: 0,
            lines: 0,
        };
        if plan.has_native_stacks {
            program.define_libraries();
        }
        program
    }

    fn define_libraries(&mut self) {
        let nodes = [1, 2].map(|id| NativeNode {
            id: NodeId(id),
            parent: NodeId::NONE,
            return_address: LIBRARIES[id as usize - 1].0 + 0x101,
        });
        let modules = LIBRARIES.map(|(start, path)| ModuleDef {
            load_bias: start,
            start,
            end: start + 0x1000,
            path: path.to_owned(),
            build_id: vec![1; 20],
        });
        let more = &mut self.run.more_blocks;
        more.extend(encode_block(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(&nodes), 3));
        more.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&modules), 3));
        self.run.allocator_native = NodeId(1);
    }

    /// Adds a new line of a file of the program.
    pub fn line(&mut self, under: NodeId, file: &str) -> NodeId {
        self.lines += 1;
        self.run.frame(under, &format!("/work/{file}.py"), file, 100 + self.lines % 800)
    }

    /// Adds a frame of PyTorch's below `caller`.
    pub fn library_frame(&mut self, caller: NodeId, line: i32) -> NodeId {
        self.run.frame(caller, &format!("{TORCH}nn/functional.py"), "function", line)
    }

    /// Adds a part. It runs after those that are there.
    pub fn add_part(&mut self, part: Part, dice: &mut Dice) {
        let thread = if dice.one_in(4) { dice.pick(&THREADS) } else { THREADS[0] };
        let is_on_side_stream = self.plan.has_tracker && dice.one_in(6);
        self.parts.push(PlacedPart { part, thread, is_on_side_stream });
    }

    /// Adds a part that runs on the main thread and the main stream.
    pub fn add_main_part(&mut self, part: Part) {
        self.parts.push(PlacedPart { part, thread: THREADS[0], is_on_side_stream: false });
    }

    /// Allocates driver memory, or pinned host memory, outside of PyTorch.
    pub fn call_driver(&mut self, kind: EventKind, bytes: u64, stack: NodeId) -> u64 {
        self.own_driver_calls += 1;
        let addr = 0x6000_0000_0000 + self.own_driver_calls * (1 << 30);
        self.run.event(kind, addr, bytes, [0; 2], stack);
        self.set_native_stack();
        if kind == EventKind::DEVICE_ALLOC {
            self.run.other_driver_bytes += bytes;
        }
        addr
    }

    /// Frees memory of [`Program::call_driver`].
    pub fn free_driver(&mut self, (addr, bytes): (u64, u64), kind: EventKind, stack: NodeId) {
        self.run.event(kind, addr, 0, [0; 2], stack);
        self.set_native_stack();
        if kind == EventKind::DEVICE_FREE {
            self.run.other_driver_bytes -= bytes;
        }
    }

    fn set_native_stack(&mut self) {
        if self.plan.has_native_stacks {
            self.run.events.last_mut().expect("an event").native_stack = NodeId(2);
        }
    }

    fn switch_stream(&mut self) {
        let current = self.run.packed.replace(std::mem::take(&mut self.other_stream)).expect("an allocator");
        self.other_stream = current;
        let is_side = self.run.stream == Some(SIDE_STREAM);
        self.run.stream = Some(if is_side { 0 } else { SIDE_STREAM });
    }

    fn run_part(&mut self, placed: &mut PlacedPart) {
        self.run.thread = placed.thread;
        if placed.is_on_side_stream {
            self.switch_stream();
        }
        (placed.part)(self);
        if placed.is_on_side_stream {
            self.switch_stream();
        }
        self.run.thread = THREADS[0];
    }

    /// Runs all steps, or until the device is full. Calls `at_step_end` after each step.
    pub fn run_to_end(&mut self, mut at_step_end: impl FnMut(&mut Synthetic)) {
        let input = self.line(self.frames.train, "input");
        let handlers: Vec<NodeId> = (0..5).map(|_| self.line(self.frames.train, "handle")).collect();
        let mut parts = std::mem::take(&mut self.parts);
        let steps = self.plan.steps;
        for step in 0..steps {
            self.step = step;
            let slowness = if self.dice.one_in(40) { 20 } else { 1 };
            self.run.time_ns += self.plan.step_ns * self.dice.within(2, 5) / 2 * slowness;
            let is_cut_off = step + 1 == steps && self.plan.ending == Ending::Killed;
            let parts_to_run =
                if is_cut_off { self.dice.below(parts.len() as u64) as usize } else { parts.len() };
            if self.plan.steps_by == StepsBy::Marks {
                self.run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], self.frames.train);
            }
            let batch = self.run.alloc(input, 1 << 16);
            if self.plan.steps_by == StepsBy::Requests {
                self.handle_request(&handlers);
            }
            for placed in &mut parts[..parts_to_run] {
                self.run_part(placed);
            }
            if is_cut_off {
                break;
            }
            self.run.release(batch, input);
            if self.plan.steps_by == StepsBy::Optimizer {
                let temporary = self.run.alloc(self.frames.adam, 8192);
                self.run.release(temporary, self.frames.adam);
            }
            at_step_end(&mut self.run);
            if self.run.is_full() {
                return;
            }
        }
        if self.plan.ending == Ending::Teardown {
            self.tear_down();
        }
    }

    /// Another number of allocations for each request, so that none recurs after a constant number.
    fn handle_request(&mut self, handlers: &[NodeId]) {
        for _ in 0..self.dice.within(1, 16) {
            let line = self.dice.pick(handlers);
            let bytes = 512 * self.dice.within(1, 4000);
            let block = self.run.alloc(line, bytes);
            self.run.release(block, line);
        }
    }

    /// Frees all blocks, as the interpreter does at its end.
    fn tear_down(&mut self) {
        let of_side_stream = self.run.release_all_below(SIDE_STREAM_ADDR);
        if of_side_stream > 0 {
            self.switch_stream();
            self.run.release_all();
        }
    }
}
