use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

use super::super::fake_words::FakeWords;
use super::super::rule::UnwindMethod;
use super::*;

#[allow(clippy::unnecessary_box_returns, reason = "too large for the stack of a debug build")]
fn empty<T>() -> Box<T> {
    // SAFETY: for the types below zero bytes are the documented empty state, and the layout is
    // their own.
    unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<T>()).cast()) }
}

const TOP: usize = 0x10_0000;

/// A stack that is built frame by frame, outermost first. Each frame runs one of a few functions.
#[derive(Clone, Debug, Default)]
struct FakeProgram {
    words: FakeWords,
    /// The registers inside each frame. The first frame is the start of the thread.
    frames: Vec<UnwindFrame>,
}

/// The functions: the words of the frame, and the use of the frame pointer.
const FUNCTIONS: [FunctionShape; 6] = [
    FunctionShape::Plain(1),
    FunctionShape::Plain(4),
    FunctionShape::Saves(3),
    FunctionShape::Uses(2),
    FunctionShape::Uses(5),
    FunctionShape::Aligns(2),
];

#[derive(Clone, Copy, Debug)]
enum FunctionShape {
    /// Does not touch the frame pointer.
    Plain(usize),
    /// Saves the frame pointer and uses the register for another value.
    Saves(usize),
    /// Is unwound with the frame pointer.
    Uses(usize),
    /// Is unwound with a word below the frame pointer.
    Aligns(usize),
}

/// A return address encodes the function and a line in it.
fn pc_in(function: usize, line: usize) -> usize {
    0x40_0000 + function * 0x100 + line * 8
}

fn rule_of(pc: usize) -> Option<UnwindRule> {
    let function = (pc.checked_sub(0x40_0000)?) / 0x100;
    if function == FUNCTIONS.len() {
        return Some(UnwindRule::OUTERMOST);
    }
    let rule = UnwindRule { ra_at: -8, ..UnwindRule::default() };
    Some(match *FUNCTIONS.get(function)? {
        FunctionShape::Plain(words) => {
            UnwindRule { method: UnwindMethod::FromSp, offset: words as i32 * 8 + 8, ..rule }
        }
        FunctionShape::Saves(words) => {
            let (offset, flags) = (words as i32 * 8 + 16, UnwindRule::SAVES_FP);
            UnwindRule { method: UnwindMethod::FromSp, offset, flags, fp_at: -16, ..rule }
        }
        FunctionShape::Uses(_) => UnwindRule {
            method: UnwindMethod::FromFp,
            offset: 16,
            flags: UnwindRule::SAVES_FP,
            fp_at: -16,
            ..rule
        },
        FunctionShape::Aligns(_) => {
            let flags = UnwindRule::SAVES_FP | UnwindRule::FP_FROM_BASE;
            UnwindRule { method: UnwindMethod::DerefFp, offset: -8, flags, ..rule }
        }
    })
}

impl FakeProgram {
    fn new() -> Self {
        let frame = UnwindFrame { pc: pc_in(FUNCTIONS.len(), 1), sp: TOP, fp: 0, is_interrupted: false };
        Self { words: FakeWords::default(), frames: vec![frame] }
    }

    /// Makes the innermost frame call a function.
    fn call(&mut self, function: usize, line: usize) {
        let caller = *self.frames.last().unwrap();
        let words = &mut self.words.words;
        words.insert(caller.sp - 8, caller.pc);
        let mut put = |at: usize, word: usize| words.insert(at, word);
        let (sp, fp) = match FUNCTIONS[function] {
            FunctionShape::Plain(words) => (caller.sp - 8 - words * 8, caller.fp),
            FunctionShape::Saves(words) => {
                put(caller.sp - 16, caller.fp);
                (caller.sp - 16 - words * 8, 0xdead + line)
            }
            FunctionShape::Uses(words) => {
                put(caller.sp - 16, caller.fp);
                (caller.sp - 16 - words * 8, caller.sp - 16)
            }
            FunctionShape::Aligns(words) => {
                let fp = (caller.sp - 16) & !31;
                put(fp, caller.fp);
                put(fp - 8, caller.sp);
                (fp - 8 - words * 8, fp)
            }
        };
        self.frames.push(UnwindFrame { pc: pc_in(function, line), sp, fp, is_interrupted: false });
    }

    fn leave(&mut self, frames: usize) {
        let left = self.frames.len().saturating_sub(frames).max(1);
        self.frames.truncate(left);
    }

    /// The return addresses, innermost first.
    fn expected(&self) -> Vec<usize> {
        self.frames.iter().rev().skip(1).map(|frame| frame.pc).take(MAX_DEPTH).collect()
    }
}

struct StackTester {
    memo: Box<NativeStackMemo>,
    rules: Box<RuleCache>,
    nodes: HashMap<NodeId, (NodeId, usize)>,
}

impl StackTester {
    fn new() -> Self {
        Self { memo: empty(), rules: empty(), nodes: HashMap::new() }
    }

    /// Captures the stack; also returns whether it was truncated.
    fn capture(&mut self, program: &FakeProgram, generation: u32) -> (Vec<usize>, bool) {
        let here = program.frames.last().unwrap();
        let Self { memo, rules, nodes } = self;
        let memory = &program.words;
        let (node, is_truncated) = memo.node_if_unchanged(memory, here, generation).unwrap_or_else(|| {
            let change = memo.walk((memory, memory), rules, here, generation, |pc, _| rule_of(pc)).unwrap();
            let mut next = nodes.len() as u32;
            let node = memo.apply(&change, |parent, frame| {
                next += 1;
                nodes.insert(NodeId(next), (parent, frame.instr));
                Some(NodeId(next))
            });
            (node, change.is_truncated)
        });
        let mut found = Vec::new();
        let mut at = node;
        while at != NodeId::NONE {
            let (parent, pc) = self.nodes[&at];
            found.push(pc);
            at = parent;
        }
        (found, is_truncated)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn stack_is_found_after_any_calls_and_returns(
        turns in vec((0usize..6, vec((0usize..FUNCTIONS.len(), 0usize..2), 0..6), 1u32..20), 1..60)
    ) {
        let (mut program, mut tester) = (FakeProgram::new(), StackTester::new());
        for (leaves, calls, generation) in turns {
            program.leave(leaves);
            for (function, line) in calls {
                program.call(function, line);
            }
            let (found, is_truncated) = tester.capture(&program, if generation == 1 { 1 } else { 2 });
            prop_assert_eq!(found, program.expected());
            prop_assert!(!is_truncated);
        }
    }

    #[test]
    fn deep_stack_is_found_or_truncated(turns in vec((0usize..200, 0usize..200, 0usize..FUNCTIONS.len()), 1..30)) {
        let (mut program, mut tester) = (FakeProgram::new(), StackTester::new());
        for (leaves, calls, function) in turns {
            program.leave(leaves);
            for _ in 0..calls.min(420 - program.frames.len().min(420)) {
                program.call(function, 0);
            }
            let (found, is_truncated) = tester.capture(&program, 1);
            let expected = program.expected();
            if is_truncated {
                prop_assert!(expected.starts_with(&found));
                prop_assert!(program.frames.len() > MAX_DEPTH || found.len() > 64);
            } else {
                prop_assert_eq!(found, expected);
            }
        }
    }
}

/// A stack with twenty frames of all shapes.
fn twenty() -> FakeProgram {
    let mut program = FakeProgram::new();
    for at in 0..20 {
        program.call(at % FUNCTIONS.len(), 0);
    }
    program
}

#[test]
fn unchanged_frames_are_neither_walked_nor_defined_again() {
    let (mut program, mut tester) = (twenty(), StackTester::new());
    tester.capture(&program, 1);
    let defined = tester.nodes.len();
    let here = *program.frames.last().unwrap();
    assert!(tester.memo.node_if_unchanged(&program.words, &here, 1).is_some());
    assert!(tester.memo.node_if_unchanged(&program.words, &here, 2).is_none(), "a module was unloaded");
    program.leave(2);
    program.call(1, 1);
    let here = *program.frames.last().unwrap();
    let StackTester { memo, rules, .. } = &mut tester;
    let memory = &program.words;
    let change = memo.walk((memory, memory), rules, &here, 1, |pc, _| rule_of(pc)).unwrap();
    assert!(change.fresh <= 2 && change.valid >= 17, "{change:?}");
    tester.capture(&program, 1);
    assert!(tester.nodes.len() <= defined + 1);
}

#[test]
fn change_of_any_word_is_noticed() {
    let (mut program, mut tester) = (twenty(), StackTester::new());
    tester.capture(&program, 1);
    let here = *program.frames.last().unwrap();
    let words: Vec<CheckedWords> = tester.memo.words[..tester.memo.len].to_vec();
    assert!(words.len() > 20, "frames and further words");
    for at in words.iter().flat_map(|words| words.addresses) {
        let before = program.words.words[&at];
        program.words.words.insert(at, before ^ 8);
        assert_eq!(tester.memo.node_if_unchanged(&program.words, &here, 1), None, "{at:#x}");
        program.words.words.insert(at, before);
        assert!(tester.memo.node_if_unchanged(&program.words, &here, 1).is_some());
    }
}

/// Frames that only save the frame pointer. Its value differs from capture to capture.
#[test]
fn frame_pointer_that_no_frame_needs_may_change() {
    let save = (0..FUNCTIONS.len()).find(|at| matches!(FUNCTIONS[*at], FunctionShape::Saves(_))).unwrap();
    let uses = (0..FUNCTIONS.len()).find(|at| matches!(FUNCTIONS[*at], FunctionShape::Uses(_))).unwrap();
    for (functions, is_needed) in [([save, 0, save], false), ([uses, 0, save], true)] {
        let (mut program, mut tester) = (FakeProgram::new(), StackTester::new());
        for function in functions {
            program.call(function, 0);
        }
        tester.capture(&program, 1);
        let defined = tester.nodes.len();
        let here = *program.frames.last().unwrap();
        // The innermost function saved the frame pointer of its caller, next to its return address.
        let saved_at = program.frames[2].sp - 16;
        *program.words.words.get_mut(&saved_at).unwrap() ^= 0x7ff0;
        let is_same = tester.memo.node_if_unchanged(&program.words, &here, 1).is_some();
        assert_eq!(is_same, !is_needed, "{functions:?}");
        if !is_needed {
            // A walk that comes from another frame stops at the same entry.
            program.leave(1);
            program.call(save, 1);
            assert_eq!(tester.capture(&program, 1), (program.expected(), false));
            assert!(tester.nodes.len() <= defined + 1);
        }
    }
}

#[test]
fn stack_with_an_invalid_frame_is_truncated_there() {
    let (mut program, mut tester) = (twenty(), StackTester::new());
    // The return address of the tenth frame from outside cannot be read.
    let at = program.frames[10].sp - 8;
    program.words.words.remove(&at);
    let (found, is_truncated) = tester.capture(&program, 1);
    assert!(is_truncated && program.expected().starts_with(&found) && found.len() == 9, "{}", found.len());
    // A second capture gives the same stack, still truncated.
    assert_eq!(tester.capture(&program, 1), (found, true));
}

#[test]
fn null_return_address_ends_the_stack() {
    let (mut program, mut tester) = (FakeProgram::new(), StackTester::new());
    program.frames[0].pc = 0;
    for _ in 0..3 {
        program.call(0, 0);
    }
    for _ in 0..2 {
        let (found, is_truncated) = tester.capture(&program, 1);
        assert_eq!((found, is_truncated), (vec![pc_in(0, 0); 2], false));
    }
}

#[test]
fn stack_with_unknown_code_is_truncated() {
    let mut program = FakeProgram::new();
    program.frames[0].pc = 0x99;
    program.call(0, 0);
    let mut tester = StackTester::new();
    let here = *program.frames.last().unwrap();
    let memory = &program.words;
    let change = tester.memo.walk((memory, memory), &mut tester.rules, &here, 1, |pc, _| rule_of(pc));
    assert!(change.unwrap().is_truncated);
}

#[test]
fn failed_definition_truncates_the_stack_and_is_retried() {
    let (program, mut tester) = (twenty(), StackTester::new());
    let here = *program.frames.last().unwrap();
    let StackTester { memo, rules, .. } = &mut tester;
    let memory = &program.words;
    let change = memo.walk((memory, memory), rules, &here, 1, |pc, _| rule_of(pc)).unwrap();
    let mut defined = 0;
    let node = memo.apply(&change, |_, _| {
        defined += 1;
        (defined <= 5).then_some(NodeId(defined))
    });
    assert_eq!(node, NodeId(5));
    assert_eq!(memo.node_if_unchanged(memory, &here, 1), None);
    let change = memo.walk((memory, memory), rules, &here, 1, |pc, _| rule_of(pc)).unwrap();
    assert!(change.valid >= 5, "the part that has nodes is found again");
}
