//! Attributes memory of the backward pass to the line of the forward pass.
//!
//! Autograd computes gradients on threads without Python frames, one node of its graph after the
//! other. The Python line that created a node is known only in the forward pass, on the thread that
//! runs the line; there the node gets its sequence number. [`note_forward_node`] keeps the stack of
//! that moment in a table, by thread and number. [`enter_backward_node`] looks it up when the node
//! is computed. Until its guard is dropped, events of the thread get that stack, with a frame
//! beneath it that marks the backward pass ([`FrameLink::Backward`]). A node may run Python code: a
//! recomputed forward pass, or a function's own `backward`. Its events have both stacks
//! ([`FrameLink::InsideBackward`]).
//!
//! The table is direct-mapped, with one atomic word an entry, so neither side waits for the other.
//! If a graph has more nodes than the table has entries, only the newest are found. A node that is
//! not found gets no stack; nothing is guessed.

use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::ring::encode_py_node_record;
use gpumemtrace_format::{CodeId, FrameLink, NodeId, PyNode};

use super::hook_levels::HookPhase;
use super::record::{capture_python_stack, push_definition};
use super::thread_state::{ThreadState, with_thread_state};
use crate::platform::hook_frames::StackMark;
use crate::session::Session;
use crate::session::current::running;
use crate::session::thread_block::ThreadBlock;
use crate::stacks::cache::FrameKey;

const INDEX_BITS: u32 = 17;
const ENTRIES: usize = 1 << INDEX_BITS;
/// Bits of a sequence number that are stored beyond the index.
const HIGH_BITS: u32 = 16;
const THREAD_BITS: u32 = 16;

/// An entry is: stack (low 32 bits), thread (16 bits), high bits of the sequence number (16 bits).
/// The megabyte costs nothing until it is touched.
static FORWARD_STACKS: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// The key of the backward frame; no code object lies at this address.
const BACKWARD_FRAME: FrameKey = FrameKey { code: 1, instr: 0, tag: 0 };

/// The entry of a node, and the part of its content that identifies the node. `None` if thread or
/// number do not fit.
fn entry_of(thread: u64, number: u64) -> Option<(&'static AtomicU64, u64)> {
    if thread == 0 || thread >> THREAD_BITS != 0 || number >> (INDEX_BITS + HIGH_BITS) != 0 {
        return None;
    }
    // All threads count from the same number, so each starts at another index.
    let index = number.wrapping_add(thread.wrapping_mul(0x9e37_79b9)) as usize % ENTRIES;
    Some((&FORWARD_STACKS[index], thread << 32 | (number >> INDEX_BITS) << (32 + THREAD_BITS)))
}

fn set_forward_stack(thread: u64, number: u64, stack: NodeId) {
    if let Some((entry, key)) = entry_of(thread, number) {
        entry.store(key | u64::from(stack.0), Ordering::Release);
    }
}

fn forward_stack(thread: u64, number: u64) -> NodeId {
    let entry = entry_of(thread, number).map(|(entry, key)| (entry.load(Ordering::Acquire), key));
    match entry {
        Some((entry, key)) if entry >> 32 == key >> 32 => NodeId(entry as u32),
        _ => NodeId::NONE,
    }
}

/// Remembers the stack of the calling thread for a new node of autograd's graph.
///
/// `thread` is autograd's own number of the calling thread, `number` the node's sequence number.
pub fn note_forward_node(thread: u64, number: u64) {
    with_thread_state(|state| {
        let Some(session) = running() else { return };
        if !state.levels.enter_first(HookPhase::Event, StackMark::here()) {
            return;
        }
        if let Some(stack) = backward_frame_under_stack(state, session) {
            set_forward_stack(thread, number, stack);
        }
        state.levels.leave();
    });
}

/// The backward frame under the stack of the calling thread. A node that is created during a
/// backward pass gets the forward stack of the node that creates it.
fn backward_frame_under_stack(state: &ThreadState, session: &'static Session) -> Option<NodeId> {
    let interpreter = session.python.as_ref()?;
    let block = state.block(session)?;
    let _guard = session.enter_hook(block.producer.index())?;
    let stack = capture_python_stack(session, interpreter, block);
    if stack == NodeId::NONE {
        return Some(state.autograd_stack.get());
    }
    let (parent, key) = match state.autograd_stack.get() {
        NodeId::NONE => (stack, BACKWARD_FRAME),
        // A recomputed forward pass: the stack alone may have frames of libraries only.
        forward => {
            let joined = stack_inside_backward(session, block, (stack, forward))?;
            (joined, FrameKey { instr: forward.0 as usize, tag: 1, ..BACKWARD_FRAME })
        }
    };
    let ThreadBlock { producer, python, .. } = block;
    python.child_of_last(&key, || {
        let id = NodeId(session.next_py_node.fetch_add(1, Ordering::Relaxed));
        let node = PyNode { id, parent, code: CodeId::UNKNOWN, offset_bytes: -1, link: FrameLink::Backward };
        push_definition(session, producer, &encode_py_node_record(node)).then_some(id)
    })
}

/// The stack `own` of the calling thread, captured last, inside a node with the stack `forward`.
#[cold]
pub(super) fn stack_inside_backward(
    session: &Session,
    block: &mut ThreadBlock,
    (own, forward): (NodeId, NodeId),
) -> Option<NodeId> {
    let ThreadBlock { producer, python, .. } = block;
    let key = FrameKey { instr: forward.0 as usize, ..BACKWARD_FRAME };
    python.child_of_last(&key, || {
        let id = NodeId(session.next_py_node.fetch_add(1, Ordering::Relaxed));
        let node = PyNode {
            id,
            parent: own,
            code: CodeId::UNKNOWN,
            offset_bytes: forward.0.cast_signed(),
            link: FrameLink::InsideBackward,
        };
        push_definition(session, producer, &encode_py_node_record(node)).then_some(id)
    })
}

/// While this guard lives, events of the calling thread get the forward stack of one autograd node.
#[derive(Debug)]
#[must_use]
pub struct BackwardNodeGuard {
    outer: NodeId,
}

/// Attributes the events of the calling thread to the node that [`note_forward_node`] saw with this
/// thread and number, until the guard is dropped. Guards may be nested.
pub fn enter_backward_node(thread: u64, number: u64) -> BackwardNodeGuard {
    // The table is empty until a session runs.
    let stack = forward_stack(thread, number);
    BackwardNodeGuard { outer: with_thread_state(|state| state.autograd_stack.replace(stack)) }
}

impl Drop for BackwardNodeGuard {
    fn drop(&mut self) {
        with_thread_state(|state| state.autograd_stack.set(self.outer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_found_by_thread_and_number_until_its_entry_is_reused() {
        set_forward_stack(3, 7, NodeId(41));
        set_forward_stack(4, 7, NodeId(42));
        assert_eq!((forward_stack(3, 7), forward_stack(4, 7)), (NodeId(41), NodeId(42)));
        assert_eq!(forward_stack(3, 8), NodeId::NONE);
        let later = 7 + ENTRIES as u64;
        set_forward_stack(3, later, NodeId(43));
        assert_eq!((forward_stack(3, 7), forward_stack(3, later)), (NodeId::NONE, NodeId(43)));
    }

    #[test]
    fn thread_or_number_out_of_range_is_not_stored() {
        for (thread, number) in [(0, 5), (1 << 16, 5), (9, 1 << 33), (9, u64::MAX)] {
            set_forward_stack(thread, number, NodeId(77));
            assert_eq!(forward_stack(thread, number), NodeId::NONE, "{thread} {number}");
        }
        set_forward_stack(9, (1 << 33) - 1, NodeId(78));
        assert_eq!(forward_stack(9, (1 << 33) - 1), NodeId(78));
    }

    #[test]
    fn nested_guards_restore_the_outer_stack() {
        set_forward_stack(11, 1, NodeId(51));
        let current = || with_thread_state(|state| state.autograd_stack.get());
        let outer = enter_backward_node(11, 1);
        assert_eq!(current(), NodeId(51));
        let inner = enter_backward_node(11, 999);
        assert_eq!(current(), NodeId::NONE);
        drop(inner);
        assert_eq!(current(), NodeId(51));
        drop(outer);
        assert_eq!(current(), NodeId::NONE);
    }
}
