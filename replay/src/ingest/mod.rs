//! A trace as files give it: blocks, and the ring beside them.
//!
//! Constraint: definitions come after their use, so sites are known only when the file has been read once; and this crate
//! opens nothing itself. Consequence: the caller gives a way to open the trace from its start, and it is read twice: first
//! definitions, metadata and end, then the events; each time the rest is passed over packed, which costs next to nothing.

pub(crate) mod definitions;
pub(crate) mod event_reader;
pub(crate) mod losses;
pub(crate) mod merger;
pub(crate) mod metal_totals;
pub(crate) mod prescan;
pub(crate) mod trace_head;

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::CorruptRegion;
use gpumemtrace_format::ring::RingImage;

pub use self::{
    definitions::Definitions,
    event_reader::{OpenTrace, TraceBody, read_events},
    losses::{MissingEvents, incompleteness, missing},
    merger::OrderSummary,
    trace_head::{RingProblem, TraceHead},
};
pub(crate) use crate::ingest::event_reader::read_together;

/// Most damaged places that are kept.
const MAX_DAMAGE: usize = 100;

/// What stands beside the trace.
#[derive(Debug)]
pub enum RingFile {
    /// No such file.
    Absent,
    /// There is one, and it cannot be used: why.
    Unusable(String),
    /// This.
    Loaded(Box<RingImage>),
}

/// A trace to read.
pub struct Input<'a> {
    /// As the user named it.
    pub path: &'a str,
    /// Opens it from its start; the same bytes each time.
    pub open: &'a OpenTrace<'a>,
    /// Beside it. To be read *before* the trace is opened, so that what moves from one to the other meanwhile is seen twice
    /// and not never.
    pub ring: RingFile,
    /// The recorder still holds the file.
    pub is_locked: bool,
    /// The files that it consists of; may be empty where it is one.
    pub files: Vec<FileSpan>,
    /// Files that belong to the trace and are not there, a sentence each.
    pub absent: Vec<String>,
}

/// A file of a trace in parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSpan {
    /// As a user would find it.
    pub name: String,
    /// Where it begins in the whole, in bytes.
    pub start: u64,
    /// How many of its bytes are left out.
    pub skipped: u64,
}

/// The end of a file, inside a block.
#[derive(Clone, Copy, Debug)]
pub struct TruncatedEnd {
    /// Where the block begins, in bytes.
    pub offset: u64,
    /// What it was going to hold, if that much is there.
    pub kind: Option<BlockKind>,
}

impl TruncatedEnd {
    /// True where the ring file holds what the block was going to: the recorder lets go of records only when their block is
    /// whole. Metadata and modules are in no ring.
    pub(super) fn is_in_ring(self) -> bool {
        matches!(
            self.kind,
            Some(
                BlockKind::EVENTS
                    | BlockKind::CODES
                    | BlockKind::PY_NODES
                    | BlockKind::FRAME_LINKS
                    | BlockKind::NATIVE_NODES
                    | BlockKind::END
            )
        )
    }
}

/// Places of a file that could not be used.
#[derive(Clone, Debug, Default)]
pub struct DamageList {
    /// The first ones.
    pub first: Vec<CorruptRegion>,
    /// How many there are.
    pub count: u64,
}

impl DamageList {
    pub(crate) fn add(&mut self, damage: CorruptRegion) {
        self.count += 1;
        if self.first.len() < MAX_DAMAGE {
            self.first.push(damage);
        }
    }
}
