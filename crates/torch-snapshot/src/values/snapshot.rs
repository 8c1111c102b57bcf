//! The parts of a snapshot.

use super::{EventRun, EventStore, StackTable, TextId, TextTable, TorchStack};

/// What a block is used for at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndBlockState {
    Allocated,
    /// Freed, and still used by another stream.
    PendingFree,
    Inactive,
}

/// A piece of a segment at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRecord {
    /// `None` in files of older versions: blocks follow each other.
    pub(crate) address: Option<u64>,
    pub(crate) size: u64,
    pub(crate) requested: Option<u64>,
    pub(crate) state: EndBlockState,
    pub(crate) stack: Option<TorchStack>,
}

/// A segment at the end.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRecord {
    pub(crate) device: u8,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    /// The packed id of its pool, or [`gpumemtrace_format::event::NO_POOL`].
    pub(crate) pool: u64,
    pub(crate) is_expandable: bool,
    pub(crate) stack: Option<TorchStack>,
    pub(crate) blocks: Vec<BlockRecord>,
}

/// The begin or the end of a `record_function` range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Annotation {
    pub(crate) name: TextId,
    pub(crate) is_begin: bool,
    pub(crate) time_us: u64,
}

/// Settings of the allocator that decide the sizes of blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AllocatorSettings {
    /// `PYTORCH_CUDA_ALLOC_CONF`; `None` if the file has no settings.
    pub(crate) conf: Option<String>,
    /// Blocks of this size and above are never split; `None` for no such size.
    pub(crate) max_split_bytes: Option<u64>,
    pub(crate) expandable_segments: bool,
    /// `roundup_power2_divisions` for sizes from 1 MiB on, each entry for a power of two.
    pub(crate) roundup_divisions: Vec<u64>,
    /// The size of the ring buffer; `None` in files of most versions.
    pub(crate) max_entries: Option<u64>,
    /// Whether the ring buffer overwrote events; `None` in files of most versions.
    pub(crate) overflowed: Option<bool>,
}

/// What was passed over while reading.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SnapshotCounts {
    /// Events with an action that this version does not know.
    pub(crate) unknown_events: u64,
    /// Distinct keys that this version does not know.
    pub(crate) unknown_keys: u64,
    /// Entries of lists that are no event, segment or block.
    pub(crate) strange_entries: u64,
    /// Events of pinned host memory.
    pub(crate) host_events: u64,
    pub(crate) dropped_texts: u64,
}

/// Everything of a snapshot that a trace needs.
#[derive(Debug, Default)]
pub(crate) struct TorchSnapshot {
    pub(crate) texts: TextTable,
    pub(crate) stacks: StackTable,
    pub(crate) events: EventStore,
    /// The events of each device, by ordinal.
    pub(crate) traces: Vec<Vec<EventRun>>,
    pub(crate) segments: Vec<SegmentRecord>,
    pub(crate) annotations: Vec<Annotation>,
    pub(crate) settings: AllocatorSettings,
    pub(crate) counts: SnapshotCounts,
    /// It has the segments at the end. PyTorch always writes them.
    pub(crate) has_segments: bool,
    /// It has events that only torch_npu writes.
    pub(crate) has_npu_events: bool,
    /// The oldest and the newest minor version of PyTorch 2 that may have written it; `None` if it
    /// has no keys to tell, or those of no known version.
    pub(crate) releases: Option<(u32, u32)>,
    /// `gpumemtrace export torch-snapshot` wrote it.
    pub(crate) is_exported: bool,
}

impl Default for TextTable {
    fn default() -> Self {
        Self::with_first(super::keys::ALL)
    }
}
