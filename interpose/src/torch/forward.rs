//! Autograd's nodes: when one is created, and when it is computed.
//!
//! Constraint: a backward thread has no Python frames, and a node does not say which line created it. Consequence: two functions
//! through which all of autograd goes, called through the PLT in every version, are ours to see. `get_and_increment` gives
//! each new node its number, on the thread whose line creates it; `Engine::evaluate_function` computes one node and what
//! its gradients need. A node keeps number and thread; where, a table by version says (`layouts`). The real function is called
//! in any case, once, with the program's own arguments.
//!
//! Names: the same mangled ones in torch 2.1 to 2.15 (Linux).

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use gpumemtrace_recorder::{
    BackwardNodeGuard, enter_backward_node, is_recording, note_forward_node, read_torch_version,
};

use super::layouts::{NODES, Node};
use super::original::Original;
use super::release::release_of;
use crate::dynamic::library_of;
use crate::guard::quietly;

const LIBRARY: &std::ffi::CStr = c"libtorch_cpu.so";

static NEXT_NUMBER: Original = Original::new(LIBRARY, c"_ZN2at15sequence_number17get_and_incrementEv");
static THREAD: Original = Original::new(LIBRARY, c"_ZN2at14RecordFunction15currentThreadIdEv");
static EVALUATE: Original = Original::new(
    LIBRARY,
    c"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
);

const UNASKED: u8 = 0;
const KNOWN: u8 = 1;
const UNKNOWN: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNASKED);
static NODE: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());

/// Where this version's nodes have what we read. Found out when the first node is created while something is recorded.
#[inline]
fn node_layout() -> Option<&'static Node> {
    match STATE.load(Ordering::Acquire) {
        UNASKED => find_layout(),
        KNOWN => {
            // SAFETY: null or an entry of a static table.
            unsafe { NODE.load(Ordering::Relaxed).as_ref() }
        }
        _ => None,
    }
}

#[cold]
fn find_layout() -> Option<&'static Node> {
    let errno = gpumemtrace_recorder::errno();
    let version = library_of(NEXT_NUMBER.get()).and_then(|library| read_torch_version(library.file()));
    let release = version.as_ref().and_then(|(version, _)| release_of(version));
    let node = release.and_then(|release| NODES.iter().find(|node| node.release == release));
    let node = node.filter(|_| !THREAD.get().is_null());
    if let Some(node) = node {
        NODE.store(std::ptr::from_ref(node).cast_mut(), Ordering::Relaxed);
    }
    STATE.store(if node.is_some() { KNOWN } else { UNKNOWN }, Ordering::Release);
    gpumemtrace_recorder::set_errno(errno);
    node
}

fn note_new_node(number: u64) {
    quietly(|| {
        node_layout()?;
        // SAFETY: the address was looked up under this name; a thread-local read inside PyTorch.
        let thread = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(THREAD.get())() };
        note_forward_node(thread, number);
        Some(())
    });
}

/// Where no PyTorch is found to ask, numbers still only have to grow, thread by thread.
fn own_number() -> u64 {
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| next.replace(next.get() + 1))
}

/// `at::sequence_number::get_and_increment()`
#[cfg_attr(not(test), unsafe(export_name = "_ZN2at15sequence_number17get_and_incrementEv"))]
extern "C-unwind" fn get_and_increment() -> u64 {
    let original = NEXT_NUMBER.get();
    if original.is_null() {
        return own_number();
    }
    // SAFETY: the address was looked up under this name; it counts a thread-local number up.
    let number =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> u64>(original)() };
    if is_recording() {
        note_new_node(number);
    }
    number
}

/// Reads who created a node that is about to be computed.
fn begin(node: *const u8) -> Option<BackwardNodeGuard> {
    let layout = node_layout()?;
    // SAFETY: autograd's node, alive while it is computed; the fields lie where this version's headers have them.
    let (number, thread) = unsafe {
        (
            node.add(layout.number).cast::<u64>().read_unaligned(),
            node.add(layout.thread).cast::<u64>().read_unaligned(),
        )
    };
    Some(enter_backward_node(thread, number))
}

type Evaluate = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *const u8, *mut c_void, *const c_void);

/// `torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&, Node*, InputBuffer&, const std::shared_ptr<ReadyQueue>&)`
#[cfg_attr(
    not(test),
    unsafe(
        export_name = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE"
    )
)]
unsafe extern "C-unwind" fn evaluate_function(
    engine: *mut c_void,
    graph_task: *mut c_void,
    node: *const u8,
    inputs: *mut c_void,
    queue: *const c_void,
) {
    let original = EVALUATE.get();
    if original.is_null() {
        // Whoever calls it has it in a library of its own: this cannot be. Gradients that are silently not computed would be worse.
        gpumemtrace_recorder::print_diagnostic(&[
            "PyTorch's autograd engine cannot be found; please report this build of PyTorch.",
        ]);
        std::process::abort();
    }
    let _work = if is_recording() { quietly(|| begin(node)) } else { None };
    // SAFETY: the address was looked up under this name.
    let original = unsafe { std::mem::transmute::<*mut c_void, Evaluate>(original) };
    // SAFETY: the caller's own arguments. A C++ exception passes through, hence "C-unwind"; what is dropped then is a number put
    // back.
    unsafe { original(engine, graph_task, node, inputs, queue) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_also_without_pytorch() {
        assert_eq!([get_and_increment(), get_and_increment(), get_and_increment()], [0, 1, 2]);
        let _ = evaluate_function as *const ();
    }

    #[test]
    fn each_release_has_its_nodes_once() {
        let mut releases: Vec<&str> = NODES.iter().map(|node| node.release).collect();
        releases.dedup();
        assert_eq!(releases.len(), NODES.len());
    }
}
