//! The table of events.

use parquet::basic::Encoding;

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// An event of the trace.
    "events", EventRow, EventBuffer {
        /// Place in the order of the process. A missing number is a lost event. Null for a driver
        /// call that was in flight when the process died.
        seq: Option<i64>,
        /// Nanoseconds since the start of recording. Never less than in the row before.
        time_ns: i64,
        /// Number of steps begun. Null in a run without steps.
        step: Option<i64>,
        /// What happened, as in `gpumemtrace dump`: `block_alloc`, `segment_free`, `mark`...
        kind: Text,
        /// Ordinal of the GPU.
        device: Option<i64>,
        /// Address on the device, or in host memory, or a handle.
        address: Option<i64> = Some(Encoding::PLAIN),
        /// Bytes: of a block as PyTorch rounded it, else as requested.
        size_bytes: Option<i64> = Some(Encoding::PLAIN),
        /// Bytes of a block as the program requested them. Null without PyTorch's tracker.
        requested_bytes: Option<i64> = Some(Encoding::PLAIN),
        /// Bytes that PyTorch has reserved after the event. Only of blocks.
        reserved_bytes: Option<i64>,
        /// The handle of the CUDA stream. 0 is the default stream.
        stream: Option<i64>,
        /// PyTorch's pool: both halves of its id, the first in the upper 32 bits. 0 is the default
        /// pool.
        pool: Option<i64>,
        /// The stack, in table `stacks`.
        stack: i64,
        /// The thread, by its number in the operating system.
        thread: i64,
        /// The function of the driver that was called.
        api: Option<Text>,
        /// What a driver call returned: 0 is success. Null for other events, and for a call that
        /// did not return.
        result: Option<i64>,
        /// Name of a mark, of a phase, or of an NVTX range that begins.
        name: Option<Text>,
    }
}
