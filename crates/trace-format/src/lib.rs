//! The trace format: what the recorder writes and the replay library reads.
//!
//! This crate runs inside the traced program, where it encodes, and in the command, where it
//! decodes files that may be damaged or hostile. It opens no files, prints nothing and has no
//! unsafe code, and every decoder bounds an allocation before it makes it. No other crate knows a
//! byte layout.
//!
//! `docs/trace-format.md` is the specification; `tests/specification.rs` checks its examples and
//! its table of event kinds. Reading order: [`event`] (one event), [`ring`] (events before they are
//! in the trace), [`event_block`] (many events in few bytes), [`definitions`] (what the ids in an
//! event stand for), [`meta`] (metadata and the end of the run), [`block`] (framing), [`index`]
//! (summaries) and [`reader`] (a whole file).
#![forbid(unsafe_code)]

pub mod block;
pub mod definitions;
pub mod event;
pub mod event_block;
mod ids;
pub mod index;
pub mod labels;
#[doc(hidden)]
pub mod meta;
pub mod reader;
pub mod ring;
pub mod size_arg;
pub mod source_path;
pub mod text;
mod wire;

pub use definitions::{
    AddressNames, CodeDef, FRAME_NOT_STARTED, FrameLink, ModuleDef, ModuleNames, NamedFrame, NativeNode,
    PyNode,
};
pub use event::{
    Detail, Event, EventKind, FLAG_CAPTURED, FLAG_ESTIMATED, FLAG_HOST, FLAG_MANAGED, FLAG_UNBACKED,
    NO_DEVICE, NO_SEQ, TrackerState,
};
pub use ids::{ApiId, CodeId, NodeId, ThreadId};
pub use meta::{Counter, Counters, End, EndReason, Meta, MetaValue};
pub use wire::WireError;

/// Version of everything in this crate. A reader refuses a file of any other version. Within a
/// version it skips and counts block kinds, columns, event kinds and metadata names that it does
/// not know.
pub const FORMAT_VERSION: u32 = 1;

#[doc(hidden)]
pub use wire::{put_delta, put_varint};
