//! Values of a run over time, for viewers.

use crate::report::CauseKind;

/// Unused reserved bytes at one moment.
#[derive(Debug)]
pub struct GapPoint {
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes reserved and not requested.
    pub gap: u64,
    /// The gap by cause; all causes in the same order at each moment.
    pub causes: Vec<(CauseKind, u64)>,
}

/// A segment, or a mapped piece of an expandable one.
#[derive(Clone, Copy, Debug)]
pub struct SegmentPlace {
    /// Address of its first byte.
    pub addr: u64,
    /// Length in bytes, also of unused parts.
    pub bytes: u64,
    /// The stream that it serves.
    pub stream: u64,
    /// The pool that it serves; 0 is the default pool.
    pub pool: u64,
    /// A piece of an expandable segment.
    pub is_expandable: bool,
}

/// Blocks of one stack with equal bins of birth and death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSum {
    /// Bin in which they were allocated.
    pub birth: u16,
    /// Bin in which they were freed; the number of bins if they were not.
    pub death: u16,
    /// The stack, as an index in [`RunHistory::stacks`](crate::RunHistory::stacks).
    pub stack: u32,
    /// Sum of the bytes of these blocks.
    pub bytes: u64,
    /// Number of these blocks, at least 1.
    pub count: u64,
}
