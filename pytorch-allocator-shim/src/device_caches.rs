//! The caching allocators of all devices.
//!
//! Each device has one lock, as in PyTorch's native allocator. The lock is held during driver
//! calls, so two threads never create a segment for the same shortage.

use std::ffi::c_int;

use parking_lot::Mutex;

use crate::cache_settings::settings_and_rules;
use crate::gpu::Gpu;
use gpumemtrace_caching_allocator::CachingAllocator;

/// Upper bound of device ordinals; more than any machine has.
const DEVICES: usize = 64;

type CacheSlot = Mutex<Option<Box<CachingAllocator<Gpu>>>>;
static CACHES: [CacheSlot; DEVICES] = [const { Mutex::new(None) }; DEVICES];

/// Runs `act` on the allocator of a device, which is created on first use. `None` if the ordinal
/// is out of range.
pub(crate) fn with_cache<T>(device: c_int, act: impl FnOnce(&mut CachingAllocator<Gpu>) -> T) -> Option<T> {
    let slot = usize::try_from(device).ok().and_then(|device| CACHES.get(device))?;
    let mut guard = slot.lock();
    let cache = guard.take().unwrap_or_else(|| {
        let (settings, rules) = settings_and_rules();
        Box::new(CachingAllocator::new(Gpu::new(device), settings, rules))
    });
    Some(run_taken_out(&mut guard, cache, act))
}

/// Runs `act` on each existing allocator until it returns `Some`.
pub(crate) fn find_in_caches<T>(mut act: impl FnMut(&mut CachingAllocator<Gpu>) -> Option<T>) -> Option<T> {
    CACHES.iter().find_map(|slot| {
        let mut guard = slot.lock();
        let cache = guard.take()?;
        run_taken_out(&mut guard, cache, &mut act)
    })
}

/// Runs `act` while the allocator is out of its slot. If `act` panics, the allocator is not put
/// back, since its free lists may be wrong: its memory is leaked, and the next request creates a
/// new allocator.
fn run_taken_out<T>(
    slot: &mut Option<Box<CachingAllocator<Gpu>>>,
    mut cache: Box<CachingAllocator<Gpu>>,
    act: impl FnOnce(&mut CachingAllocator<Gpu>) -> T,
) -> T {
    let result = act(&mut cache);
    *slot = Some(cache);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_is_discarded_after_a_panic() {
        let count = |cache: &mut CachingAllocator<Gpu>| cache.stats.num_ooms;
        with_cache(63, |cache| cache.stats.num_ooms = 5);
        assert_eq!(with_cache(63, count), Some(5));
        let panicked = std::panic::catch_unwind(|| with_cache(63, |_| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(
            find_in_caches(|cache| (cache.backend.ordinal == 63).then_some(())),
            None,
            "the slot is empty"
        );
        assert_eq!(with_cache(63, count), Some(0), "a new allocator");
        assert_eq!(with_cache(64, count), None, "out of range");
    }
}
