//! A device with little memory that asserts the contract of the allocator. It panics if a segment
//! is freed twice or during a capture, or an event is recorded or queried during a capture. It also
//! panics if an event is recycled before it has completed, or a page is mapped twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{AllocatorTraceEntry, CacheBackend, DriverError, EventId, OUT_OF_MEMORY};

pub(super) const STREAMS: u64 = 4;
pub(super) const CAPACITY_BYTES: u64 = 512 << 20;
const FIRST_RESERVED: u64 = 0x100_0000_0000;

/// A call that the allocator made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum DeviceCall {
    Alloc(u64, u64),
    Free(u64),
    RecordEvent(u64, u64),
    Reserve(u64, u64),
    Release(u64),
    Map(u64, u64),
    Unmap(u64, u64),
}

#[derive(Debug, Default)]
pub(super) struct CheckedDevice {
    pub(super) segments: BTreeMap<u64, u64>,
    reserved: BTreeMap<u64, u64>,
    pages: BTreeSet<u64>,
    next_reserved: u64,
    pub(super) used_bytes: u64,
    pub(super) capturing: bool,
    /// Settings that free segments early do so during captures too, as in PyTorch.
    pub(super) may_free_in_capture: bool,
    pub(super) queues: [VecDeque<EventId>; STREAMS as usize],
    pub(super) not_done: BTreeSet<u64>,
    last_event: u64,
    pub(super) calls: Vec<DeviceCall>,
    pub(super) traced: Vec<AllocatorTraceEntry>,
}

impl CheckedDevice {
    pub(super) fn complete_up_to(&mut self, event: EventId) {
        let queue =
            self.queues.iter_mut().find(|queue| queue.contains(&event)).expect("an event of a stream");
        while let Some(front) = queue.pop_front() {
            self.not_done.remove(&front.0);
            if front == event {
                break;
            }
        }
    }
}

impl CacheBackend for CheckedDevice {
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, DriverError> {
        assert_eq!(during_capture, self.capturing);
        if self.used_bytes + bytes > CAPACITY_BYTES {
            return Err(OUT_OF_MEMORY);
        }
        // The lowest gap that fits, so that addresses are reused.
        let mut addr = 0x1_0000_0000;
        for (start, len) in &self.segments {
            if start - addr >= bytes {
                break;
            }
            addr = start + len;
        }
        self.used_bytes += bytes;
        self.segments.insert(addr, bytes);
        self.calls.push(DeviceCall::Alloc(addr, bytes));
        Ok(addr)
    }

    fn free(&mut self, addr: u64) {
        assert!(!self.capturing || self.may_free_in_capture, "no segment is freed during a capture");
        self.used_bytes -= self.segments.remove(&addr).expect("a live segment");
        self.calls.push(DeviceCall::Free(addr));
    }

    fn record_event(&mut self, stream: u64) -> Result<EventId, DriverError> {
        assert!(!self.capturing, "no event is recorded during a capture");
        self.last_event += 1;
        self.queues[stream as usize].push_back(EventId(self.last_event));
        self.not_done.insert(self.last_event);
        self.calls.push(DeviceCall::RecordEvent(stream, self.last_event));
        Ok(EventId(self.last_event))
    }

    fn is_event_done(&mut self, event: EventId) -> bool {
        assert!(!self.capturing, "no event is queried during a capture");
        !self.not_done.contains(&event.0)
    }

    fn wait_for_event(&mut self, event: EventId) -> bool {
        if self.not_done.contains(&event.0) {
            self.complete_up_to(event);
        }
        true
    }

    fn recycle_event(&mut self, event: EventId) {
        assert!(!self.not_done.contains(&event.0), "an event is recycled after it has completed");
    }

    fn trace(&mut self, entry: AllocatorTraceEntry) {
        self.traced.push(entry);
    }

    fn device_bytes(&mut self) -> u64 {
        CAPACITY_BYTES
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let addr = FIRST_RESERVED + self.next_reserved;
        self.next_reserved += bytes;
        self.reserved.insert(addr, bytes);
        self.calls.push(DeviceCall::Reserve(addr, bytes));
        Ok(addr)
    }

    fn release_addresses(&mut self, addr: u64, bytes: u64) {
        assert_eq!(self.reserved.remove(&addr), Some(bytes), "a reservation");
        assert_eq!(self.pages.range(addr..addr + bytes).next(), None, "pages are unmapped first");
        self.calls.push(DeviceCall::Release(addr));
    }

    fn map(&mut self, addr: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let (start, len) = self.reserved.range(..=addr).next_back().expect("reserved addresses");
        assert!(addr + bytes <= start + len && (addr - start).is_multiple_of(page_bytes));
        if self.used_bytes + bytes > CAPACITY_BYTES {
            return Err(OUT_OF_MEMORY);
        }
        for page in (addr..addr + bytes).step_by(page_bytes as usize) {
            assert!(self.pages.insert(page), "a page is mapped once");
        }
        self.used_bytes += bytes;
        self.calls.push(DeviceCall::Map(addr, bytes));
        Ok(())
    }

    fn unmap(&mut self, addr: u64, bytes: u64, page_bytes: u64, _: u64) {
        assert!(!self.capturing, "no page is unmapped during a capture");
        for page in (addr..addr + bytes).step_by(page_bytes as usize) {
            assert!(self.pages.remove(&page), "a mapped page");
        }
        self.used_bytes -= bytes;
        self.calls.push(DeviceCall::Unmap(addr, bytes));
    }
}
