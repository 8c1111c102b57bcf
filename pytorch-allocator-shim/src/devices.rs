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
    Some(act(slot.lock().get_or_insert_with(|| Box::new(Cache::new(Gpu::new(device))))))
}

/// Does something with every allocator that is there, until an answer comes.
pub(crate) fn find<T>(mut act: impl FnMut(&mut Cache<Gpu>) -> Option<T>) -> Option<T> {
    CACHES.iter().find_map(|slot| slot.lock().as_deref_mut().and_then(&mut act))
}
