//! What a call of the driver does to the books of a device, and to what lies on none.

use gpumemtrace_format::{Event, NO_DEVICE};

use super::ReplayPass;
use crate::callsite::symbols::{SiteId, StackId};
use crate::state::device_states::device_of;
use crate::state::driver::{DriverChange, MemoryPlace};
use crate::state::live_set::StateSample;

impl ReplayPass {
    #[inline(never)] // Few events are calls.
    pub(super) fn on_driver_call(&mut self, event: &Event, stack: StackId, site: SiteId) {
        self.driver.event(event, stack);
        for index in 0..self.driver.changes.len() {
            let change = self.driver.changes[index];
            let (DriverChange::Alloc { place, .. } | DriverChange::Free { place, .. }) = change;
            let ordinal = match place {
                MemoryPlace::Device(ordinal) => ordinal,
                MemoryPlace::UnknownDevice => NO_DEVICE,
                MemoryPlace::Host | MemoryPlace::Managed | MemoryPlace::Foreign => {
                    self.non_device.apply(&change);
                    if place == MemoryPlace::Host {
                        self.on_host_change(&change, stack, site);
                    }
                    let peak = self.non_device_peaks.entry(place).or_default();
                    *peak = (*peak).max(self.non_device.of(place));
                    continue;
                }
            };
            let (time_ns, step) = (self.time_ns, self.step);
            let device = device_of(&mut self.devices, ordinal, step);
            let reserved = device.reserved;
            // The book adds or removes the bytes itself; what it is told here is the state before.
            let now = StateSample { time_ns, step, reserved, device: device.driver.total().bytes };
            match change {
                DriverChange::Alloc { key, bytes, stack, .. } => {
                    let after = StateSample { device: now.device.saturating_add(bytes), ..now };
                    device.driver.alloc(key, (bytes, None), stack, site, after);
                    let owner =
                        self.owners.of(self.symbols.stack_info(stack).native, self.symbols.definitions());
                    device.attribution.alloc(owner, bytes, time_ns, &self.owners);
                }
                DriverChange::Free { key, .. } => {
                    let block = device.driver.live().get(key).copied();
                    let freed = block.map_or(0, |block| block.bytes);
                    if let Some(block) = block {
                        let native = self.symbols.stack_info(block.stack).native;
                        device
                            .attribution
                            .free(self.owners.of(native, self.symbols.definitions()), block.bytes);
                    }
                    let after = StateSample { device: now.device.saturating_sub(freed), ..now };
                    device.driver.free(key, (stack, site), after);
                }
            }
            let bytes = device.driver.total().bytes;
            device.peak_device = device.peak_device.max(bytes);
            device.torch.observe(StateSample { device: bytes, ..now });
        }
        if self.driver.ranges_changed {
            for device in self.devices.all.iter_mut().flatten() {
                device.ranges_changed(&self.driver.removed_ranges);
            }
        }
    }

    fn on_host_change(&mut self, change: &DriverChange, by: StackId, site: SiteId) {
        let now = StateSample { time_ns: self.time_ns, step: self.step, ..StateSample::default() };
        match *change {
            DriverChange::Alloc { key, bytes, stack, .. } => {
                self.host.alloc(key, (bytes, None), stack, site, now);
            }
            DriverChange::Free { key, .. } => {
                self.host.free(key, (by, site), now);
            }
        }
    }
}
