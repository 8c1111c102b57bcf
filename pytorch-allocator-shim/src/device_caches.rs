//! The allocators of all devices.
//!
//! Constraint: tensors are made and freed on any thread, and blocks go from one to another. Consequence: one lock a device,
//! as PyTorch's own; it is held while the driver is asked, so that no two threads make a segment for the same need.

use std::ffi::c_int;

use parking_lot::Mutex;

use crate::cache::Cache;
use crate::gpu::Gpu;

/// More than any machine has.
const DEVICES: usize = 64;

type Slot = Mutex<Option<Box<Cache<Gpu>>>>;
static CACHES: [Slot; DEVICES] = [const { Mutex::new(None) }; DEVICES];

/// Does something with a device's allocator, made if it is not there; `None` if there can be no such device.
pub(crate) fn with<T>(device: c_int, act: impl FnOnce(&mut Cache<Gpu>) -> T) -> Option<T> {
    let slot = usize::try_from(device).ok().and_then(|device| CACHES.get(device))?;
    let mut place = slot.lock();
    let cache = place.take().unwrap_or_else(|| Box::new(Cache::new(Gpu::new(device))));
    Some(run(&mut place, cache, act))
}

/// Does something with every allocator that is there, until an answer comes.
pub(crate) fn find<T>(mut act: impl FnMut(&mut Cache<Gpu>) -> Option<T>) -> Option<T> {
    CACHES.iter().find_map(|slot| {
        let mut place = slot.lock();
        let cache = place.take()?;
        run(&mut place, cache, &mut act)
    })
}

/// An allocator is out of its place while it works: one that panicked, and may be wrong about what is free, is never put
/// back. Its memory is lost, and what comes after begins anew.
fn run<T>(
    place: &mut Option<Box<Cache<Gpu>>>,
    mut cache: Box<Cache<Gpu>>,
    act: impl FnOnce(&mut Cache<Gpu>) -> T,
) -> T {
    let answer = act(&mut cache);
    *place = Some(cache);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_that_panicked_is_not_used_again() {
        let count = |cache: &mut Cache<Gpu>| cache.stats.num_ooms;
        with(63, |cache| cache.stats.num_ooms = 5);
        assert_eq!(with(63, count), Some(5));
        let panicked = std::panic::catch_unwind(|| with(63, |_| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(find(|cache| (cache.host.ordinal == 63).then_some(())), None, "it is gone");
        assert_eq!(with(63, count), Some(0), "another begins");
        assert_eq!(with(64, count), None, "no such device");
    }
}
