//! The states of all devices by ordinal, created when a device first appears.

use gpumemtrace_format::NO_DEVICE;

use crate::device::DeviceState;
use crate::event_analysis::{LiveBlockLookup, MetalLevels};
use crate::timeline::bin_axis::BinAxis;
use crate::util::ids::StackId;

/// The state of a device; a new one on its first event. One indexed access otherwise.
#[inline]
pub(crate) fn device_of(devices: &mut DeviceStates, ordinal: u8, step: u32) -> &mut DeviceState {
    if devices.all[usize::from(ordinal)].is_none() {
        devices.begin(ordinal, step);
    }
    match &mut devices.all[usize::from(ordinal)] {
        Some(device) => device,
        None => unreachable!("it was created above"),
    }
}

/// The states of all devices.
pub(crate) struct DeviceStates {
    /// One entry per possible ordinal.
    pub(crate) all: Vec<Option<Box<DeviceState>>>,
    /// Ordinals of the devices with a state.
    used: Vec<u8>,
    /// The axis of a device that appears.
    pub(crate) axis: BinAxis,
    /// Number of steps before the reported part of the run.
    pub(crate) first_step: u32,
    /// The options ask for the step before the peak.
    follows_step_peaks: bool,
    /// The options ask for a history.
    keeps_history: bool,
}

impl DeviceStates {
    /// No devices yet. Those that appear have this axis and these options.
    pub(crate) fn new(axis: BinAxis, follows_step_peaks: bool, keeps_history: bool) -> Self {
        Self {
            all: (0..=u8::MAX).map(|_| None).collect(),
            used: Vec::new(),
            axis,
            first_step: 0,
            follows_step_peaks,
            keeps_history,
        }
    }

    #[cold]
    fn begin(&mut self, ordinal: u8, step: u32) {
        self.used.push(ordinal);
        let mut state = DeviceState::at_step(step, self.axis).starting_at_step(self.first_step);
        if self.follows_step_peaks {
            state.torch.follow_step_peaks();
        }
        if self.keeps_history {
            state.keep_history(self.axis);
        }
        self.all[usize::from(ordinal)] = Some(Box::new(state));
    }

    /// Applies `change` to each state that exists.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut DeviceState)) {
        for ordinal in &self.used {
            if let Some(device) = &mut self.all[usize::from(*ordinal)] {
                change(device);
            }
        }
    }

    /// Bytes in PyTorch's live blocks by device, for devices with a known ordinal.
    pub(crate) fn torch_live_bytes(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = (0..=u8::MAX).zip(&self.all);
        all.filter_map(|(ordinal, device)| Some((ordinal, device.as_ref()?.torch.total().bytes)))
            .filter(|(ordinal, _)| *ordinal != NO_DEVICE)
    }
}

impl LiveBlockLookup for DeviceStates {
    fn stack_of_live_block(&self, device: u8, addr: u64) -> Option<StackId> {
        self.all.get(usize::from(device))?.as_ref()?.torch.stack_at(addr)
    }

    fn only_metal_device(&self) -> Option<MetalLevels> {
        let all =
            (0..=u8::MAX).zip(&self.all).filter_map(|(ordinal, device)| Some((ordinal, device.as_ref()?)));
        let mut used = all.filter(|(_, device)| !(device.torch.is_empty() && device.driver.is_empty()));
        let (ordinal, device) = used.next()?;
        let levels = MetalLevels {
            device: ordinal,
            bytes: device.driver.total().bytes,
            heaps: device.reserved,
            buffers: device.torch.total().bytes,
        };
        (ordinal != NO_DEVICE && used.next().is_none()).then_some(levels)
    }
}
