//! The [`CacheBackend`] of a real device: driver calls and trace events.
//!
//! Blocks that several streams use need an event for nearly every free, so completed events are
//! kept and recorded again.

use std::ffi::c_int;

use crate::driver::driver;
use crate::trace_events;
use gpumemtrace_caching_allocator::{AllocatorTraceEntry, CacheBackend, DriverError, EventId, TraceAction};

/// One CUDA device, and the spare events for it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) ordinal: c_int,
    spare_events: Vec<u64>,
    has_announced_allocator: bool,
}

impl Gpu {
    pub(crate) fn new(ordinal: c_int) -> Self {
        Self { ordinal, spare_events: Vec::new(), has_announced_allocator: false }
    }
}

impl CacheBackend for Gpu {
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, DriverError> {
        let driver = driver().map_err(DriverError)?;
        driver.alloc(self.ordinal, bytes as usize, during_capture).map_err(DriverError)
    }

    fn free(&mut self, addr: u64) {
        // An error (the driver is shutting down) has no receiver; the trace has the driver call.
        let _ = driver().and_then(|driver| driver.free(self.ordinal, addr));
    }

    fn record_event(&mut self, stream: u64) -> Result<EventId, DriverError> {
        let driver = driver().map_err(DriverError)?;
        let event = match self.spare_events.pop() {
            Some(event) => event,
            None => driver.create_event(self.ordinal).map_err(DriverError)?,
        };
        match driver.record_event(self.ordinal, event, stream) {
            Ok(()) => Ok(EventId(event)),
            Err(error) => {
                self.spare_events.push(event);
                Err(DriverError(error))
            }
        }
    }

    fn is_event_done(&mut self, event: EventId) -> bool {
        driver().is_ok_and(|driver| driver.query_event(self.ordinal, event.0).is_ok())
    }

    fn wait_for_event(&mut self, event: EventId) -> bool {
        driver().is_ok_and(|driver| driver.wait_for_event(self.ordinal, event.0).is_ok())
    }

    fn recycle_event(&mut self, event: EventId) {
        self.spare_events.push(event.0);
    }

    fn device_bytes(&mut self) -> u64 {
        driver().and_then(|driver| driver.memory(self.ordinal)).map_or(0, |(_, total)| total)
    }

    fn trace(&mut self, entry: AllocatorTraceEntry) {
        // The first driver call attaches to PyTorch's own allocator, so this event follows it.
        let is_segment = entry.action == TraceAction::SegmentAlloc;
        if is_segment && !std::mem::replace(&mut self.has_announced_allocator, true) {
            trace_events::emit_own_allocator();
        }
        trace_events::emit_entry(self.ordinal, &entry);
    }
}
