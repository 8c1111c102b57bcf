//! What a reader finds in a trace file, or why it cannot read it.

use thiserror::Error;

use crate::FORMAT_VERSION;
use crate::block::BlockKind;
use crate::definitions::{CodeDef, FrameLink, ModuleDef, ModuleNames, NativeNode, PyNode};
use crate::event::Event;
use crate::ids::NodeId;
use crate::index::{Index, TraceTail};
use crate::meta::{End, Meta};

/// Why a file cannot be read at all. The text continues a sentence that begins with the file's
/// name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No bytes, or not even a whole file header.
    #[error("is empty: the traced program never reached its first GPU call, or the disk was full")]
    Empty,
    /// The file does not begin like a trace.
    #[error("is not a gpumemtrace trace")]
    NotATrace,
    /// A version that this crate does not read.
    #[error("has trace version {0}, but this gpumemtrace reads version {FORMAT_VERSION}: use a newer one")]
    Version(u32),
    /// Opening or reading failed.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// One block of a trace, or the damage that was found in its place.
#[derive(Debug, PartialEq)]
pub enum Item {
    /// Metadata, to be merged into what came before.
    Meta(Meta),
    /// Events, grouped by thread; `seq` is their order.
    Events(Vec<Event>),
    /// Definitions of Python code objects.
    Codes(Vec<CodeDef>),
    /// Definitions of Python frames.
    PyNodes(Vec<PyNode>),
    /// How the Python frames before were called.
    FrameLinks(Vec<(NodeId, FrameLink)>),
    /// Definitions of native frames.
    NativeNodes(Vec<NativeNode>),
    /// Modules that the process had loaded.
    Modules(Vec<ModuleDef>),
    /// Names of native addresses.
    Names(Vec<ModuleNames>),
    /// How the process ended.
    End(End),
    /// Summary of what came before.
    Index(Index),
    /// Where the last INDEX and END are.
    Tail(TraceTail),
    /// A block that the filter of the reader skips.
    Skipped(BlockKind),
    /// A block of a kind this version does not know.
    UnknownBlock(BlockKind),
    /// Bytes that cannot be used; reading continues after them.
    CorruptRegion(CorruptRegion),
    /// The file ends inside a block.
    TruncatedBlock {
        /// Offset of the block in the file.
        offset: u64,
        /// What the block was going to hold; `None` if its header ends before that.
        kind: Option<BlockKind>,
    },
}

/// Bytes of the file that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorruptRegion {
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes that were skipped.
    pub len: u64,
    /// What is wrong with them.
    pub why: String,
    /// True if the block header is valid and only the payload is unusable, or if reading failed.
    /// False for bytes without a block header, which every reader finds whatever blocks it skips.
    pub is_in_block: bool,
}
