//! The table of steps.

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// What one step did with one allocator on one device.
    "steps", StepRow, StepBuffer {
        /// Number of the step. 0 is the time before the first one. A run without steps has one
        /// row per allocator and device, with null.
        step: Option<i64>,
        /// The allocator, as in `allocations`.
        layer: Text,
        /// Ordinal of the GPU.
        device: Option<i64>,
        /// Start of the step, or of the window in it, in nanoseconds since the start of recording.
        start_ns: i64,
        /// End of the step, or of the window in it.
        end_ns: i64,
        /// Blocks allocated in the step.
        allocations: i64,
        /// Bytes of the blocks allocated in the step.
        allocated_bytes: i64,
        /// Blocks freed in the step.
        frees: i64,
        /// Bytes of the blocks freed in the step.
        freed_bytes: i64,
        /// Most live bytes during the step.
        peak_bytes: i64,
        /// When the live bytes first reached this peak.
        peak_ns: i64,
        /// `seq` of the event that reached this peak. Null if it was reached before the step began.
        peak_seq: Option<i64>,
        /// Live bytes at its end.
        end_bytes: i64,
        /// Live blocks at its end.
        end_blocks: i64,
    }
}
