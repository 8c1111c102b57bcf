//! The memory accounts of a pass: devices, the driver, host memory, and memory of no device.
//!
//! [`super::driver_calls`] applies driver calls. Block events go to their device directly.

use gpumemtrace_format::{Event, TrackerState};

use super::stage::PassSetup;
use crate::callsite::module_owner::ModuleOwners;
use crate::device::DeviceState;
use crate::device::device_states::{DeviceStates, device_of};
use crate::event_analysis::EventTime;
use crate::state::driver::{DriverChange, DriverState, MemoryPlace, PlaceTotals};
use crate::state::live_set::LiveSet;
use crate::state::managed_segments::ManagedSegments;
use crate::state::pool_uses::PoolUses;
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// What is allocated at present, by device and layer.
pub(super) struct Accounts {
    pub(super) devices: DeviceStates,
    pub(super) driver: DriverState,
    /// Live blocks of pinned host memory.
    pub(super) host: LiveSet,
    pub(super) non_device: NonDeviceMemory,
    pub(super) managed_segments: ManagedSegments,
    /// The libraries that called the driver.
    pub(super) owners: ModuleOwners,
    pub(super) pool_uses: PoolUses,
    /// State of the tracker of PyTorch's allocator; `None` if PyTorch was not used.
    pub(super) tracker: Option<TrackerState>,
}

/// Bytes of host, managed and foreign memory.
#[derive(Debug, Default)]
pub(super) struct NonDeviceMemory {
    totals: PlaceTotals,
    peaks: SeededMap<MemoryPlace, u64>,
}

impl NonDeviceMemory {
    pub(super) fn apply(&mut self, change: &DriverChange, place: MemoryPlace) {
        self.totals.apply(change);
        let peak = self.peaks.entry(place).or_default();
        *peak = (*peak).max(self.totals.bytes_in(place));
    }

    /// Restarts the search for the peaks.
    fn restart(&mut self) {
        for (place, peak) in &mut self.peaks {
            *peak = self.totals.bytes_in(*place);
        }
    }

    /// The most bytes of each place that had memory at any time.
    pub(super) fn peaks(&self) -> impl Iterator<Item = (MemoryPlace, u64)> {
        self.totals.iter().map(|(place, _)| (place, self.peaks.get(&place).copied().unwrap_or(0)))
    }
}

impl Accounts {
    pub(super) fn new(setup: &PassSetup) -> Self {
        let keeps_history = setup.keeps_history();
        Self {
            devices: DeviceStates::new(setup.axis, setup.options.step_before_peak, keeps_history),
            driver: DriverState::default(),
            host: LiveSet::at_step(0, setup.axis),
            non_device: NonDeviceMemory::default(),
            managed_segments: ManagedSegments::default(),
            owners: ModuleOwners::default(),
            pool_uses: PoolUses::default(),
            tracker: None,
        }
    }

    /// Begins the recorded history with the memory that existed before it.
    pub(super) fn begin_history(&mut self, time_ns: u64) {
        let driver = &self.driver;
        self.devices.change_all(|device| device.begin_history(time_ns, driver));
    }

    /// Ends the present step.
    pub(super) fn end_step(&mut self, time_ns: u64) {
        let driver = &self.driver;
        self.devices.change_all(|device| device.end_step(time_ns, driver));
        self.host.end_step();
    }

    /// Takes the present moment as the end of the program.
    pub(super) fn set_end(&mut self, time: EventTime) {
        let driver = &self.driver;
        self.devices.change_all(|device| device.set_end(time, driver));
        self.host.set_end();
    }

    pub(super) fn withdraw_end(&mut self) {
        self.devices.change_all(DeviceState::withdraw_end);
        self.host.withdraw_end();
    }

    /// Applies a segment event of PyTorch's tracker, or the completion of a free.
    pub(super) fn on_tracker_event(&mut self, event: &Event, stack: StackId, time: EventTime) {
        self.managed_segments.on_segment_event(event, &self.driver);
        let device = device_of(&mut self.devices, event.device, time.step);
        device.on_tracker_event(event, stack, time);
    }

    /// Begins the analysed part of the run, of which `rest_ns` are left: rebases all state.
    pub(super) fn restart(&mut self, now: EventTime, rest_ns: u64) {
        for device in self.devices.all.iter_mut().flatten() {
            device.restart(now.time_ns, rest_ns, &self.driver);
        }
        // For devices that appear later.
        self.devices.axis = self.devices.axis.for_part(rest_ns);
        self.devices.first_step = now.step;
        self.host.rebase(now.time_ns, rest_ns);
        self.managed_segments.restart();
        self.non_device.restart();
    }
}
