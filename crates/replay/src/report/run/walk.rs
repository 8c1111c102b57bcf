//! Events and blocks as [`Analysis::walk`](crate::Analysis::walk) passes them to exports.

use gpumemtrace_format::{Event, ThreadId};

/// An event of a run, and what the analysis knows of it.
#[derive(Clone, Copy, Debug)]
pub struct WalkedEvent<'a> {
    /// The event as recorded.
    pub event: &'a Event,
    /// Nanoseconds since the start of recording; never less than that of the event before.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Its stack, for [`Analysis::sites_of_stacks`](crate::Analysis::sites_of_stacks). Stacks are
    /// numbered densely, and equally in every walk.
    pub stack: u32,
    /// The number of its call site. Several stacks may share one.
    pub site: u32,
    /// The name of a mark, of a phase or of an NVTX range that begins. `None` for other events, or
    /// if the trace lacks it.
    pub name: Option<&'a str>,
    /// False for an event before the window, which is passed so that exports can build state.
    pub is_inside: bool,
    /// The memory that it allocated or freed.
    pub changes: &'a [BlockChange],
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// The block is live from now on.
    Allocated(WalkedBlock),
    /// The block is no longer live.
    Freed(WalkedBlock),
    /// The address was allocated again: the trace lacks the free of this block.
    Lost(WalkedBlock),
}

/// Memory that is or was live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedBlock {
    /// The allocator that it came from.
    pub layer: BlockLayer,
    /// Ordinal of the device; [`NO_DEVICE`](gpumemtrace_format::NO_DEVICE) if unknown.
    pub device: u8,
    /// Address, or a handle that is unique among the live blocks of its layer and device.
    pub addr: u64,
    /// Bytes, rounded up by the allocator.
    pub size_bytes: u64,
    /// Bytes that the program asked for, if PyTorch's tracker reported them.
    pub requested_bytes: Option<u64>,
    /// The stream it belongs to, if the tracker reported it.
    pub stream: Option<u64>,
    /// The pool it belongs to, if the tracker reported it: both halves of PyTorch's `MempoolId_t`,
    /// the first in the upper 32 bits; 0 is the default pool.
    pub pool: Option<u64>,
    /// The stack that allocated it.
    pub stack: u32,
    /// The call site that allocated it.
    pub site: u32,
    /// Nanoseconds from the start of recording to its allocation.
    pub time_ns: u64,
    /// Number of steps begun at its allocation.
    pub step: u32,
    /// Sequence number of the event that allocated it.
    pub seq: u64,
    /// The thread that allocated it.
    pub thread: ThreadId,
}

/// The allocator that a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockLayer {
    /// PyTorch's caching allocator for devices.
    Torch,
    /// Device memory from the driver, which includes the segments of PyTorch's allocator.
    Driver,
    /// Page-locked memory of the host.
    Host,
    /// Managed memory, which migrates between host and devices.
    Managed,
    /// Memory of another process or another API.
    Foreign,
}

/// A segment of PyTorch's allocator, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedSegment {
    /// Ordinal of the device.
    pub device: u8,
    /// Address of its first byte.
    pub addr: u64,
    /// Length of it in bytes.
    pub bytes: u64,
    /// The stream that it serves, if known.
    pub stream: Option<u64>,
    /// The pool that it serves, if known; as in [`WalkedBlock::pool`].
    pub pool: Option<u64>,
    /// A piece that was mapped into an expandable segment: the next piece may follow it directly.
    pub is_expandable: bool,
    /// The stack that requested it.
    pub stack: u32,
    /// Nanoseconds from the start of recording to its allocation.
    pub time_ns: u64,
}

/// A change of the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentChange {
    /// The segment exists from now on.
    Added(WalkedSegment),
    /// The segment, or this part of it, no longer exists.
    Removed(WalkedSegment),
}

/// The state at the end of a walk.
#[derive(Debug, Default)]
pub struct WalkEnd {
    /// The live blocks at the end of the window, by layer, device and address.
    pub live: Vec<WalkedBlock>,
    /// Number of events inside the window.
    pub events: u64,
    /// Times of the first and the last event inside the window, in nanoseconds since the start of
    /// recording; `None` if it has no events.
    pub span_ns: Option<(u64, u64)>,
    /// False if the run ended before the moment at which the window begins.
    pub since_reached: bool,
    /// False if the run ended before the moment at which the window ends.
    pub until_reached: bool,
}
