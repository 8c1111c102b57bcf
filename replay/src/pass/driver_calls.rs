//! What a call of the driver does to the books of a device, and to what lies on none.

use gpumemtrace_format::{Event, NO_DEVICE};

use super::Pass;
use crate::callsite::symbols::{SiteId, StackId};
use crate::state::device::device_of;
use crate::state::driver::{Change, Place};
use crate::state::live_set::Now;

impl Pass {
    #[inline(never)] // Few events are calls.
    pub(super) fn driver_call(&mut self, event: &Event, stack: StackId, site: SiteId) {
        self.driver.event(event, stack);
        self.async_pools.event(event, self.time_ns);
        for index in 0..self.driver.changes.len() {
            let change = self.driver.changes[index];
            let (Change::Alloc { place, .. } | Change::Free { place, .. }) = change;
            let ordinal = match place {
                Place::Device(ordinal) => ordinal,
                Place::UnknownDevice => NO_DEVICE,
                Place::Host | Place::Managed | Place::Foreign => {
                    self.apart.apply(&change);
                    if place == Place::Host {
                        self.host_changed(&change, stack, site);
                    }
                    let peak = self.apart_peaks.entry(place).or_default();
                    *peak = (*peak).max(self.apart.of(place));
                    continue;
                }
            };
            let (time_ns, step) = (self.time_ns, self.step);
            let device = device_of(&mut self.devices, ordinal, step);
            let reserved = device.reserved;
            // The book adds or removes the bytes itself; what it is told here is the state before.
            let now = Now { time_ns, step, reserved, device: device.driver.total().bytes };
            match change {
                Change::Alloc { key, bytes, stack, .. } => {
                    let after = Now { device: now.device.saturating_add(bytes), ..now };
                    device.driver.alloc(key, (bytes, None), stack, site, after);
                    let owner = self.owners.of(self.symbols.facts(stack).native, self.symbols.definitions());
                    device.ledger.alloc(owner, bytes, time_ns, &self.owners);
                }
                Change::Free { key, .. } => {
                    let block = device.driver.live().get(key).copied();
                    let freed = block.map_or(0, |block| block.bytes);
                    if let Some(block) = block {
                        let native = self.symbols.facts(block.stack).native;
                        device.ledger.free(self.owners.of(native, self.symbols.definitions()), block.bytes);
                    }
                    let after = Now { device: now.device.saturating_sub(freed), ..now };
                    device.driver.free(key, (stack, site), after);
                }
            }
            let bytes = device.driver.total().bytes;
            device.peak_device = device.peak_device.max(bytes);
            device.torch.observe(Now { device: bytes, ..now });
        }
        if self.driver.ranges_changed {
            for device in self.devices.all.iter_mut().flatten() {
                device.ranges_changed(&self.driver.removed_ranges);
            }
        }
    }

    fn host_changed(&mut self, change: &Change, by: StackId, site: SiteId) {
        let now = Now { time_ns: self.time_ns, step: self.step, ..Now::default() };
        match *change {
            Change::Alloc { key, bytes, stack, .. } => {
                self.host.alloc(key, (bytes, None), stack, site, now);
            }
            Change::Free { key, .. } => {
                self.host.free(key, (by, site), now);
            }
        }
    }
}
