//! What a reader finds in a trace file, or why it finds nothing.

use thiserror::Error;

use crate::FORMAT_VERSION;
use crate::block::{BlockHeader, BlockKind};
use crate::defs::{CodeDef, ModuleDef, NativeNode, NodeId, PyNode};
use crate::event::Event;
use crate::index::{Index, Tail};
use crate::links::Link;
use crate::meta::{End, Meta};
use crate::symbols::ModuleNames;

/// Why a file cannot be read at all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No bytes.
    #[error("is empty: the traced program never reached its first GPU call, or the disk was full")]
    Empty,
    /// Something else.
    #[error("is not a gpumemtrace trace")]
    NotATrace,
    /// From the future.
    #[error("has trace version {0}; this gpumemtrace reads version {FORMAT_VERSION}: use a newer one")]
    Version(u32),
    /// The system refused.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// One thing found in the file.
#[derive(Debug, PartialEq)]
pub enum Item {
    /// Metadata, to be merged over what came before.
    Meta(Meta),
    /// Events, grouped by thread; `seq` gives the order.
    Events(Vec<Event>),
    /// Code objects.
    Codes(Vec<CodeDef>),
    /// Python frames.
    PyNodes(Vec<PyNode>),
    /// How Python frames came to be under their callers.
    Links(Vec<(NodeId, Link)>),
    /// Native frames.
    NativeNodes(Vec<NativeNode>),
    /// Loaded modules.
    Modules(Vec<ModuleDef>),
    /// Names of native addresses.
    Names(Vec<ModuleNames>),
    /// The process closed the trace.
    End(End),
    /// Sums of what came before.
    Index(Index),
    /// Where the last sums are.
    Tail(Tail),
    /// A block that was not asked for.
    Skipped(BlockKind),
    /// A block of a kind this version does not know.
    UnknownBlock(BlockKind),
    /// Bytes that are not what they should be; reading goes on after them.
    Damage(Damage),
    /// The file ends inside a block.
    Cut {
        /// Where the block began, in bytes.
        offset: u64,
        /// What it was going to hold, if that much is there.
        kind: Option<BlockKind>,
    },
}

/// A place in the file that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// How many bytes were passed over.
    pub len: u64,
    /// What is wrong with it.
    pub why: String,
    /// True for a block of which only the payload cannot be used, and where the system refused to read on; false for what no
    /// block header begins, which every reading meets.
    pub is_in_block: bool,
}

/// Which blocks are unpacked; of the others only the header is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    All,
    EventsOnly,
    AllButEvents,
}

impl Wanted {
    pub(crate) fn has(self, kind: BlockKind) -> bool {
        match self {
            Self::All => true,
            Self::EventsOnly => kind.is_events(),
            Self::AllButEvents => !kind.is_events(),
        }
    }
}

/// What was unpacked so far.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    definition_bytes: u64,
    event_bytes: u64,
}

impl Unpacked {
    /// Adds a block that ends at this place in the file; refuses it where that is too much.
    pub(crate) fn take(&mut self, header: &BlockHeader, end: u64) -> Result<(), String> {
        let (bytes, most_bytes, what) = match header.kind {
            kind if kind.is_events() => (&mut self.event_bytes, max_event_bytes(end), "events"),
            kind if kind.is_definitions() => {
                (&mut self.definition_bytes, max_definition_bytes(end), "definitions")
            }
            _ => return Ok(()),
        };
        if *bytes + header.raw_len() as u64 > most_bytes {
            return Err(format!("it unpacks to more {what} than a file of this size can need"));
        }
        *bytes += header.raw_len() as u64;
        Ok(())
    }
}

/// As [`max_definition_bytes`], of events: those of the densest loop, whose times alone differ, pack to a tenth. Without a limit a
/// megabyte could claim a billion live blocks.
pub const fn max_event_bytes(read_bytes: u64) -> u64 {
    (64 << 20) + read_bytes.saturating_mul(256)
}

/// How many bytes of definitions, unpacked, a reader takes from a file of which it has read so much. A recorder's definitions
/// pack to about a tenth; without a limit, 100 KB of zeros would unpack to gigabytes.
pub const fn max_definition_bytes(read_bytes: u64) -> u64 {
    (16 << 20) + read_bytes.saturating_mul(32)
}
