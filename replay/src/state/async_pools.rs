//! The driver's stream-ordered pools (`cudaMallocAsync`): what is allocated from each, and what it holds beyond that.
//!
//! Constraint: what a pool reserves no call tells; only who asks learns it. PyTorch asks when the program wants to know
//! its reserved bytes. Consequence: allocated bytes are exact at any time, reserved bytes are those of the answers that the trace holds,
//! and unknown where there are none. Pieces inside a pool nobody can see.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind};

use crate::event_analysis::{EventAnalysis, EventContext};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: what a pool keeps when all its blocks are free.
const ATTRIBUTE_THRESHOLD: u64 = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const ATTRIBUTE_RESERVED: u64 = 5;
/// Most pools that are told apart.
const MAX_POOLS: usize = 256;

/// An answer of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsyncPoolReading {
    /// When.
    pub time_ns: u64,
    /// Held by the pool.
    pub reserved: u64,
    /// Allocated from it then, as far as the trace shows.
    pub allocated: u64,
}

impl AsyncPoolReading {
    /// In no block.
    pub(crate) fn unused(self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AsyncPoolState {
    /// In blocks now.
    pub allocated: u64,
    /// Most of it.
    pub peak_allocated: u64,
    /// What it keeps when its blocks are free, if it was told.
    pub keeps: Option<u64>,
    /// How often somebody asked what it holds.
    pub answers: u64,
    /// The last answer.
    pub last: Option<AsyncPoolReading>,
    /// The one with most unused bytes.
    pub worst: Option<AsyncPoolReading>,
}

/// A device and a pool of it; 0 is the device's own while nobody has named it.
pub(crate) type AsyncPoolKey = (u8, u64);

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct AsyncPools {
    pools: BTreeMap<AsyncPoolKey, AsyncPoolState>,
    /// Pool and bytes of live blocks.
    blocks: SeededMap<u64, (AsyncPoolKey, u64)>,
    /// The device's own pool, by the handle that the program uses for it.
    own: BTreeMap<u8, u64>,
    /// Where allocations that name no pool go since the program chose one.
    chosen: BTreeMap<u8, u64>,
    made: SeededSet<u64>,
}

impl AsyncPools {
    /// Takes a driver call.
    pub(crate) fn event(&mut self, event: &Event, time_ns: u64) {
        if event.in_flight || event.result != 0 {
            return;
        }
        match event.kind {
            EventKind::ASYNC_ALLOC => self.alloc(event),
            EventKind::ASYNC_FREE | EventKind::DEVICE_FREE => self.free(event.addr),
            EventKind::POOL_CREATE | EventKind::POOL_IMPORT if self.made.len() < MAX_POOLS => {
                self.made.insert(event.aux[0]);
            }
            EventKind::POOL_USE => {
                self.chosen.insert(event.device, event.aux[0]);
            }
            EventKind::POOL_SET if event.aux[1] == ATTRIBUTE_THRESHOLD => {
                let key = self.named(event.device, event.aux[0]);
                if let Some(pool) = self.pool(key) {
                    pool.keeps = Some(event.size);
                }
            }
            EventKind::POOL_GET if event.aux[1] == ATTRIBUTE_RESERVED => {
                let key = self.named(event.device, event.aux[0]);
                if let Some(pool) = self.pool(key) {
                    let answer =
                        AsyncPoolReading { time_ns, reserved: event.size, allocated: pool.allocated };
                    pool.answers += 1;
                    pool.last = Some(answer);
                    if pool.worst.is_none_or(|worst| worst.unused() < answer.unused()) {
                        pool.worst = Some(answer);
                    }
                }
            }
            _ => {}
        }
    }

    fn alloc(&mut self, event: &Event) {
        let pool = match event.aux[1] {
            0 => self.chosen.get(&event.device).copied().unwrap_or(0),
            pool => pool,
        };
        let key = self.named(event.device, pool);
        self.free(event.addr);
        let Some(pool) = self.pool(key) else { return };
        pool.allocated = pool.allocated.saturating_add(event.size);
        pool.peak_allocated = pool.peak_allocated.max(pool.allocated);
        self.blocks.insert(event.addr, (key, event.size));
    }

    fn free(&mut self, addr: u64) {
        if let Some((key, bytes)) = self.blocks.remove(&addr)
            && let Some(pool) = self.pools.get_mut(&key)
        {
            pool.allocated = pool.allocated.saturating_sub(bytes);
        }
    }

    /// A handle that the program did not make is the device's own pool.
    fn named(&mut self, device: u8, handle: u64) -> AsyncPoolKey {
        if handle == 0 || self.made.contains(&handle) {
            return (device, handle);
        }
        if *self.own.entry(device).or_insert(handle) == handle {
            return (device, 0);
        }
        (device, handle)
    }

    fn pool(&mut self, key: AsyncPoolKey) -> Option<&mut AsyncPoolState> {
        if self.pools.len() >= MAX_POOLS && !self.pools.contains_key(&key) {
            return None;
        }
        Some(self.pools.entry(key).or_default())
    }

    /// Pools from which something was allocated.
    pub(crate) fn used(&self) -> impl Iterator<Item = (AsyncPoolKey, &AsyncPoolState)> {
        self.pools.iter().filter(|(_, pool)| pool.peak_allocated > 0).map(|(key, pool)| (*key, pool))
    }
}

impl EventAnalysis for AsyncPools {
    fn takes(&self, kind: EventKind) -> bool {
        kind.is_driver_call()
    }

    fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        self.event(event, context.time_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Event {
        Event { device: 0, addr, size, aux, ..Event::new(kind) }
    }

    #[test]
    fn each_pool_has_its_blocks_and_its_answers() {
        let mut pools = AsyncPools::default();
        let events = [
            event(EventKind::POOL_SET, 0, 77, [0xaa, ATTRIBUTE_THRESHOLD]),
            event(EventKind::ASYNC_ALLOC, 1, 100, [0, 0]),
            event(EventKind::POOL_CREATE, 0, 0, [0xbb, 0]),
            event(EventKind::ASYNC_ALLOC, 2, 10, [0, 0xbb]),
            event(EventKind::POOL_GET, 0, 160, [0xaa, ATTRIBUTE_RESERVED]),
            event(EventKind::POOL_USE, 0, 0, [0xbb, 0]),
            event(EventKind::ASYNC_ALLOC, 3, 5, [0, 0]),
            event(EventKind::ASYNC_FREE, 1, 0, [0, 0]),
            event(EventKind::POOL_GET, 0, 90, [0xaa, ATTRIBUTE_RESERVED]),
            event(EventKind::POOL_GET, 0, 55, [0xaa, 7]),
        ];
        for (time, event) in events.iter().enumerate() {
            pools.event(event, time as u64);
        }
        let answer = |time_ns, reserved, allocated| Some(AsyncPoolReading { time_ns, reserved, allocated });
        let own = AsyncPoolState {
            allocated: 0,
            peak_allocated: 100,
            keeps: Some(77),
            answers: 2,
            last: answer(8, 90, 0),
            worst: answer(8, 90, 0),
        };
        let made = AsyncPoolState { allocated: 15, peak_allocated: 15, ..AsyncPoolState::default() };
        let all: Vec<_> = pools.used().map(|(key, pool)| (key, pool.clone())).collect();
        assert_eq!(all, [((0, 0), own), ((0, 0xbb), made)]);
    }
}
