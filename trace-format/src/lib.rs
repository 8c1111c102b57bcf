//! What a gpumemtrace trace *is*: records, columns, blocks; how they are encoded and decoded.
//!
//! Constraint: this crate runs on both sides, inside the traced program (encoding) and in the replay tool (decoding
//! files that may be damaged or hostile). Consequence: no files are opened here, nothing is unsafe, nothing is printed,
//! and every decoder bounds what it allocates before it allocates it. No other crate knows a byte layout.
//!
//! Reading order: [`event`] (one record), [`ring`] (where records live until they are written), [`rows`] (many
//! records, small), [`defs`] (what the ids in a record mean), [`symbols`] (names of native
//! addresses), [`meta`] (who was traced), [`block`] (framing), [`index`] (sums),
//! [`reader`] (a whole file). `docs/trace-format.md` is the same in prose, for third parties.
#![forbid(unsafe_code)]

pub mod amount;
pub mod block;
pub mod defs;
pub mod event;
pub mod index;
mod item;
pub mod links;
pub mod meta;
pub mod reader;
pub mod ring;
pub mod rows;
pub mod symbols;
pub mod wire;

pub use defs::{CodeDef, CodeId, ModuleDef, NOT_BEGUN, NativeNode, NodeId, PyNode};
pub use event::{
    ApiId, Detail, Event, EventKind, FLAG_CAPTURED, FLAG_ESTIMATED, FLAG_UNBACKED, NO_DEVICE, NO_SEQ,
    ThreadId, TrackerState,
};
pub use links::Link;
pub use meta::{Counter, Counters, End, EndReason, Meta, Value};
pub use symbols::{AddressNames, ModuleNames, NamedFrame};

/// Version of everything in this crate. A reader refuses a file whose version it does not know; within a version,
/// unknown block kinds, columns, event kinds and metadata keys are skipped and counted, never misread.
pub const FORMAT_VERSION: u32 = 1;
