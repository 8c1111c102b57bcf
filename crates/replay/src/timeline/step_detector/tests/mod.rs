//! Programs in the abstract: which loops and optimizer calls count as steps, and how often.

use super::*;
use crate::callsite::code_origin::UserCodePaths;
use crate::ingest::definitions::Definitions;
use crate::report::StepSource;
use crate::timeline::steps::StepClock;
use crate::util::seeded_map::SeededMap;
use gpumemtrace_format::{CodeDef, CodeId, FrameLink, PyNode, ThreadId};

mod loops;
mod repeated_calls;

const OPTIMIZER: &str = "/v/lib/python3.12/site-packages/torch/optim/optimizer.py";
const AUTOGRAD: &str = "/v/lib/python3.12/site-packages/torch/autograd/__init__.py";

/// The events of a program.
#[derive(Default)]
struct Program {
    definitions: Definitions,
    /// By caller, function and instruction.
    nodes: SeededMap<(u32, String, i32), NodeId>,
    events: Vec<Event>,
    thread: u32,
    /// Allocations and frees are driver calls.
    is_async: bool,
}

impl Program {
    /// A call stack, outermost first: "main:5 Net.forward:9" is `main` at instruction 5, which
    /// calls `Net.forward`. `step`, `zero_grad`, `backward` and `_call_impl` are PyTorch's,
    /// `Handle._run` is asyncio's.
    fn node(&mut self, stack: &str) -> NodeId {
        let mut parent = NodeId::NONE;
        for frame in stack.split_whitespace() {
            let (name, offset) = frame.split_once(':').expect("function:instruction");
            let offset_bytes = offset.parse().expect("a number");
            let known = self.nodes.len() as u32 + 1;
            let key = (parent.0, name.to_owned(), offset_bytes);
            let id = *self.nodes.entry(key).or_insert(NodeId(known));
            if id.0 == known {
                let code = CodeId(1000 + known);
                let file = match name {
                    "step" | "zero_grad" => OPTIMIZER,
                    "backward" => AUTOGRAD,
                    "_call_impl" => "/venv/torch/nn/modules/module.py",
                    "Handle._run" => "/usr/lib/python3.12/asyncio/events.py",
                    _ => "train.py",
                };
                let (file, name) = (file.to_owned(), name.to_owned());
                self.definitions.codes.insert(code, CodeDef { id: code, file, name, ..CodeDef::default() });
                let node = PyNode { id, parent, code, offset_bytes, link: FrameLink::C };
                self.definitions.python.insert(id, node);
            }
            parent = id;
        }
        parent
    }

    fn event(&mut self, kinds: (EventKind, EventKind), stack: &str, size: u64) {
        let kind = if self.is_async { kinds.1 } else { kinds.0 };
        let (python_stack, seq) = (self.node(stack), self.events.len() as u64);
        let thread = ThreadId(self.thread);
        self.events.push(Event { seq, thread, size, python_stack, ..Event::new(kind) });
    }

    fn alloc(&mut self, stack: &str, size: u64) {
        self.event((EventKind::BLOCK_ALLOC, EventKind::ASYNC_ALLOC), stack, size);
    }

    fn free(&mut self, stack: &str) {
        self.event((EventKind::BLOCK_FREE, EventKind::ASYNC_FREE), stack, 1);
    }

    /// One forward and backward pass in `main`, from `at` on.
    fn forward_backward(&mut self, at: i32) {
        self.alloc(&format!("main:{at} Net.forward:2"), 100);
        self.alloc(&format!("main:{at} Net.forward:8"), 200);
        self.alloc(&format!("main:{} backward:4", at + 4), 1);
        self.free(&format!("main:{} backward:9", at + 4));
    }

    /// The source and number of steps.
    fn steps(self) -> (Option<StepSource>, u32) {
        let (rule, steps) = self.run();
        (rule.source(), steps)
    }

    fn run(self) -> (StepRule, u32) {
        let mut symbols = StackSymbols::new(self.definitions, UserCodePaths::default());
        let mut detector = StepDetector::new(&symbols);
        for event in &self.events {
            let stack = symbols.stack(event.python_stack, event.native_stack);
            let info = symbols.stack_info(stack);
            let one = ResolvedEvent { event, stack, info, hint: info.step_hint };
            let _ = detector.on_event(one, &mut symbols);
        }
        let rule = detector.step_rule(&symbols);
        symbols.set_step_hints(rule.recurring_stacks(), detector.other_phases(rule));
        let mut clock = StepClock::new(rule);
        let mut steps = 0;
        for event in &self.events {
            let stack = symbols.stack(event.python_stack, event.native_stack);
            let hint = symbols.stack_info(stack).step_hint;
            steps += u32::from(clock.begins_step(event, stack, hint));
        }
        (rule, steps)
    }
}

fn optimizer(steps: u32) -> (Option<StepSource>, u32) {
    (Some(StepSource::Optimizer), steps)
}

fn period(steps: u32) -> (Option<StepSource>, u32) {
    (Some(StepSource::Period), steps)
}

/// A number that looks random.
fn scatter(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

#[test]
fn events_of_other_threads_do_not_split_a_step() {
    let mut program = Program::default();
    for _ in 0..10 {
        for (thread, stack) in
            [(1, "main:1"), (2, "load:1"), (1, "main:8 step:1"), (2, "load:1"), (1, "main:8 step:3")]
        {
            program.thread = thread;
            program.alloc(stack, 8);
        }
    }
    assert_eq!(program.steps(), optimizer(10));
}

#[test]
fn zero_grad_counts_steps_of_an_optimizer_that_allocates_once() {
    for is_at_top in [false, true] {
        let mut program = Program::default();
        for step in 0..20 {
            if is_at_top && step > 0 {
                program.free("main:10 zero_grad:4");
            }
            program.forward_backward(20);
            if step == 0 {
                program.alloc("main:30 step:8", 64);
            }
            if !is_at_top {
                program.free("main:40 zero_grad:4");
            }
        }
        assert_eq!(program.steps(), optimizer(20), "at top: {is_at_top}");
    }
}

#[test]
fn first_zero_grad_is_inferred_from_the_order_of_calls_in_the_code() {
    // zero_grad in a function of its own, every fourth batch, and with other code before the loop.
    let mut program = Program::default();
    program.alloc("main:2 load:1", 9);
    for batch in 0..80 {
        if batch % 4 == 0 && batch > 0 {
            program.free("main:10 begin_batch:6 zero_grad:4");
        }
        program.forward_backward(20);
    }
    assert_eq!(program.steps(), optimizer(20));
    // The last micro-batch of four calls it, and events follow in the code.
    let mut program = Program::default();
    for batch in 0..80 {
        program.forward_backward(20);
        if batch % 4 == 3 {
            program.free("main:30 zero_grad:4");
        }
        program.alloc("main:40", 4);
    }
    assert_eq!(program.steps(), optimizer(20));
}

#[test]
fn optimizers_of_phases_that_follow_each_other_count_together() {
    let run = |interleaved: bool| {
        let mut program = Program::default();
        for step in 0..40 {
            let of_second = if interleaved { step % 3 == 0 } else { step >= 25 };
            let call = if of_second { "main:9 finetune:30 step:8" } else { "main:5 pretrain:30 step:8" };
            program.forward_backward(20);
            program.alloc(call, 64);
            program.free(call);
        }
        program.steps()
    };
    assert_eq!(run(false), optimizer(40));
    assert_eq!(run(true), optimizer(26), "two optimizers of one loop");
}

#[test]
fn inferred_first_call_begins_a_step_at_the_first_event_past_it() {
    let mut program = Program::default();
    program.alloc("main:2 load:1", 9);
    for step in 0..5 {
        if step > 0 {
            program.free("main:10 zero_grad:4");
        }
        program.forward_backward(20);
    }
    let (rule, _) = program.run();
    let StepRule::Optimizer { unseen_call, .. } = rule else { panic!("{rule:?}") };
    assert_eq!(unseen_call, Some(1));
}

#[test]
fn driver_calls_show_the_optimizer_of_a_backend_without_blocks() {
    for is_async in [false, true] {
        let mut program = Program { is_async, ..Program::default() };
        for _ in 0..20 {
            program.forward_backward(20);
            program.alloc("main:30 step:8", 64);
            program.alloc("main:30 step:9", 64);
            program.free("main:40 zero_grad:4");
        }
        assert_eq!(program.steps(), optimizer(20), "async: {is_async}");
    }
}

#[test]
fn driver_calls_beside_blocks_are_not_counted_twice() {
    let mut program = Program::default();
    for step in 0..20 {
        program.forward_backward(20);
        program.alloc("main:30 step:8", 64);
        // Another library in the optimizer's place, and a segment of PyTorch's allocator.
        program.is_async = true;
        program.alloc("main:35", 64);
        program.alloc("main:30 step:8", 64);
        program.is_async = false;
        if step % 2 == 0 {
            program.alloc("main:30 step:9", 64);
        }
    }
    assert_eq!(program.steps(), optimizer(20));
}

#[test]
fn intervals_of_a_run_without_steps_depend_on_allocations_alone() {
    for (allocations, intervals) in [(10u64, 10), (64, 64), (640, 64), (700, 70), (200_000, 196)] {
        let mut program = Program::default();
        (0..allocations).for_each(|index| program.alloc("main:4", scatter(index)));
        for _ in 0..1000 {
            program.free("main:9");
        }
        let (source, boundaries) = program.steps();
        assert_eq!((source, boundaries + 1), (None, intervals), "{allocations} allocations");
    }
}

/// A program without Python: `tokens` are an allocated stack and size, or 0 for a free.
fn native_steps(tokens: impl Iterator<Item = (u32, u64)>) -> (Option<StepSource>, u32) {
    let mut program = Program::default();
    for (stack, size) in tokens {
        let kind = if size == 0 { EventKind::DEVICE_FREE } else { EventKind::DEVICE_ALLOC };
        let seq = program.events.len() as u64;
        program.events.push(Event { seq, size, native_stack: NodeId(stack), ..Event::new(kind) });
    }
    program.steps()
}

#[test]
fn native_program_has_the_longest_exact_period() {
    let setup = [(1, 3), (1, 5)].into_iter();
    let iteration = [(1, 100), (2, 7), (2, 7), (2, 7), (1, 0)];
    let run = setup.chain(iteration.into_iter().cycle().take(100));
    assert_eq!(native_steps(run), period(20));
}

#[test]
fn native_program_without_a_regular_allocation_has_no_steps() {
    assert_eq!(native_steps((0..200).map(|index| (1, 1 + scatter(index) % 7))).0, None);
    assert_eq!(native_steps((0..100).map(|_| (1, 8))).0, None, "a list of buffers");
    let burst = (0..300).map(|index| (if (50..130).contains(&index) { 2 } else { 1 }, 1 + index));
    assert_eq!(native_steps(burst.map(|(stack, size)| (stack, if stack == 2 { 4 } else { size }))).0, None);
}

#[test]
fn blocks_without_stacks_begin_no_step() {
    let kinds = [EventKind::DEVICE_ALLOC, EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE];
    let mut program = Program::default();
    for kind in kinds.into_iter().cycle().take(60) {
        let seq = program.events.len() as u64;
        program.events.push(Event { seq, size: 20 << 20, ..Event::new(kind) });
    }
    assert_eq!(program.steps().0, None, "layers of a model repeat like iterations");
}
