//! The table of segments.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// A segment of PyTorch's allocator at one moment.
    "segments", SegmentRow, SegmentBuffer {
        /// Why this moment is here: `peak` of allocated bytes, `peak_reserved`, `largest_gap`,
        /// `end` of the program, `oom`, `mark`, or `interval` (moments at even distances).
        moment: Text,
        /// The moment, in nanoseconds since the start of recording.
        time_ns: i64,
        /// `seq` of the last event of a tensor block on this GPU up to the moment. Several events
        /// may have the same time; the blocks of the moment are those with `start_seq <= seq` and
        /// without `end_seq <= seq`.
        seq: Option<i64>,
        /// Number of steps begun. Null in a run without steps.
        step: Option<i64>,
        /// Ordinal of the GPU.
        device: i64,
        /// Address of the segment, or of a mapped piece of an expandable segment.
        address: Option<i64>,
        /// Bytes of the segment.
        size_bytes: Option<i64>,
        /// Bytes of the live blocks in it.
        allocated_bytes: i64,
        /// Number of the live blocks in it.
        blocks: i64,
        /// The stream that it serves.
        stream: Option<i64>,
        /// The pool that it serves, as in `events`. Null if PyTorch does not report it.
        pool: Option<i64>,
        /// True for a piece of an expandable segment.
        is_expandable: bool,
    }
}
