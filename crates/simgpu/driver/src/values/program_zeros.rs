//! Zeros that the program asks for.
//!
//! PyTorch's own functions often fill a result with floating-point zeros, and then start a kernel
//! that adds to them. Such zeros are placeholders. Zeros that Python code asks for are values: a
//! mask, a state. Python's functions call those of [`FILLING`] through the global offset table of
//! `libtorch_python.so`.

use std::cell::Cell;

use super::call_frame::{CallFrame, Hook, Plan, make};
use super::loaded_library::{LoadedLibrary, replace_pointer};

/// Begins of the names of functions that make or fill a tensor.
const FILLING: [&str; 8] = [
    "_ZN2at4_ops5zeros4callE",
    "_ZN2at4_ops10zeros_like4callE",
    "_ZN2at4_ops9new_zeros4callE",
    "_ZN2at4_ops5zero_4callE",
    "_ZN2at4_ops4full4callE",
    "_ZN2at4_ops9full_like4callE",
    "_ZN2at4_ops8new_full4callE",
    "_ZN2at4_ops12fill__Scalar4callE",
];

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// True while this thread is in a call of Python code that fills a tensor.
pub(crate) fn are_asked_for() -> bool {
    ASKED.get()
}

/// Hooks the calls of Python's functions. PyTorch exports what they call from `libtorch_cpu.so`.
pub(crate) fn hook(cpu: &LoadedLibrary, python: &LoadedLibrary) {
    let is_filling = |name: &str| FILLING.iter().any(|begin| name.starts_with(begin));
    let functions = cpu.symbols(is_filling);
    let entries: Vec<(u64, u64)> = python
        .offset_table(is_filling)
        .into_iter()
        .filter_map(|(name, place)| Some((place, *functions.get(name)?)))
        .collect();
    let hooks = entries.iter().map(|(_, original)| Hook {
        original: *original,
        on_cpu: 0,
        prepare: Box::new(|_: &CallFrame| Some(call_asked())),
    });
    for ((place, _), code) in entries.iter().zip(make(hooks.collect()).into_iter().flatten()) {
        replace_pointer(*place, code);
    }
}

/// Ends the call also if it throws.
struct Asked;

impl Drop for Asked {
    fn drop(&mut self) {
        ASKED.set(false);
    }
}

fn call_asked() -> Plan {
    Box::new(|hook, frame| {
        ASKED.set(true);
        let _asked = Asked;
        // SAFETY: the function that was called with these arguments.
        unsafe { frame.call(hook.original) }
    })
}
