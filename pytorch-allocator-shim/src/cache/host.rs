//! What the cache asks of its device, and whom it tells what it does.
//!
//! Constraint: the rules of an allocator are tried by millions of made-up requests, which no driver would stand. Consequence:
//! the cache knows the driver and the trace by this trait only.

use super::pools::PoolId;

/// An event of the driver's that was recorded on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventId(pub(crate) u64);

/// Why the driver gave nothing: its `CUresult`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure(pub(crate) i32);

/// A step of the allocator, as PyTorch's own tracker would tell it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A block was handed out.
    Alloc,
    /// A block was given back; `at_once` if nobody waits for it.
    Free {
        /// Free from now on.
        at_once: bool,
    },
    /// A block that had been given back is free now.
    FreeCompleted,
    /// A segment came from the driver.
    SegmentAlloc,
    /// A segment goes back to the driver.
    SegmentFree,
}

/// What a step is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) step: Step,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// 0 for segments.
    pub(crate) requested_bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: PoolId,
    /// Held by tensors after the step.
    pub(crate) allocated_bytes: u64,
    /// In segments after the step.
    pub(crate) reserved_bytes: u64,
}

/// A device and a trace.
pub(crate) trait Host {
    /// Memory of the device; `during_capture` if a graph may be being captured.
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, Failure>;
    /// Gives it back.
    fn free(&mut self, addr: u64);
    /// Records an event on a stream.
    fn mark(&mut self, stream: u64) -> Result<EventId, Failure>;
    /// Whether everything before the event is done.
    fn is_done(&mut self, event: EventId) -> bool;
    /// Waits until it is. False if that cannot be said.
    fn wait(&mut self, event: EventId) -> bool;
    /// The event is not asked for any more.
    fn forget(&mut self, event: EventId);
    /// Told after each step; before it for what goes back to the driver.
    fn tell(&mut self, entry: Entry);
}
