//! The driver's stream-ordered pools (`cudaMallocAsync`): allocated and reserved bytes of each.
//!
//! No driver call reports what a pool reserves. A program can query it, and PyTorch does when the
//! program asks for its reserved bytes. [`AsyncPools`] therefore knows allocated bytes exactly at
//! any time, and reserved bytes only at the queries in the trace. Fragmentation inside a pool is
//! not visible. An allocation costs two hash map updates.
//!
//! Pools of host and managed memory are listed too, but keep no memory of a device.
//!
//! A pool keeps freed memory up to its release threshold. [`AsyncPoolState::kept`] estimates how
//! much from the most that the pool held, so that this memory is not taken for memory of unknown
//! origin. A framework may reserve its share of a device by one large allocation that it frees at
//! once; XLA does (`GpuCudaMallocAsyncAllocator::SetStreamAndPreallocateMemory`).

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind};

use crate::event_analysis::{EventAnalysis, EventContext};
use crate::state::driver::MemoryPlace;
use crate::state::driver::pool_places::{PoolPlaces, is_device_location};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: bytes that a pool keeps when all its blocks are free.
const ATTRIBUTE_THRESHOLD: u64 = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`: bytes that a pool reserves at present.
const ATTRIBUTE_RESERVED: u64 = 5;
/// Limit of pools; further ones are ignored.
const MAX_POOLS: usize = 256;

/// The result of a query of reserved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncPoolReading {
    pub time_ns: u64,
    /// Bytes that the pool reserved, as the driver reported.
    pub reserved: u64,
    /// Bytes allocated from the pool at that time, by the events of the trace.
    pub allocated: u64,
}

impl AsyncPoolReading {
    /// Reserved bytes that no block uses.
    pub(crate) fn unused(self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

/// The state of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AsyncPoolState {
    /// Bytes in live blocks.
    pub allocated: u64,
    /// The highest value of `allocated`.
    pub peak_allocated: u64,
    /// The most bytes that the pool held since it was trimmed: allocated, or reserved at a query.
    pub held: u64,
    /// Bytes that the pool keeps when its blocks are free; `None` if the program never set it.
    pub release_threshold: Option<u64>,
    /// Number of queries of reserved bytes.
    pub readings: u64,
    /// The most recent query.
    pub last: Option<AsyncPoolReading>,
    /// The query with the most unused bytes.
    pub worst: Option<AsyncPoolReading>,
}

impl AsyncPoolState {
    /// Free bytes that the pool keeps, by the most that it held and its release threshold. An
    /// estimate: a pool returns memory when it synchronises, or when a request would fail.
    pub(crate) fn kept(&self) -> u64 {
        let threshold = self.release_threshold.unwrap_or(0);
        self.held.min(threshold.max(self.allocated)).saturating_sub(self.allocated)
    }

    fn trim(&mut self, keep: u64) {
        self.held = self.held.min(keep).max(self.allocated);
    }
}

/// Place of the memory and pool handle; handle 0 is the default pool of a device.
pub(crate) type AsyncPoolKey = (MemoryPlace, u64);

/// All pools of a process.
#[derive(Debug, Default)]
pub(crate) struct AsyncPools {
    pools: BTreeMap<AsyncPoolKey, AsyncPoolState>,
    /// Pool and bytes of live blocks by address.
    blocks: SeededMap<u64, (AsyncPoolKey, u64)>,
    /// The handle of each device's default pool, once the program uses it.
    default_handles: BTreeMap<u8, u64>,
    /// The current pool of each device, for allocations that name none; set by `POOL_USE`.
    current: BTreeMap<u8, u64>,
    /// Handles of pools that the program created or imported.
    created: SeededSet<u64>,
    places: PoolPlaces,
    /// Bytes in live blocks of all pools of host memory.
    host_allocated: u64,
    host_peak: u64,
}

impl AsyncPools {
    /// Applies a driver call; failed calls and calls in flight are ignored.
    pub(crate) fn on_driver_call(&mut self, event: &Event, time_ns: u64) {
        if event.in_flight || event.result != 0 {
            return;
        }
        if event.kind != EventKind::POOL_DESTROY {
            self.places.on_driver_call(event);
        }
        match event.kind {
            EventKind::ASYNC_ALLOC => self.alloc(event),
            EventKind::ASYNC_FREE | EventKind::DEVICE_FREE => self.free(event.addr),
            EventKind::POOL_CREATE | EventKind::POOL_IMPORT if self.created.len() < MAX_POOLS => {
                self.created.insert(event.aux[0]);
            }
            EventKind::POOL_USE if is_device_location(event.aux[1]) => {
                self.current.insert(event.device, event.aux[0]);
            }
            EventKind::POOL_TRIM => self.trim(event.device, event.aux[0], event.size),
            EventKind::POOL_DESTROY => {
                self.trim(event.device, event.aux[0], 0);
                self.places.on_driver_call(event);
                self.created.remove(&event.aux[0]);
                self.current.retain(|_, current| *current != event.aux[0]);
            }
            EventKind::POOL_SET if event.aux[1] == ATTRIBUTE_THRESHOLD => {
                let key = self.key_of_handle(event.device, event.aux[0]);
                if let Some(pool) = self.pool_mut(key) {
                    pool.release_threshold = Some(event.size);
                }
            }
            EventKind::POOL_GET if event.aux[1] == ATTRIBUTE_RESERVED => {
                let key = self.key_of_handle(event.device, event.aux[0]);
                if let Some(pool) = self.pool_mut(key) {
                    let reading =
                        AsyncPoolReading { time_ns, reserved: event.size, allocated: pool.allocated };
                    pool.readings += 1;
                    pool.held = event.size.max(pool.allocated);
                    pool.last = Some(reading);
                    if pool.worst.is_none_or(|worst| worst.unused() < reading.unused()) {
                        pool.worst = Some(reading);
                    }
                }
            }
            _ => {}
        }
    }

    fn alloc(&mut self, event: &Event) {
        let pool = match event.aux[1] {
            0 => self.current.get(&event.device).copied().unwrap_or(0),
            pool => pool,
        };
        let place = self.places.of_allocation(event);
        let key = self.key_at(place, pool);
        // Remove a block at this address if its free was lost.
        self.free(event.addr);
        let Some(pool) = self.pool_mut(key) else { return };
        pool.allocated = pool.allocated.saturating_add(event.size);
        pool.peak_allocated = pool.peak_allocated.max(pool.allocated);
        pool.held = pool.held.max(pool.allocated);
        self.blocks.insert(event.addr, (key, event.size));
        if place == MemoryPlace::Host {
            self.host_allocated = self.host_allocated.saturating_add(event.size);
            self.host_peak = self.host_peak.max(self.host_allocated);
        }
    }

    fn free(&mut self, addr: u64) {
        if let Some((key, bytes)) = self.blocks.remove(&addr)
            && let Some(pool) = self.pools.get_mut(&key)
        {
            pool.allocated = pool.allocated.saturating_sub(bytes);
            if key.0 == MemoryPlace::Host {
                self.host_allocated = self.host_allocated.saturating_sub(bytes);
            }
        }
    }

    /// The key of a pool that a call on `device` names.
    fn key_of_handle(&mut self, device: u8, handle: u64) -> AsyncPoolKey {
        let place = self.places.of_pool(handle).unwrap_or_else(|| MemoryPlace::of_device(device));
        self.key_at(place, handle)
    }

    /// The key of a pool. The first handle of a device that no recorded call created is its default
    /// pool's.
    fn key_at(&mut self, place: MemoryPlace, handle: u64) -> AsyncPoolKey {
        let MemoryPlace::Device(device) = place else { return (place, handle) };
        if handle == 0 || self.created.contains(&handle) {
            return (place, handle);
        }
        if *self.default_handles.entry(device).or_insert(handle) == handle {
            return (place, 0);
        }
        (place, handle)
    }

    /// The state of a pool, created on first use; `None` beyond [`MAX_POOLS`].
    fn pool_mut(&mut self, key: AsyncPoolKey) -> Option<&mut AsyncPoolState> {
        if self.pools.len() >= MAX_POOLS && !self.pools.contains_key(&key) {
            return None;
        }
        Some(self.pools.entry(key).or_default())
    }

    fn trim(&mut self, device: u8, handle: u64, keep: u64) {
        let key = self.key_of_handle(device, handle);
        if let Some(pool) = self.pools.get_mut(&key) {
            pool.trim(keep);
        }
    }

    /// Free device memory that all pools of a device keep ([`AsyncPoolState::kept`]).
    pub(crate) fn kept_bytes(&self, device: u8) -> u64 {
        let place = MemoryPlace::Device(device);
        let pools = self.pools.range((place, 0)..=(place, u64::MAX));
        crate::util::block_totals::saturating_sum(pools.map(|(_, pool)| pool.kept()))
    }

    /// The most bytes that were allocated from pools of host memory.
    pub(crate) fn host_peak(&self) -> u64 {
        self.host_peak
    }

    /// Pools that blocks were ever allocated from, by key.
    pub(crate) fn used_pools(&self) -> impl Iterator<Item = (AsyncPoolKey, &AsyncPoolState)> {
        self.pools.iter().filter(|(_, pool)| pool.peak_allocated > 0).map(|(key, pool)| (*key, pool))
    }
}

impl EventAnalysis for AsyncPools {
    fn takes(&self, kind: EventKind) -> bool {
        kind.is_driver_call()
    }

    fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        self.on_driver_call(event, context.time_ns);
    }

    fn restart(&mut self) {
        self.host_peak = self.host_allocated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Event {
        Event { device: 0, addr, size, aux, ..Event::new(kind) }
    }

    #[test]
    fn blocks_and_readings_are_counted_per_pool() {
        let mut pools = AsyncPools::default();
        let events = [
            event(EventKind::POOL_SET, 0, 77, [0xaa, ATTRIBUTE_THRESHOLD]),
            event(EventKind::ASYNC_ALLOC, 1, 100, [0, 0]),
            event(EventKind::POOL_CREATE, 0, 0, [0xbb, 0]),
            event(EventKind::ASYNC_ALLOC, 2, 10, [0, 0xbb]),
            event(EventKind::POOL_GET, 0, 160, [0xaa, ATTRIBUTE_RESERVED]),
            event(EventKind::POOL_USE, 0, 0, [0xbb, 1]),
            event(EventKind::ASYNC_ALLOC, 3, 5, [0, 0]),
            event(EventKind::ASYNC_FREE, 1, 0, [0, 0]),
            event(EventKind::POOL_GET, 0, 90, [0xaa, ATTRIBUTE_RESERVED]),
            event(EventKind::POOL_GET, 0, 55, [0xaa, 7]),
        ];
        for (time, event) in events.iter().enumerate() {
            pools.on_driver_call(event, time as u64);
        }
        let reading = |time_ns, reserved, allocated| Some(AsyncPoolReading { time_ns, reserved, allocated });
        let default_pool = AsyncPoolState {
            allocated: 0,
            peak_allocated: 100,
            held: 90,
            release_threshold: Some(77),
            readings: 2,
            last: reading(8, 90, 0),
            worst: reading(8, 90, 0),
        };
        let created =
            AsyncPoolState { allocated: 15, peak_allocated: 15, held: 15, ..AsyncPoolState::default() };
        let all: Vec<_> = pools.used_pools().map(|(key, pool)| (key, pool.clone())).collect();
        let device = MemoryPlace::Device(0);
        assert_eq!(all, [((device, 0), default_pool), ((device, 0xbb), created)]);
    }

    #[test]
    fn host_and_managed_pools_keep_no_device_memory_and_replace_no_device_pool() {
        let mut pools = AsyncPools::default();
        let (host, managed) = (2 | 1 << 16, 1 | 2 << 16);
        let events = [
            event(EventKind::POOL_CREATE, 0, 0, [0xaa, managed]),
            event(EventKind::POOL_KNOWN, 0, 0, [0xbb, host]),
            event(EventKind::POOL_SET, 0, u64::MAX, [0xaa, ATTRIBUTE_THRESHOLD]),
            event(EventKind::POOL_SET, 0, u64::MAX, [0xbb, ATTRIBUTE_THRESHOLD]),
            event(EventKind::POOL_USE, 0, 0, [0xaa, managed]),
            event(EventKind::ASYNC_ALLOC, 1, 100, [0, 0xaa]),
            event(EventKind::ASYNC_ALLOC, 2, 200, [0, 0xbb]),
            event(EventKind::ASYNC_ALLOC, 3, 10, [0, 0]),
            event(EventKind::ASYNC_FREE, 1, 0, [0, 0]),
            event(EventKind::ASYNC_FREE, 2, 0, [0, 0]),
        ];
        for event in &events {
            pools.on_driver_call(event, 0);
        }
        let used: Vec<_> =
            pools.used_pools().map(|(key, pool)| (key, pool.peak_allocated, pool.kept())).collect();
        let expected = [
            ((MemoryPlace::Device(0), 0), 10, 0),
            ((MemoryPlace::Host, 0xbb), 200, 200),
            ((MemoryPlace::Managed, 0xaa), 100, 100),
        ];
        assert_eq!((used.as_slice(), pools.kept_bytes(0), pools.host_peak()), (expected.as_slice(), 0, 200));
    }

    #[test]
    fn pool_keeps_freed_memory_up_to_its_threshold_until_it_is_trimmed() {
        let mut pools = AsyncPools::default();
        let mut kept_after = |kind, addr, size, aux| {
            pools.on_driver_call(&event(kind, addr, size, aux), 0);
            pools.kept_bytes(0)
        };
        assert_eq!(kept_after(EventKind::POOL_CREATE, 0, 0, [0xbb, 0]), 0);
        assert_eq!(kept_after(EventKind::ASYNC_ALLOC, 1, 100, [0, 0xbb]), 0);
        assert_eq!(kept_after(EventKind::ASYNC_FREE, 1, 0, [0, 0]), 0, "the threshold is 0 until it is set");
        assert_eq!(kept_after(EventKind::POOL_SET, 0, 60, [0xbb, ATTRIBUTE_THRESHOLD]), 60);
        assert_eq!(kept_after(EventKind::ASYNC_ALLOC, 2, 45, [0, 0xbb]), 15);
        assert_eq!(kept_after(EventKind::ASYNC_ALLOC, 3, 45, [0, 0xbb]), 0, "more is allocated than kept");
        assert_eq!(kept_after(EventKind::ASYNC_FREE, 3, 0, [0, 0]), 15);
        assert_eq!(
            kept_after(EventKind::POOL_GET, 0, 50, [0xbb, ATTRIBUTE_RESERVED]),
            5,
            "as the driver says"
        );
        assert_eq!(kept_after(EventKind::POOL_TRIM, 0, 48, [0xbb, 0]), 3);
        assert_eq!(kept_after(EventKind::POOL_DESTROY, 0, 0, [0xbb, 0]), 0);
        assert_eq!(pools.kept_bytes(1), 0, "another device");
    }
}
