//! Reading of a trace: its blocks, and the ring file beside it.
//!
//! A definition may follow its first use, so call sites are known only after one full reading. The
//! trace is read twice: [`TraceHead::read`] takes definitions, metadata and the end, then
//! [`read_events`] takes the events. Each reading skips the other's blocks without decompressing
//! them. The crate opens no files itself; [`Input`] carries a function that opens the trace.

pub(crate) mod definitions;
pub(crate) mod event_batch;
pub(crate) mod event_reader;
pub(crate) mod losses;
pub(crate) mod merger;
pub(crate) mod metal_totals;
pub(crate) mod notebook_cells;
pub(crate) mod survey;
pub(crate) mod trace_head;

use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::CorruptRegion;
use gpumemtrace_format::ring::RingImage;

pub use self::{
    definitions::Definitions,
    event_reader::{TraceBody, read_events},
    losses::{MissingEvents, find_losses},
    merger::OrderSummary,
    survey::survey_events,
    trace_head::{RingProblem, TraceHead},
};
pub(crate) use crate::ingest::event_reader::{OpenTrace, read_event_slices};

/// Damaged regions that are kept for the report; further ones are only counted.
const MAX_DAMAGE: usize = 100;

/// The ring file beside a trace.
#[derive(Debug)]
pub enum RingFile {
    /// No ring file exists.
    Absent,
    /// The ring file cannot be used. The text completes "the ring file beside the trace ...".
    Unusable(String),
    /// The ring file was read.
    Loaded(Box<RingImage>),
}

/// A trace to read.
pub struct Input<'a> {
    /// The path as the user gave it.
    pub path: &'a str,
    /// Opens the trace from its start. Each call must yield the same bytes.
    pub open: &'a OpenTrace<'a>,
    /// The ring file. Read it *before* opening the trace: records that the writer thread moves to
    /// the trace meanwhile then appear twice instead of never.
    pub ring: RingFile,
    /// The recorder still holds its lock on the trace.
    pub is_locked: bool,
    /// The parts of the trace in order. May be empty for a trace in one file.
    pub files: Vec<FileSpan>,
    /// Files of the trace that are missing, cut or unreadable, one sentence each.
    pub absent: Vec<String>,
}

/// One part of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSpan {
    /// The file name to show.
    pub name: String,
    /// Offset of the part in the concatenated trace, in bytes.
    pub start: u64,
    /// Bytes at the beginning of the file that the concatenated trace omits.
    pub skipped: u64,
}

/// A block that the end of the file cuts off.
#[derive(Clone, Copy, Debug)]
pub struct TruncatedEnd {
    /// Offset of the block's first byte.
    pub offset: u64,
    /// Kind of the block; `None` if its header is cut off too.
    pub kind: Option<BlockKind>,
}

impl TruncatedEnd {
    /// True if the ring file repeats the records of the block: the recorder frees ring records
    /// only after it wrote their complete block. Metadata and modules never pass through the ring.
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

/// Damaged regions of a trace.
#[derive(Clone, Debug, Default)]
pub struct DamageList {
    /// The first damaged regions, in order of their offsets.
    pub first: Vec<CorruptRegion>,
    /// Count of all damaged regions.
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
