//! The table of allocations: each block with its end.

use parquet::basic::Encoding;

use crate::file::cell::Text;
use crate::file::table::table;

table! {
    /// A block, from its allocation to its free.
    "allocations", AllocationRow, AllocationBuffer {
        /// The allocator: `torch` for blocks of PyTorch, `driver` for device memory of the driver
        /// (which includes PyTorch's segments), `host`, `managed` or `foreign`.
        layer: Text,
        /// Ordinal of the GPU. Null for memory that is on no known GPU.
        device: Option<i64>,
        /// Address, or a handle.
        address: Option<i64> = Some(Encoding::PLAIN),
        /// Bytes of the block, as the allocator rounded them.
        size_bytes: Option<i64> = Some(Encoding::PLAIN),
        /// Bytes that the program requested. Null without PyTorch's tracker.
        requested_bytes: Option<i64> = Some(Encoding::PLAIN),
        /// The handle of the CUDA stream. 0 is the default stream.
        stream: Option<i64>,
        /// PyTorch's pool, as in `events`.
        pool: Option<i64>,
        /// The stack that allocated it, in table `stacks`.
        stack: i64,
        /// The call site that allocated it, in table `sites`.
        site: Option<i64>,
        /// The thread that allocated it.
        thread: i64,
        /// `seq` of the event that allocated it.
        start_seq: Option<i64>,
        /// Nanoseconds from the start of recording to its allocation.
        start_ns: i64,
        /// Number of steps begun at its allocation. Null in a run without steps.
        start_step: Option<i64>,
        /// `freed`; `live` at the end of the window; or `lost`, if the address was allocated again
        /// while the trace lacks the free.
        state: Text,
        /// `seq` of the event that freed it. Null unless it was freed.
        end_seq: Option<i64>,
        /// Nanoseconds from the start of recording to its free. Null unless it was freed.
        end_ns: Option<i64>,
        /// Number of steps begun at its free. Null unless it was freed.
        end_step: Option<i64>,
        /// The stack that freed it, in table `stacks`. Null unless it was freed.
        end_stack: Option<i64>,
    }
}
