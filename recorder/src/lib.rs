//! The part of gpumemtrace that runs inside the traced program: rings, stacks, clock, writer thread.
//!
//! Constraint: we are a guest. The program must behave as it would without us, and die as it would without us, at any
//! moment, without a trace being lost. Consequence: hooks only store into a shared mapping (`record`, `shared`,
//! `thread`; what makes that safe is `protocol`); everything slow (encoding, compression, files) happens on one thread of ours (`writer`); trouble is
//! counted, said once (`say`), and ends the recording, never the program (`session`).
//!
//! A user of this crate (the hooks) calls [`begin`] and [`Call::finish`] around a driver call, [`event`] for what has
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
pub use config::wants_tracker;
pub use diagnostics::{errno, say, set_errno};
pub use hot::autograd::{Work, forward_node, work_for_node};
pub use hot::markers::{mark, phase_begin, phase_end, step};
pub use hot::record::{
    Call, Draft, begin, count, event, is_recording, leave_after_panic, may_record, named_event, text_event,
    trace_path,
};
pub use metadata::{Sources, register, torch_version_beside};
pub use platform::unload_counter::modules_went;
pub use platform::{generation as module_counts, is_preloaded};
pub use session::{end_at_exit, end_at_quick_exit, end_by_program};

/// What the tests and benchmarks of this crate use, and nothing else.
#[doc(hidden)]
pub mod internals {
    pub use crate::platform::process_memory::Direct;
    pub use crate::platform::unload_counter::modules_went;
    pub use crate::stacks::cache::{FrameKey, MAX_DEPTH, StackCache};
    pub use crate::stacks::native::{NativeStack, prepare};
    pub use crate::stacks::python::layout::PYTHON_3_12;
    pub use crate::stacks::python::memo::Trail;
}
