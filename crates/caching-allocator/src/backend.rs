//! What the caching allocator needs of its device and of the trace.
//!
//! The allocator's rules are tested with ten million requests, which no driver could serve. So the
//! allocator reaches driver and trace only through [`CacheBackend`].

use super::ids::{EventId, PoolId};

/// The `CUresult` of a failed driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverError(
    /// The code of the driver's error.
    pub i32,
);

/// `CUDA_ERROR_OUT_OF_MEMORY`, also returned when the memory limit is reached.
pub const OUT_OF_MEMORY: DriverError = DriverError(2);
/// `CUDA_ERROR_NOT_SUPPORTED`, of a backend without expandable segments.
pub const NOT_SUPPORTED: DriverError = DriverError(801);

/// What happened to a block or segment: the actions of PyTorch's own `AllocatorTraceEntry`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceAction {
    /// A block was handed out.
    Alloc,
    /// The program freed a block.
    FreeRequested {
        /// The block is free now; false if an event on another stream is outstanding.
        is_immediate: bool,
    },
    /// The last outstanding event of a freed block has completed; the block is free now.
    FreeCompleted,
    /// The driver allocated a segment.
    SegmentAlloc,
    /// A segment is about to be returned to the driver.
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap,
}

/// One action, and the block, segment or pages that it concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorTraceEntry {
    /// The action that this entry describes.
    pub action: TraceAction,
    /// Address of the block, segment or first page.
    pub addr: u64,
    /// Rounded size of the block, or size of the segment or pages.
    pub bytes: u64,
    /// Bytes that the program requested; 0 for a segment.
    pub requested_bytes: u64,
    /// The stream that the block was allocated for.
    pub stream: u64,
    /// The pool that the block belongs to.
    pub pool: PoolId,
    /// Bytes of live tensors after the action.
    pub allocated_bytes: u64,
    /// Bytes of segments after the action.
    pub reserved_bytes: u64,
}

/// A device and the trace that its allocator writes to.
pub trait CacheBackend {
    /// Allocates device memory. `during_capture` is true if a CUDA graph may be being captured.
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, DriverError>;
    /// Frees memory from [`alloc`](Self::alloc).
    fn free(&mut self, addr: u64);
    /// Records an event on a stream.
    fn record_event(&mut self, stream: u64) -> Result<EventId, DriverError>;
    /// Whether all work before the event has completed.
    fn is_event_done(&mut self, event: EventId) -> bool;
    /// Blocks until the event has completed. False if the driver could not wait.
    fn wait_for_event(&mut self, event: EventId) -> bool;
    /// Takes back an event that the allocator no longer needs.
    fn recycle_event(&mut self, event: EventId);
    /// Called after each action, except for [`TraceAction::SegmentFree`], which precedes the free.
    fn trace(&mut self, entry: AllocatorTraceEntry);

    /// Bytes of memory that the device has, for expandable segments and memory fractions.
    fn device_bytes(&mut self) -> u64 {
        0
    }

    /// Reserves addresses without memory, for an expandable segment.
    fn reserve_addresses(&mut self, _bytes: u64) -> Result<u64, DriverError> {
        Err(NOT_SUPPORTED)
    }

    /// Gives back addresses from [`reserve_addresses`](Self::reserve_addresses).
    fn release_addresses(&mut self, _addr: u64, _bytes: u64) {}

    /// Maps new memory at reserved addresses, in pages of `page_bytes`: all of it or nothing.
    fn map(&mut self, _addr: u64, _bytes: u64, _page_bytes: u64) -> Result<(), DriverError> {
        Err(NOT_SUPPORTED)
    }

    /// Waits for the stream, and gives the memory of these pages back.
    fn unmap(&mut self, _addr: u64, _bytes: u64, _page_bytes: u64, _stream: u64) {}
}
