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
mod batch;
mod before;
mod clock;
mod config;
mod current;
mod facts;
mod forward;
mod name;
pub mod native;
mod output;
mod own_file;
mod parts;
mod per_thread;
mod protocol;
pub mod python;
mod record;
mod ring_sizes;
mod said;
mod say;
mod session;
mod shared;
mod signals;
pub mod stack_cache;
mod sync;
mod system;
mod text;
mod thread;
mod trace_file;
mod writer;

pub use allocator::Allocator;
pub use config::wants_tracker;
pub use facts::{Sources, register, torch_version_beside};
pub use forward::{Work, forward_node, work_for_node};
pub use record::{
    Call, Draft, begin, count, event, is_recording, leave_after_panic, may_record, named_event, text_event,
    trace_path,
};
pub use said::{mark, phase_begin, phase_end, step};
pub use say::{errno, say, set_errno};
pub use session::{end_at_exit, end_at_quick_exit, end_by_program};
pub use system::{generation as module_counts, is_preloaded};
