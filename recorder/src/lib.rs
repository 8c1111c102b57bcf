//! The part of gpumemtrace that runs inside the traced program: rings, stacks, clock, writer thread.
//!
//! Constraint: we are a guest. The program must behave as it would without us, and die as it would without us, at any
//! moment, without a trace being lost. Consequence: hooks only store into a shared mapping (`record`, `shared`,
//! `thread`; what makes that safe is `protocol`); everything slow (encoding, compression, files) happens on one thread of ours (`writer`); trouble is
//! counted, said once (`say`), and ends the recording, never the program (`session`).
//!
//! A user of this crate (the hooks) calls [`begin`] and [`CallGuard::finish`] around a driver call, [`event`] for what has
//! already happened, and [`end_at_exit`] / [`end_at_quick_exit`] when the process ends. In turn this crate starts itself
//! at the first event, keeps every call made through it ordered, and never panics on purpose.

mod allocator;
mod config;
mod diagnostics;
mod hot;
mod metadata;
mod platform;
mod ring;
mod session;
mod stacks;
mod writer;

pub use allocator::Allocator;
pub use config::is_tracker_enabled;
pub use diagnostics::{errno, print_diagnostic, set_errno};
pub use hot::autograd::{BackwardNodeGuard, enter_backward_node, note_forward_node};
pub use hot::markers::{begin_phase, begin_step, end_phase, record_mark};
pub use hot::record::{
    CallGuard, Draft, begin_call, increment_counter, is_recording, may_record, record_event,
    record_named_event, record_text_event, reset_hook_after_panic, trace_path,
};
pub use metadata::{HookCallbacks, read_torch_version, register_callbacks};
pub use platform::unload_counter::note_module_unload;
pub use platform::{generation as loaded_module_counts, is_preloaded};
pub use session::{end_at_exit, end_at_quick_exit, end_by_program};

/// What the tests and benchmarks of this crate use, and nothing else.
#[doc(hidden)]
pub mod internals {
    pub use crate::platform::process_memory::Direct;
    pub use crate::platform::unload_counter::note_module_unload;
    pub use crate::stacks::cache::{FrameKey, MAX_DEPTH, StackCache};
    pub use crate::stacks::native::{NativeStack, prepare};
    pub use crate::stacks::python::layout::PYTHON_3_12;
    pub use crate::stacks::python::memo::PythonStackMemo;
}
