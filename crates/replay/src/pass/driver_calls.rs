//! Applies driver calls to the live sets of devices and of host memory.

use gpumemtrace_format::{Event, EventKind, NO_DEVICE};

use super::accounts::Accounts;
use crate::callsite::module_owner::{ModuleOwners, OwnerId};
use crate::callsite::symbols::{StackSite, StackSymbols};
use crate::device::device_states::device_of;
use crate::event_analysis::EventTime;
use crate::state::driver::{DriverChange, MemoryPlace};
use crate::state::live_set::{BlockSize, StateSample};
use crate::util::ids::StackId;

/// A driver call whose changes are applied.
#[derive(Clone, Copy)]
pub(super) struct DriverCall<'a> {
    pub(super) event: &'a Event,
    pub(super) caller: StackSite,
    pub(super) now: EventTime,
    pub(super) symbols: &'a StackSymbols,
}

impl DriverCall<'_> {
    /// The origin of memory that this stack requested, which may differ from the caller.
    fn origin_of(&self, stack: StackId) -> StackSite {
        StackSite { stack, site: self.caller.site, context: self.symbols.stack_info(stack).context }
    }

    /// The library that called with this stack.
    fn owner_of(&self, stack: StackId, owners: &mut ModuleOwners) -> OwnerId {
        owners.owner_of_stack(self.symbols.stack_info(stack).native, self.symbols.definitions())
    }
}

impl Accounts {
    /// Adds a sample of a device's memory in use. `pooled_bytes` are those that pools of the driver
    /// keep.
    pub(super) fn on_memory_sample(&mut self, event: &Event, pooled_bytes: u64, now: EventTime) {
        if event.result == 0 && !event.in_flight && event.device != NO_DEVICE {
            let device = device_of(&mut self.devices, event.device, now.step);
            device.attribution.add_sample(event, pooled_bytes, now.time_ns);
        }
    }

    /// Applies the changes of a driver call, which [`Accounts::driver`] has read already.
    pub(super) fn apply_driver_call(&mut self, call: DriverCall<'_>) {
        for index in 0..self.driver.changes.len() {
            let change = self.driver.changes[index];
            let (DriverChange::Alloc { place, .. } | DriverChange::Free { place, .. }) = change;
            match place {
                MemoryPlace::Device(ordinal) => self.on_device_change(ordinal, change, call),
                MemoryPlace::UnknownDevice => self.on_device_change(NO_DEVICE, change, call),
                MemoryPlace::Host => {
                    self.non_device.apply(&change, place);
                    self.on_host_change(change, call);
                }
                MemoryPlace::Managed | MemoryPlace::Foreign => self.non_device.apply(&change, place),
            }
        }
        let event = call.event;
        if matches!(event.kind, EventKind::MAP | EventKind::UNMAP) {
            self.devices.change_all(|device| device.on_mapping(event));
        }
        if self.driver.has_changed_ranges {
            let removed = &self.driver.removed_ranges;
            self.devices.change_all(|device| device.on_ranges_changed(removed));
        }
    }

    fn on_device_change(&mut self, ordinal: u8, change: DriverChange, call: DriverCall<'_>) {
        let EventTime { time_ns, step } = call.now;
        let device = device_of(&mut self.devices, ordinal, step);
        let reserved = device.reserved;
        // The state before the change.
        let before = StateSample { time_ns, step, reserved, device: device.driver.total().bytes };
        // An address may be handed out again while its free has not returned.
        let (DriverChange::Alloc { key, .. } | DriverChange::Free { key, .. }) = change;
        let removed_bytes = device.driver.live().get(key).copied().map_or(0, |block| {
            let owner = call.owner_of(block.stack, &mut self.owners);
            device.attribution.remove(owner, block.bytes);
            self.pool_uses.on_free(ordinal, key, (block.stack, block.bytes), time_ns);
            block.bytes
        });
        let left_bytes = before.device.saturating_sub(removed_bytes);
        match change {
            DriverChange::Alloc { key, bytes, stack, .. } => {
                let after = StateSample { device: left_bytes.saturating_add(bytes), ..before };
                let size = BlockSize { bytes, requested_bytes: None };
                device.driver.alloc(key, size, call.origin_of(stack), after);
                let owner = call.owner_of(stack, &mut self.owners);
                device.attribution.add(owner, bytes, time_ns, &self.owners);
                self.pool_uses.on_alloc(ordinal, key, (stack, bytes), time_ns);
            }
            DriverChange::Free { key, .. } => {
                let after = StateSample { device: left_bytes, ..before };
                device.driver.free(key, call.caller, after);
            }
        }
        device.attribution.changes.note(call.event);
        let bytes = device.driver.total().bytes;
        device.driver_peak.observe(bytes);
        device.torch.observe(StateSample { device: bytes, ..before });
    }

    fn on_host_change(&mut self, change: DriverChange, call: DriverCall<'_>) {
        let now = StateSample { time_ns: call.now.time_ns, step: call.now.step, ..StateSample::default() };
        match change {
            DriverChange::Alloc { key, bytes, stack, .. } => {
                let size = BlockSize { bytes, requested_bytes: None };
                self.host.alloc(key, size, call.origin_of(stack), now);
            }
            DriverChange::Free { key, .. } => {
                self.host.free(key, call.caller, now);
            }
        }
    }
}
