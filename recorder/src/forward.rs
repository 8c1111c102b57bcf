//! For which line of the forward pass a thread of autograd's works.
//!
//! Constraint: gradients are computed on threads without Python frames, one node of autograd's graph after the other. Which line
//! created a node is known only while that happens: in the forward pass, on the thread that runs the line, which gives the node a
//! number. Consequence: the stack of that moment is kept in a table by thread and number; when a node is computed, the table
//! is asked, and until it is done the thread's events have that stack, with a mark beneath it ([`FrameLink::Backward`]).
//!
//! The table is direct-mapped and one word an entry, so neither side waits for the other. Of a graph with more nodes than it has
//! entries only the newest are known; numbers that do not fit into an entry are not noted. What is not found is not guessed.

use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::ring::encode_py_node_record;
use gpumemtrace_format::{CodeId, FrameLink, NodeId, PyNode};

use crate::current::running;
use crate::record::{define, python_stack};
use crate::session::Session;
use crate::stack_cache::FrameKey;
use crate::thread::{Local, ThreadBlock, with_local};

const SLOT_BITS: u32 = 17;
const SLOTS: usize = 1 << SLOT_BITS;
/// Bits of a number beyond those that the place in the table tells.
const HIGH_BITS: u32 = 16;
const THREAD_BITS: u32 = 16;

/// Stack (low 32 bits), thread, high bits of the number. A megabyte that costs nothing until it is used.
static TABLE: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// What the mark beneath a stack is known by; no code object lies at this address.
const BENEATH: FrameKey = FrameKey { code: 1, instr: 0, tag: 0 };

/// The entry of a node, and the part of its content that is not the stack. `None` if it has none.
fn place(thread: u64, number: u64) -> Option<(&'static AtomicU64, u64)> {
    if thread == 0 || thread >> THREAD_BITS != 0 || number >> (SLOT_BITS + HIGH_BITS) != 0 {
        return None;
    }
    // Threads count from the same numbers on: each begins elsewhere.
    let slot = number.wrapping_add(thread.wrapping_mul(0x9e37_79b9)) as usize % SLOTS;
    Some((&TABLE[slot], thread << 32 | (number >> SLOT_BITS) << (32 + THREAD_BITS)))
}

fn note(thread: u64, number: u64, stack: NodeId) {
    if let Some((entry, key)) = place(thread, number) {
        entry.store(key | u64::from(stack.0), Ordering::Release);
    }
}

fn noted(thread: u64, number: u64) -> NodeId {
    let entry = place(thread, number).map(|(entry, key)| (entry.load(Ordering::Acquire), key));
    match entry {
        Some((entry, key)) if entry >> 32 == key >> 32 => NodeId(entry as u32),
        _ => NodeId::NONE,
    }
}

/// A node of autograd's graph gets its number, on the thread that autograd counts as `thread`.
pub fn forward_node(thread: u64, number: u64) {
    with_local(|local| {
        let Some(session) = running().filter(|_| !local.busy.get()) else { return };
        local.busy.set(true);
        if let Some(stack) = beneath(local, session) {
            note(thread, number, stack);
        }
        local.busy.set(false);
    });
}

/// The mark beneath the stack of the calling thread. A node that is created in a backward pass belongs to the same line.
fn beneath(local: &Local, session: &'static Session) -> Option<NodeId> {
    let interpreter = session.python.as_ref()?;
    let block = local.block(session)?;
    let _inside = session.go_inside(block.lane.index())?;
    let stack = python_stack(session, interpreter, block);
    if stack == NodeId::NONE {
        return Some(local.works_for.get());
    }
    let ThreadBlock { lane, python, .. } = block;
    python.beneath(&BENEATH, || {
        let id = NodeId(session.next_py_node.fetch_add(1, Ordering::Relaxed));
        let node =
            PyNode { id, parent: stack, code: CodeId::UNKNOWN, offset_bytes: -1, link: FrameLink::Backward };
        define(session, lane, &encode_py_node_record(node)).then_some(id)
    })
}

/// The calling thread works for a node, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Work {
    before: NodeId,
}

/// The calling thread computes a node: the one that got this number on this thread.
pub fn work_for_node(thread: u64, number: u64) -> Work {
    // Nothing is in the table before a session is there.
    let stack = noted(thread, number);
    Work { before: with_local(|local| local.works_for.replace(stack)) }
}

impl Drop for Work {
    fn drop(&mut self) {
        with_local(|local| local.works_for.set(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_thread_and_number_until_its_entry_is_taken() {
        note(3, 7, NodeId(41));
        note(4, 7, NodeId(42));
        assert_eq!((noted(3, 7), noted(4, 7)), (NodeId(41), NodeId(42)));
        assert_eq!(noted(3, 8), NodeId::NONE);
        let later = 7 + SLOTS as u64;
        note(3, later, NodeId(43));
        assert_eq!((noted(3, 7), noted(3, later)), (NodeId::NONE, NodeId(43)));
    }

    #[test]
    fn what_does_not_fit_is_not_noted() {
        for (thread, number) in [(0, 5), (1 << 16, 5), (9, 1 << 33), (9, u64::MAX)] {
            note(thread, number, NodeId(77));
            assert_eq!(noted(thread, number), NodeId::NONE, "{thread} {number}");
        }
        note(9, (1 << 33) - 1, NodeId(78));
        assert_eq!(noted(9, (1 << 33) - 1), NodeId(78));
    }

    #[test]
    fn work_within_work_ends_in_its_order() {
        note(11, 1, NodeId(51));
        let here = || with_local(|local| local.works_for.get());
        let outer = work_for_node(11, 1);
        assert_eq!(here(), NodeId(51));
        let inner = work_for_node(11, 999);
        assert_eq!(here(), NodeId::NONE);
        drop(inner);
        assert_eq!(here(), NodeId(51));
        drop(outer);
        assert_eq!(here(), NodeId::NONE);
    }
}
