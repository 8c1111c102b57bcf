//! Where the memory of the driver's pools lies: on a device, on the host, or managed.
//!
//! An allocation from a pool says so itself, if the driver told the recorder. Otherwise the pool's
//! location decides: for graph nodes, whose memory does not exist yet, and for traces of older
//! recorders, which did not ask.

use gpumemtrace_format::{Event, EventKind, FLAG_CAPTURED, FLAG_HOST, FLAG_MANAGED, NO_DEVICE};

use super::MemoryPlace;
use super::physical::place_of_location;
use crate::util::seeded_map::SeededMap;

// `CU_MEM_ALLOCATION_TYPE_MANAGED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const MANAGED: u64 = 2;
const DEVICE: u64 = 1;

/// The place of each known pool, by handle.
#[derive(Debug, Default)]
pub(crate) struct PoolPlaces {
    places: SeededMap<u64, MemoryPlace>,
}

impl PoolPlaces {
    /// Applies a successful driver call.
    pub(crate) fn on_driver_call(&mut self, event: &Event) {
        let [pool, location] = event.aux;
        match event.kind {
            EventKind::POOL_CREATE | EventKind::POOL_KNOWN => {
                self.places.insert(pool, place_of_pool(location, event.device));
            }
            EventKind::POOL_DESTROY => {
                self.places.remove(&pool);
            }
            _ => {}
        }
    }

    /// The place of a pool; `None` if the trace does not say.
    pub(crate) fn of_pool(&self, pool: u64) -> Option<MemoryPlace> {
        self.places.get(&pool).copied()
    }

    /// The place of a stream-ordered allocation, or of an allocation node of a graph.
    pub(crate) fn of_allocation(&self, event: &Event) -> MemoryPlace {
        if event.flags & FLAG_MANAGED != 0 {
            return MemoryPlace::Managed;
        }
        if event.flags & FLAG_HOST != 0 {
            return MemoryPlace::Host;
        }
        if event.kind == EventKind::GRAPH_ALLOC_NODE && event.flags & FLAG_CAPTURED == 0 {
            // The program named a location. Older recorders stored its device only.
            return if event.device == NO_DEVICE {
                MemoryPlace::Host
            } else {
                MemoryPlace::of_device(event.device)
            };
        }
        self.of_pool(event.aux[1]).unwrap_or_else(|| MemoryPlace::of_device(event.device))
    }
}

/// The place of a pool at `location type | allocation type << 16 | id << 32`.
fn place_of_pool(location: u64, device: u8) -> MemoryPlace {
    if location >> 16 & 0xffff == MANAGED {
        return MemoryPlace::Managed;
    }
    place_of_location(location & !0xffff_0000, device)
}

/// True for a location with pools that `cuMemAllocAsync` may use: memory of a device that is not
/// managed.
pub(crate) fn is_device_location(location: u64) -> bool {
    location & 0xffff == DEVICE && location >> 16 & 0xffff != MANAGED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, device: u8, flags: u8, aux: [u64; 2]) -> Event {
        Event { device, flags, aux, ..Event::new(kind) }
    }

    #[test]
    fn flags_of_the_event_come_before_the_pool_and_the_pool_before_the_device() {
        let mut places = PoolPlaces::default();
        for (pool, location) in
            [(0xaa, 1 | 1 << 16), (0xbb, 2 | 1 << 16), (0xcc, 1 | 2 << 16), (0xdd, 3 | 5 << 32)]
        {
            places.on_driver_call(&event(EventKind::POOL_CREATE, NO_DEVICE, 0, [pool, location]));
        }
        let place = |flags, pool| places.of_allocation(&event(EventKind::ASYNC_ALLOC, 1, flags, [0, pool]));
        let found =
            [place(0, 0xaa), place(0, 0xbb), place(0, 0xcc), place(0, 0xdd), place(0, 0xee), place(0, 0)];
        let [host, managed, second] = [MemoryPlace::Host, MemoryPlace::Managed, MemoryPlace::Device(1)];
        assert_eq!(found, [MemoryPlace::Device(0), host, managed, host, second, second]);
        assert_eq!((place(FLAG_HOST, 0xaa), place(FLAG_MANAGED, 0xbb)), (host, managed));
    }

    #[test]
    fn handle_of_a_destroyed_pool_says_nothing() {
        let mut places = PoolPlaces::default();
        places.on_driver_call(&event(EventKind::POOL_KNOWN, NO_DEVICE, 0, [0xaa, 2]));
        assert_eq!(places.of_pool(0xaa), Some(MemoryPlace::Host));
        places.on_driver_call(&event(EventKind::POOL_DESTROY, 0, 0, [0xaa, 0]));
        assert_eq!(places.of_pool(0xaa), None);
    }

    #[test]
    fn captured_node_is_where_its_pool_is_and_another_node_where_it_says() {
        let mut places = PoolPlaces::default();
        places.on_driver_call(&event(EventKind::POOL_CREATE, NO_DEVICE, 0, [7, 2 | 1 << 16]));
        let place = |device, flags| {
            places.of_allocation(&event(EventKind::GRAPH_ALLOC_NODE, device, flags, [0x60, 7]))
        };
        assert_eq!(place(0, FLAG_CAPTURED), MemoryPlace::Host);
        assert_eq!(place(0, 0), MemoryPlace::Device(0), "7 is the node");
        assert_eq!(place(NO_DEVICE, 0), MemoryPlace::Host);
        assert_eq!(place(0, FLAG_MANAGED), MemoryPlace::Managed);
    }
}
