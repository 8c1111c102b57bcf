//! Applies driver calls to the live sets of devices and of host memory.

use gpumemtrace_format::{Event, EventKind, NO_DEVICE};

use super::ReplayPass;
use crate::callsite::symbols::StackSite;
use crate::device::device_states::device_of;
use crate::state::async_pools::AsyncPools;
use crate::state::driver::{DriverChange, MemoryPlace, OUT_OF_MEMORY};
use crate::state::live_set::{BlockSize, StateSample};
use crate::util::ids::{SiteId, StackId};

impl ReplayPass {
    pub(super) fn on_memory_sample(&mut self, event: &Event) {
        if event.result == 0 && !event.in_flight && event.device != NO_DEVICE {
            let pools = self.analyses.find::<AsyncPools>();
            let pooled = pools.map_or(0, |pools| pools.kept_bytes(event.device));
            let device = device_of(&mut self.devices, event.device, self.step);
            device.attribution.add_sample(event, pooled, self.time_ns);
        }
    }

    #[inline(never)] // Few events are driver calls.
    pub(super) fn on_driver_call(&mut self, event: &Event, stack: StackId, site: SiteId) {
        self.driver.on_driver_call(event, stack);
        self.coverage.add_driver_call(event.kind, event.size);
        if let Some(refused) = self.refused_allocator {
            self.follow_refused_allocator(event, refused);
        }
        if event.result == OUT_OF_MEMORY && !event.in_flight {
            self.on_refused_call(event, stack);
        }
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
                    *peak = (*peak).max(self.non_device.bytes_in(place));
                    continue;
                }
            };
            let (time_ns, step) = (self.time_ns, self.step);
            let device = device_of(&mut self.devices, ordinal, step);
            let reserved = device.reserved;
            // The state before the change.
            let now = StateSample { time_ns, step, reserved, device: device.driver.total().bytes };
            // An address may be handed out again while its free has not returned.
            let (DriverChange::Alloc { key, .. } | DriverChange::Free { key, .. }) = change;
            let removed = device.driver.live().get(key).copied().map_or(0, |block| {
                let native = self.symbols.stack_info(block.stack).native;
                let owner = self.owners.owner_of_stack(native, self.symbols.definitions());
                device.attribution.remove(owner, block.bytes);
                self.pool_uses.on_free(ordinal, key, (block.stack, block.bytes), time_ns);
                block.bytes
            });
            match change {
                DriverChange::Alloc { key, bytes, stack, .. } => {
                    let before = now.device.saturating_sub(removed);
                    let after = StateSample { device: before.saturating_add(bytes), ..now };
                    let size = BlockSize { bytes, requested_bytes: None };
                    let context = self.symbols.stack_info(stack).context;
                    device.driver.alloc(key, size, StackSite { stack, site, context }, after);
                    let owner = self
                        .owners
                        .owner_of_stack(self.symbols.stack_info(stack).native, self.symbols.definitions());
                    device.attribution.add(owner, bytes, time_ns, &self.owners);
                    self.pool_uses.on_alloc(ordinal, key, (stack, bytes), time_ns);
                }
                DriverChange::Free { key, .. } => {
                    let after = StateSample { device: now.device.saturating_sub(removed), ..now };
                    let context = self.symbols.stack_info(stack).context;
                    device.driver.free(key, StackSite { stack, site, context }, after);
                }
            }
            device.attribution.changes.note(event);
            let bytes = device.driver.total().bytes;
            device.driver_peak.observe(bytes);
            device.torch.observe(StateSample { device: bytes, ..now });
        }
        if matches!(event.kind, EventKind::MAP | EventKind::UNMAP) {
            self.devices.change_all(|device| device.on_mapping(event));
        }
        if self.driver.has_changed_ranges {
            let removed = &self.driver.removed_ranges;
            self.devices.change_all(|device| device.on_ranges_changed(removed));
        }
    }

    /// Applies a change of host memory by a call from `caller` at `site`.
    fn on_host_change(&mut self, change: &DriverChange, caller: StackId, site: SiteId) {
        let now = StateSample { time_ns: self.time_ns, step: self.step, ..StateSample::default() };
        match *change {
            DriverChange::Alloc { key, bytes, stack, .. } => {
                let size = BlockSize { bytes, requested_bytes: None };
                let context = self.symbols.stack_info(stack).context;
                self.host.alloc(key, size, StackSite { stack, site, context }, now);
            }
            DriverChange::Free { key, .. } => {
                let context = self.symbols.stack_info(caller).context;
                self.host.free(key, StackSite { stack: caller, site, context }, now);
            }
        }
    }
}
