//! The CUDA driver of a recorded run: it grants what the run got, at the same addresses.
//!
//! [`RecordedDriver::calls`] holds the driver calls that the run made for the next request, in
//! order. If the model asks for memory while the run next gives some back, the run's attempt had
//! failed, and so does the model's. Memory that one attempt gives back may come in any order.

use std::collections::{BTreeMap, VecDeque};

use gpumemtrace_caching_allocator::{
    AllocatorTraceEntry, CacheBackend, DriverError, EventId, OUT_OF_MEMORY, TraceAction,
};

/// More memory than any card has, so that no expandable segment ends too early.
const DEVICE_BYTES: u64 = 1 << 40;

/// A driver call of the run, with its address and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DriverCall {
    Alloc(u64, u64),
    Free(u64, u64),
    Map(u64, u64),
    Unmap(u64, u64),
}

impl DriverCall {
    fn returns_memory(self) -> bool {
        matches!(self, Self::Free(..) | Self::Unmap(..))
    }
}

/// The driver as it was recorded.
#[derive(Default)]
pub(crate) struct RecordedDriver {
    /// Calls of the run that the model must make in this request.
    pub(crate) calls: VecDeque<DriverCall>,
    /// The run got no memory for this request.
    pub(crate) request_fails: bool,
    /// Reserved ranges: segments, and what is mapped of expandable ones.
    pub(crate) segments: BTreeMap<u64, u64>,
    /// Bytes of each block when it was last taken, by address.
    pub(crate) blocks: BTreeMap<u64, u64>,
    /// The first call of this request that the run did not make.
    pub(crate) difference: Option<String>,
}

impl RecordedDriver {
    /// Grants a call, or refuses it because the run's attempt failed here.
    fn expect(&mut self, matches: impl Fn(DriverCall) -> bool, what: &str) -> Result<u64, DriverError> {
        match self.calls.front().copied() {
            Some(call @ (DriverCall::Alloc(addr, _) | DriverCall::Map(addr, _))) if matches(call) => {
                self.calls.pop_front();
                return Ok(addr);
            }
            Some(call) if call.returns_memory() => {}
            None if self.request_fails => {}
            other => self.report(format!("the model {what}, the run {other:?}")),
        }
        Err(OUT_OF_MEMORY)
    }

    /// Removes one of the next calls that give memory back.
    fn expect_return(&mut self, call: DriverCall) {
        let mut returns = self.calls.iter().take_while(|next| next.returns_memory());
        match returns.position(|next| *next == call) {
            Some(at) => {
                self.calls.remove(at);
            }
            None => self.report(format!("the model {call:x?}, the run {:x?}", self.calls.front())),
        }
    }

    fn report(&mut self, difference: String) {
        self.difference.get_or_insert(difference);
    }

    /// Adds a mapped range; ranges that touch are one.
    fn join(&mut self, addr: u64, mut bytes: u64) {
        bytes += self.segments.remove(&(addr + bytes)).unwrap_or(0);
        match self.segments.range_mut(..addr).next_back() {
            Some((start, length)) if start + *length == addr => *length += bytes,
            _ => {
                self.segments.insert(addr, bytes);
            }
        }
    }

    fn cut(&mut self, addr: u64, bytes: u64) {
        let Some((&start, &length)) = self.segments.range(..=addr).next_back() else { return };
        self.segments.remove(&start);
        if addr > start {
            self.segments.insert(start, addr - start);
        }
        if addr + bytes < start + length {
            self.segments.insert(addr + bytes, start + length - addr - bytes);
        }
    }
}

impl CacheBackend for RecordedDriver {
    fn alloc(&mut self, bytes: u64, _during_capture: bool) -> Result<u64, DriverError> {
        let matches = |call| matches!(call, DriverCall::Alloc(_, recorded) if recorded == bytes);
        let addr = self.expect(matches, &format!("needs a segment of {bytes} bytes"))?;
        self.segments.insert(addr, bytes);
        Ok(addr)
    }

    fn free(&mut self, addr: u64) {
        let bytes = self.segments.remove(&addr).unwrap_or(0);
        self.expect_return(DriverCall::Free(addr, bytes));
    }

    fn record_event(&mut self, _stream: u64) -> Result<EventId, DriverError> {
        Ok(EventId(0))
    }

    fn is_event_done(&mut self, _event: EventId) -> bool {
        true
    }

    fn wait_for_event(&mut self, _event: EventId) -> bool {
        true
    }

    fn recycle_event(&mut self, _event: EventId) {}

    fn trace(&mut self, entry: AllocatorTraceEntry) {
        if entry.action == TraceAction::Alloc {
            self.blocks.insert(entry.addr, entry.bytes);
        }
    }

    fn device_bytes(&mut self) -> u64 {
        DEVICE_BYTES
    }

    /// An expandable segment begins where the run next maps memory.
    fn reserve_addresses(&mut self, _bytes: u64) -> Result<u64, DriverError> {
        let mapped = self.calls.iter().find_map(|call| match call {
            DriverCall::Map(addr, _) => Some(*addr),
            _ => None,
        });
        if mapped.is_none() && !self.request_fails {
            self.report("the model needs an expandable segment, the run none".to_owned());
        }
        mapped.ok_or(OUT_OF_MEMORY)
    }

    fn map(&mut self, addr: u64, bytes: u64, _page_bytes: u64) -> Result<(), DriverError> {
        let matches = |call| call == DriverCall::Map(addr, bytes);
        self.expect(matches, &format!("maps {bytes} bytes at {addr:#x}"))?;
        self.join(addr, bytes);
        Ok(())
    }

    fn unmap(&mut self, addr: u64, bytes: u64, _page_bytes: u64, _stream: u64) {
        self.expect_return(DriverCall::Unmap(addr, bytes));
        self.cut(addr, bytes);
    }
}
