//! Hooks on autograd: the creation of a node, and its evaluation in the backward pass.
//!
//! A backward thread has no Python frames, and a node does not store the line that created it. Two
//! functions, called through the PLT in every version, cover all of autograd.
//! `get_and_increment` numbers each new node, on the thread that creates it.
//! `Engine::evaluate_function` evaluates one node. A node stores its number and thread, at offsets
//! that depend on the version (`layouts`); together they lead back to the forward line. Both hooks
//! call the real function exactly once, with the program's own arguments.
//!
//! The mangled names are the same in torch 2.1 to 2.15 (Linux).

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use gpumemtrace_recorder::{
    BackwardNodeGuard, enter_backward_node, is_recording, note_forward_node, read_torch_version,
    uninterrupted,
};

use super::layouts::{AUTOGRAD_NODE_LAYOUTS, AutogradNodeLayout};
use super::release::release_of;
use super::torch_fn::TorchFn;
use crate::loader::symbols::library_at;
use crate::panic_guard::catch_panic;

const LIBRARY: &std::ffi::CStr = c"libtorch_cpu.so";

static GET_AND_INCREMENT: TorchFn = TorchFn::new(LIBRARY, c"_ZN2at15sequence_number17get_and_incrementEv");
static CURRENT_THREAD_ID: TorchFn = TorchFn::new(LIBRARY, c"_ZN2at14RecordFunction15currentThreadIdEv");
static EVALUATE_FUNCTION: TorchFn = TorchFn::new(
    LIBRARY,
    c"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
);

const NOT_LOOKED_UP: u8 = 0;
const KNOWN: u8 = 1;
const UNKNOWN: u8 = 2;

static LAYOUT_STATE: AtomicU8 = AtomicU8::new(NOT_LOOKED_UP);
static LAYOUT: AtomicPtr<AutogradNodeLayout> = AtomicPtr::new(std::ptr::null_mut());

/// The node layout of this PyTorch; `None` if the version is unknown. Looked up when the first node
/// is created during a recording.
#[inline]
fn node_layout() -> Option<&'static AutogradNodeLayout> {
    match LAYOUT_STATE.load(Ordering::Acquire) {
        NOT_LOOKED_UP => find_layout(),
        KNOWN => {
            // SAFETY: null, or an entry of a static table.
            unsafe { LAYOUT.load(Ordering::Relaxed).as_ref() }
        }
        _ => None,
    }
}

#[cold]
fn find_layout() -> Option<&'static AutogradNodeLayout> {
    let errno = gpumemtrace_recorder::errno();
    let version = uninterrupted(|| {
        library_at(GET_AND_INCREMENT.get()).and_then(|library| read_torch_version(library.file()))
    });
    let release = version.as_ref().and_then(|(version, _)| release_of(version));
    let layout = release.and_then(|release| AUTOGRAD_NODE_LAYOUTS.iter().find(|row| row.release == release));
    let layout = layout.filter(|_| !CURRENT_THREAD_ID.get().is_null());
    if let Some(layout) = layout {
        LAYOUT.store(std::ptr::from_ref(layout).cast_mut(), Ordering::Relaxed);
    }
    LAYOUT_STATE.store(if layout.is_some() { KNOWN } else { UNKNOWN }, Ordering::Release);
    gpumemtrace_recorder::set_errno(errno);
    layout
}

/// Passes a new node of the calling thread to the recorder.
fn note_new_node(number: u64) {
    catch_panic(|| {
        node_layout()?;
        // SAFETY: the address was looked up under this name; a thread-local read inside PyTorch.
        let thread =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(CURRENT_THREAD_ID.get())() };
        note_forward_node(thread, number);
        Some(())
    });
}

/// Replaces PyTorch's counter if that cannot be found: autograd only needs numbers that grow on
/// each thread.
fn own_sequence_number() -> u64 {
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| next.replace(next.get() + 1))
}

/// Stands in for libtorch's `at::sequence_number::get_and_increment()`.
#[cfg_attr(not(test), unsafe(export_name = "_ZN2at15sequence_number17get_and_incrementEv"))]
extern "C-unwind" fn get_and_increment() -> u64 {
    let real = GET_AND_INCREMENT.get();
    if real.is_null() {
        return own_sequence_number();
    }
    // SAFETY: the address was looked up under this name; it increments a thread-local number.
    let number = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn() -> u64>(real)() };
    if is_recording() {
        note_new_node(number);
    }
    number
}

/// Reads the number and thread of a node that is about to be evaluated.
fn begin_node(node: *const u8) -> Option<BackwardNodeGuard> {
    let layout = node_layout()?;
    // SAFETY: autograd's node, alive during its evaluation; the offsets are those of this version.
    let (number, thread) = unsafe {
        (
            node.add(layout.sequence_nr).cast::<u64>().read_unaligned(),
            node.add(layout.thread_id).cast::<u64>().read_unaligned(),
        )
    };
    Some(enter_backward_node(thread, number))
}

type EvaluateFunction =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *const u8, *mut c_void, *const c_void);

/// `torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&, Node*, InputBuffer&,
/// const std::shared_ptr<ReadyQueue>&)`
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
    let real = EVALUATE_FUNCTION.get();
    if real.is_null() {
        // Its callers are in the library that defines it, so the search should never fail. To
        // return would silently skip gradients, which is worse than to abort.
        gpumemtrace_recorder::print_diagnostic(&[
            "cannot find PyTorch's autograd engine and must abort; please report this build of PyTorch.",
        ]);
        std::process::abort();
    }
    let _work = if is_recording() { catch_panic(|| begin_node(node)) } else { None };
    // SAFETY: the address was looked up under this name.
    let real = unsafe { std::mem::transmute::<*mut c_void, EvaluateFunction>(real) };
    // SAFETY: the caller's own arguments. A C++ exception may pass through ("C-unwind"); dropping
    // `_work` then only restores a number.
    unsafe { real(engine, graph_task, node, inputs, queue) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_grow_without_pytorch() {
        assert_eq!([get_and_increment(), get_and_increment(), get_and_increment()], [0, 1, 2]);
        let _ = evaluate_function as *const ();
    }

    #[test]
    fn each_release_has_one_node_layout() {
        let mut releases: Vec<&str> = AUTOGRAD_NODE_LAYOUTS.iter().map(|row| row.release).collect();
        releases.dedup();
        assert_eq!(releases.len(), AUTOGRAD_NODE_LAYOUTS.len());
    }
}
