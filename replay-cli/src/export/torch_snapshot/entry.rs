//! One entry of a device's trace in a snapshot.

/// What happened, in the words of PyTorch's snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SnapshotAction {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    OutOfMemory,
    UserDefined,
}

impl SnapshotAction {
    /// All actions, each at its number.
    pub(super) const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::OutOfMemory,
        Self::UserDefined,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::OutOfMemory => "oom",
            Self::UserDefined => "user_defined",
        }
    }
}

/// An entry of a device's trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SnapshotEntry {
    pub action: SnapshotAction,
    /// The device; `None` for an entry of all devices.
    pub device: Option<u8>,
    /// Address; of an out-of-memory error the free bytes of the device.
    pub addr: u64,
    /// Bytes requested; of a segment all bytes.
    pub size: u64,
    pub stream: u64,
    /// Both halves of the pool's id in one number; `None` if unknown.
    pub pool: Option<u64>,
    /// The stack; `None` without one.
    pub stack: Option<u32>,
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    /// Text of a `user_defined` entry.
    pub label: Option<String>,
}
