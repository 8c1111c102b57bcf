//! The cache's device: the driver, and the trace.
//!
//! Constraint: events are made for nearly every block that streams share. Consequence: those that are done are recorded
//! again.

use std::ffi::c_int;

use crate::cache::{Entry, EventId, Failure, Host, Step};
use crate::driver::driver;
use crate::trace_events;

/// One device of the driver's.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) ordinal: c_int,
    spare_events: Vec<u64>,
    is_told: bool,
}

impl Gpu {
    pub(crate) fn new(ordinal: c_int) -> Self {
        Self { ordinal, spare_events: Vec::new(), is_told: false }
    }
}

impl Host for Gpu {
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, Failure> {
        let driver = driver().map_err(Failure)?;
        driver.alloc(self.ordinal, bytes as usize, during_capture).map_err(Failure)
    }

    fn free(&mut self, addr: u64) {
        // A failure (the driver is shutting down) has no one to be told to; the call itself is in the trace.
        let _ = driver().and_then(|driver| driver.free(self.ordinal, addr));
    }

    fn mark(&mut self, stream: u64) -> Result<EventId, Failure> {
        let driver = driver().map_err(Failure)?;
        let event = match self.spare_events.pop() {
            Some(event) => event,
            None => driver.create_event(self.ordinal).map_err(Failure)?,
        };
        match driver.record_event(self.ordinal, event, stream) {
            Ok(()) => Ok(EventId(event)),
            Err(error) => {
                self.spare_events.push(event);
                Err(Failure(error))
            }
        }
    }

    fn is_done(&mut self, event: EventId) -> bool {
        driver().is_ok_and(|driver| driver.query_event(self.ordinal, event.0).is_ok())
    }

    fn wait(&mut self, event: EventId) -> bool {
        driver().is_ok_and(|driver| driver.wait_for_event(self.ordinal, event.0).is_ok())
    }

    fn forget(&mut self, event: EventId) {
        self.spare_events.push(event.0);
    }

    fn tell(&mut self, entry: Entry) {
        // After the driver's first call, at which PyTorch's own allocator was looked for.
        if entry.step == Step::SegmentAlloc && !std::mem::replace(&mut self.is_told, true) {
            trace_events::first_hand();
        }
        trace_events::entry(self.ordinal, &entry);
    }
}
