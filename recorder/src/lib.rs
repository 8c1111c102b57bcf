//! The part of gpumemtrace that runs inside the traced program.
//!
//! The program must behave and end as it would without the recorder, and may be killed at any
//! moment without losing its trace. So hooks only store records into ring buffers in a mapped file
//! (`hot`, `ring`), with the call stacks that `stacks` captures. One writer thread does
//! everything slow: encoding, compression, files (`writer`). An internal error is counted, prints
//! one line (`diagnostics`) and ends the recording, never the program (`lifecycle`).
//!
//! A hook calls [`begin_call`] before a driver call and [`CallGuard::complete`] after it, or
//! [`record_event`] for something that has already happened. When the process ends, call
//! [`end_at_exit`] or [`end_at_quick_exit`]. The recorder starts itself at the first event, gives
//! all events of the process one order, and never panics on purpose.
//!
//! The modules form layers: `platform`, `diagnostics`, `ring`, `stacks`, `config`, `metadata`,
//! `session`, then `hot` and `writer`, then `lifecycle`, then `api`. A module imports only from
//! layers before it.

mod allocator;
mod api;
mod config;
mod diagnostics;
mod hot;
mod job;
mod labels;
mod lifecycle;
mod metadata;
mod platform;
mod ring;
mod session;
mod stacks;
mod writer;

pub use allocator::Allocator;
pub use api::events::{
    begin_call, begin_call_at, increment_counter, is_recording, may_record, next_seq, record_event,
    record_named_event, record_text_event, reset_hook_after_panic, trace_path,
};
pub use api::markers::{begin_phase, begin_step, end_phase, record_mark};
pub use config::is_tracker_enabled;
pub use diagnostics::{errno, print_diagnostic, set_errno};
pub use hot::autograd::{BackwardNodeGuard, enter_backward_node, note_forward_node};
pub use hot::driver_call::{CallGuard, UnwindGuard};
pub use hot::record::Draft;
pub use lifecycle::{end_after_exit_handlers, end_at_exit, end_at_quick_exit, end_by_program};
pub use metadata::{HookCallbacks, read_torch_version, register_callbacks};
pub use platform::cancellation::{uninterrupted, without_cancellation};
pub use platform::clock::stop_reading_counter;
pub use platform::hook_frames::StackMark;
pub use platform::unload_counter::note_module_unload;
pub use platform::{is_preloaded, loaded_module_counts};
pub use session::unloaded::{UnloadWatch, watch_unloads};

/// The modules of this process and their symbols, without the loader's lock.
#[cfg(target_os = "linux")]
pub mod elf {
    pub use crate::platform::elf_module::{DynamicSection, ElfModule, find_module, find_symbol};
    pub use crate::platform::symbol_table::ElfSymbol;
}

/// What the tests and benchmarks of this crate use, and nothing else.
#[doc(hidden)]
pub mod internals {
    pub use crate::platform::process_memory::Direct;
    pub use crate::stacks::cache::{FrameKey, MAX_DEPTH, StackCache};
    pub use crate::stacks::native::{NativeStack, prepare};
    pub use crate::stacks::python::layout::PYTHON_3_12;
    pub use crate::stacks::python::memo::PythonStackMemo;
}
