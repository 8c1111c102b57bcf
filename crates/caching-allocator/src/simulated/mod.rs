//! A device without a driver, for replays: it counts memory and hands out addresses.
//!
//! Memory comes in units of 2 MiB, as on NVIDIA's GPUs. What the allocator does not hold, such as
//! contexts and other processes, is given as a function of time. Events complete at once, since
//! frees that wait for other streams are replayed with
//! [`begin_free_live`](crate::CachingAllocator::begin_free_live).

mod address_space;

use crate::backend::{AllocatorTraceEntry, CacheBackend, DriverError, OUT_OF_MEMORY};
use crate::ids::EventId;
use address_space::AddressSpace;

/// The driver's granularity of device memory.
const GRANULARITY_BYTES: u64 = 2 << 20;
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
const FIRST_RESERVED_ADDRESS: u64 = 0x1_0000_0000_0000;
/// Addresses of each kind; more than any device has memory.
const ADDRESS_BYTES: u64 = 1 << 47;

/// Memory of the device that the allocator does not hold, as steps over time.
#[derive(Clone, Debug, Default)]
pub struct OutsideMemory {
    /// Times in ns, ascending, and the bytes from then on.
    steps: Vec<(u64, u64)>,
    /// Steps that have begun.
    begun: usize,
}

impl OutsideMemory {
    /// Steps of time in ns and bytes from then on, in any order. Nothing is held before the first.
    pub fn new(mut steps: Vec<(u64, u64)>) -> Self {
        steps.sort_by_key(|step| step.0);
        Self { steps, begun: 0 }
    }

    /// Bytes held at the last time that was advanced to.
    pub fn bytes(&self) -> u64 {
        self.begun.checked_sub(1).map_or(0, |last| self.steps[last].1)
    }

    fn advance_to(&mut self, time_ns: u64) {
        self.begun += self.steps[self.begun..].iter().take_while(|step| step.0 <= time_ns).count();
    }
}

/// A device with some memory. `sink` receives the allocator's actions.
#[derive(Clone, Debug)]
pub struct SimulatedDevice<F> {
    capacity_bytes: u64,
    /// Bytes of segments and pages.
    used_bytes: u64,
    outside: OutsideMemory,
    memory: AddressSpace,
    reservations: AddressSpace,
    sink: F,
}

impl<F: FnMut(AllocatorTraceEntry)> SimulatedDevice<F> {
    /// A device without allocations, at time 0.
    pub fn new(capacity_bytes: u64, outside: OutsideMemory, sink: F) -> Self {
        let mut device = Self {
            capacity_bytes,
            used_bytes: 0,
            outside,
            memory: AddressSpace::new(FIRST_ADDRESS, ADDRESS_BYTES),
            reservations: AddressSpace::new(FIRST_RESERVED_ADDRESS, ADDRESS_BYTES),
            sink,
        };
        device.advance_to(0);
        device
    }

    /// Changes what others hold to its value at this time, in ns. Time never goes back.
    pub fn advance_to(&mut self, time_ns: u64) {
        self.outside.advance_to(time_ns);
    }

    /// Bytes that neither the allocator nor others hold.
    pub fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes).saturating_sub(self.outside.bytes())
    }

    fn charge(&mut self, bytes: u64) -> Result<(), DriverError> {
        if bytes > self.free_bytes() {
            return Err(OUT_OF_MEMORY);
        }
        self.used_bytes += bytes;
        Ok(())
    }
}

impl<F: FnMut(AllocatorTraceEntry)> CacheBackend for SimulatedDevice<F> {
    fn alloc(&mut self, bytes: u64, _during_capture: bool) -> Result<u64, DriverError> {
        let bytes = bytes.next_multiple_of(GRANULARITY_BYTES);
        self.charge(bytes)?;
        self.memory.take(bytes).ok_or(OUT_OF_MEMORY)
    }

    fn free(&mut self, addr: u64) {
        self.used_bytes -= self.memory.give_back(addr).unwrap_or(0);
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
        (self.sink)(entry);
    }

    fn device_bytes(&mut self) -> u64 {
        self.capacity_bytes
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.reservations.take(bytes).ok_or(OUT_OF_MEMORY)
    }

    fn release_addresses(&mut self, addr: u64, _bytes: u64) {
        self.reservations.give_back(addr);
    }

    fn map(&mut self, _addr: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let page = page_bytes.next_multiple_of(GRANULARITY_BYTES);
        self.charge(bytes / page_bytes * page)
    }

    fn unmap(&mut self, _addr: u64, bytes: u64, page_bytes: u64, _stream: u64) {
        let page = page_bytes.next_multiple_of(GRANULARITY_BYTES);
        self.used_bytes -= bytes / page_bytes * page;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CachingAllocator, Rules, Settings, TorchVersion, TraceAction};

    const MIB: u64 = 1 << 20;

    #[test]
    fn outside_memory_takes_part_of_the_device_from_its_time_on() {
        let outside = OutsideMemory::new(vec![(200, 0), (100, 90 * MIB), (0, 10 * MIB)]);
        let mut device = SimulatedDevice::new(100 * MIB, outside, |_| ());
        assert_eq!(device.free_bytes(), 90 * MIB);
        let addr = device.alloc(3 * MIB, false).expect("memory");
        assert_eq!(device.free_bytes(), 86 * MIB, "whole units of 2 MiB");
        device.advance_to(150);
        assert_eq!((device.free_bytes(), device.alloc(8 * MIB, false)), (6 * MIB, Err(OUT_OF_MEMORY)));
        device.advance_to(200);
        device.free(addr);
        assert_eq!(device.free_bytes(), 100 * MIB);
    }

    /// pytorch#193400: with expandable segments and limited splits, a few large blocks per cycle
    /// make reserved memory grow while live memory does not.
    #[test]
    fn limited_splits_make_expandable_segments_grow() {
        let version = TorchVersion::LATEST;
        let settings = Settings::parse("max_split_size_mb:128,expandable_segments:True", version);
        let device = SimulatedDevice::new(16 << 30, OutsideMemory::default(), |_| ());
        let mut cache =
            CachingAllocator::new(device, settings.expect("accepted"), Rules::of_version(version));
        cache.alloc(64 * MIB, 0).expect("memory");
        let mut reserved_mib = Vec::new();
        for cycle in 0..=100 {
            let large = [cache.alloc(91 * MIB, 0), cache.alloc(91 * MIB / 2, 0)];
            cache.alloc(2 * MIB, 0).expect("memory");
            for addr in large {
                assert!(cache.free(addr.expect("memory")));
            }
            if cycle % 20 == 0 {
                reserved_mib.push(cache.held_bytes().1 / MIB);
            }
        }
        assert_eq!(reserved_mib, [220, 2980, 5760, 8520, 11_300, 14_060]);
    }

    #[test]
    fn sink_receives_segments_and_blocks() {
        let mut actions = Vec::new();
        let device =
            SimulatedDevice::new(64 * MIB, OutsideMemory::default(), |entry| actions.push(entry.action));
        let rules = Rules::of_version(TorchVersion::LATEST);
        let mut cache = CachingAllocator::new(device, Settings::default(), rules);
        let block = cache.alloc_live(1000, 0).expect("memory");
        let ticket = cache.begin_free_live(block);
        assert!(cache.finish_free(ticket));
        cache.release_cached();
        drop(cache);
        let freed = TraceAction::FreeRequested { is_immediate: false };
        let expected = [
            TraceAction::SegmentAlloc,
            TraceAction::Alloc,
            freed,
            TraceAction::FreeCompleted,
            TraceAction::SegmentFree,
        ];
        assert_eq!(actions, expected);
    }
}
