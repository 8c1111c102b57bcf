//! Checks the memo against a complete walk, whatever happens to the frames in between.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::fake_interpreter::{CODE_TYPE, FakeInterpreter, STRINGS, TSTATE, python};
use super::super::walk::walk;
use super::*;

fn empty() -> Box<PythonStackMemo> {
    let layout = std::alloc::Layout::new::<PythonStackMemo>();
    // SAFETY: zero bytes are the documented empty state, and the memory is as large as the value.
    unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
}

/// A thread that calls and returns, with the memo that follows it.
struct FakeThread {
    fake: FakeInterpreter,
    layout: PythonLayout,
    memo: Box<PythonStackMemo>,
    defined: HashMap<NodeId, (NodeId, FrameKey)>,
    /// Addresses of the frames, outermost first.
    frames: Vec<usize>,
}

const CODES: usize = 6;
/// The address of a frame. Addresses are reused, as on CPython's own frame stack.
fn frame_at(depth: usize) -> usize {
    0x20_0000 + depth * 0x100
}

impl FakeThread {
    fn new(version: u16) -> Self {
        let (mut fake, layout) = python(version, 1);
        // One more code object, which only entries from C run.
        for code in 0..=CODES {
            fake.put_code(&layout, code_at(code), code);
            if let Some(serial) = layout.code.serial {
                fake.put(code_at(code) + serial, 0x50 + code);
            }
        }
        let mut thread = Self { fake, layout, memo: empty(), defined: HashMap::new(), frames: Vec::new() };
        thread.link();
        thread
    }

    fn link(&mut self) {
        let innermost = self.frames.last().copied().unwrap_or(0);
        match self.layout.cframe_frame {
            Some(inner) => self.fake.put(0x1_8000 + inner, innermost),
            None => self.fake.put(TSTATE + self.layout.tstate_frame, innermost),
        }
    }

    fn push(&mut self, place: usize, code: usize, instr: usize, from_c: bool) {
        let caller = self.frames.last().copied().unwrap_or(0);
        let frame = frame_at(2 * self.frames.len() + place);
        let code = if from_c { CODES } else { code };
        self.fake.put_frame(&self.layout, frame);
        self.fake.put(frame + self.layout.frame_previous, caller);
        self.fake.put(frame + self.layout.frame_code, code_at(code));
        self.fake.put_instruction(&self.layout, frame, code_at(code), instr);
        if self.layout.code.first_traceable.is_some() {
            self.fake.0.insert(frame + self.layout.frame_owner, if from_c { 3 } else { 0 });
        }
        self.frames.push(frame);
        self.link();
    }

    fn pop(&mut self) {
        if let Some(frame) = self.frames.pop() {
            // The memory of a returned frame may be unmapped, so reading it must fail.
            for byte in frame..frame + 0x100 {
                self.fake.0.remove(&byte);
            }
        }
        self.link();
    }

    fn advance(&mut self, back: usize, instr: usize) {
        let Some(at) = self.frames.len().checked_sub(back + 1) else { return };
        let frame = self.frames[at];
        let code = self.fake.word(frame + self.layout.frame_code).unwrap();
        self.fake.put_instruction(&self.layout, frame, code, instr);
    }

    /// Another code object at the address of an old one.
    fn replace_code(&mut self, code: usize, mark: usize) {
        let at = code_at(code);
        match self.layout.code.serial {
            Some(serial) => self.fake.put(at + serial, mark + 1),
            None => self.fake.put_string(&self.layout, STRINGS + code * 0x100, &format!("replaced_{mark}")),
        }
    }

    fn find_change(&mut self) -> PythonStackChange {
        self.memo.find_change(&self.fake, &self.layout, TSTATE, CODE_TYPE).unwrap()
    }

    /// The stack according to the memo, innermost first.
    fn apply(&mut self, change: PythonStackChange) -> Vec<FrameKey> {
        let defined = &mut self.defined;
        let mut node = self.memo.apply(change, |parent, key| {
            let id = NodeId(defined.len() as u32 + 1);
            defined.insert(id, (parent, *key));
            Some(id)
        });
        let mut stack = Vec::new();
        while node != NodeId::NONE {
            let (parent, key) = self.defined[&node];
            stack.push(key);
            node = parent;
        }
        stack
    }

    fn check(&mut self) {
        let mut frames = [FrameKey::default(); MAX_DEPTH];
        let whole = walk(&self.fake, &self.layout, TSTATE, CODE_TYPE, &mut frames).unwrap();
        let change = self.find_change();
        assert_eq!(self.apply(change), frames[..whole.depth]);
    }
}

fn code_at(code: usize) -> usize {
    0x500_0000 + code * 0x400
}

#[derive(Clone, Debug)]
enum StackAction {
    Push(usize, usize, usize, bool),
    Pop(usize),
    Advance(usize, usize),
    Replace(usize, usize),
    Capture,
}

fn act() -> impl Strategy<Value = StackAction> {
    prop_oneof![
        4 => (0..2usize, 0..CODES, 0..4usize, prop::bool::weighted(0.1)).prop_map(|(p, c, i, s)| StackAction::Push(p, c, i, s)),
        2 => (1..6usize).prop_map(StackAction::Pop),
        3 => (0..12usize, 0..4usize).prop_map(|(b, i)| StackAction::Advance(b, i)),
        1 => (0..CODES, 0..3usize).prop_map(|(c, m)| StackAction::Replace(c, m)),
        4 => Just(StackAction::Capture),
    ]
}

proptest! {
    #[test]
    fn memo_finds_the_stack_that_a_complete_walk_finds(acts in prop::collection::vec(act(), 1..120), version in 0x030au16..=0x030e) {
        let mut thread = FakeThread::new(version);
        let has_entries_from_c = thread.layout.owner_without_code.is_some();
        for act in acts {
            match act {
                StackAction::Push(place, code, instr, from_c) => thread.push(place, code, instr, from_c && has_entries_from_c),
                StackAction::Pop(count) => (0..count).for_each(|_| thread.pop()),
                StackAction::Advance(back, instr) => thread.advance(back, instr),
                StackAction::Replace(code, mark) => thread.replace_code(code, mark),
                StackAction::Capture => thread.check(),
            }
        }
        thread.check();
    }
}

#[test]
fn unchanged_frames_are_not_read_again() {
    let mut thread = FakeThread::new(0x030c);
    for depth in 0..40 {
        thread.push(0, depth % CODES, depth % 3, false);
    }
    thread.check();
    let capture = |thread: &mut FakeThread| {
        let change = thread.find_change();
        thread.apply(change);
        change
    };
    assert_eq!(capture(&mut thread), PythonStackChange { valid: 40, ..PythonStackChange::EMPTY });
    thread.advance(0, 3);
    assert_eq!(capture(&mut thread), PythonStackChange { valid: 39, reread: 1, ..PythonStackChange::EMPTY });
    thread.advance(0, 2);
    thread.push(0, 1, 1, false);
    assert_eq!(
        capture(&mut thread),
        PythonStackChange { valid: 39, reread: 1, fresh: 1, ..PythonStackChange::EMPTY },
        "a call from another line"
    );
    thread.check();
    for _ in 0..3 {
        thread.pop();
    }
    assert_eq!(capture(&mut thread), PythonStackChange { valid: 38, ..PythonStackChange::EMPTY });
}

#[test]
fn change_that_was_not_applied_is_found_again() {
    let mut thread = FakeThread::new(0x030c);
    for depth in 0..9 {
        thread.push(0, depth % CODES, depth % 3, false);
    }
    thread.check();
    thread.advance(3, 3);
    thread.find_change();
    thread.check();
}

#[test]
fn stack_too_deep_for_the_memo_is_truncated_like_a_walk() {
    let mut thread = FakeThread::new(0x030b);
    for depth in 0..MAX_DEPTH + 10 {
        thread.push(0, depth % CODES, depth % 3, false);
        if depth > MAX_DEPTH - 5 {
            thread.check();
        }
    }
    let change = thread.find_change();
    assert!(change.is_truncated && change.valid == 0);
    for _ in 0..20 {
        thread.pop();
        thread.check();
    }
}

#[test]
fn failed_definition_truncates_the_stack_and_is_retried() {
    let mut thread = FakeThread::new(0x030c);
    for code in 0..4 {
        thread.push(0, code, 1, false);
    }
    let change = thread.find_change();
    let mut first = None;
    let outer = thread.memo.apply(change, |_, key| {
        first.get_or_insert(*key);
        (key.code == code_at(0)).then_some(NodeId(1))
    });
    assert_eq!(outer, NodeId(1));
    thread.defined.insert(NodeId(1), (NodeId::NONE, first.unwrap()));
    thread.check();
}
