//! Which series of a device a trace contains.

use gpumemtrace_replay::RunHistory;

/// The series of a device that are known. The others must not be exported as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::export) struct KnownSeries {
    /// Bytes in live blocks of PyTorch's allocator.
    pub(in crate::export) live: bool,
    /// Bytes reserved by PyTorch's allocator.
    pub(in crate::export) reserved: bool,
    /// Bytes that the driver handed to the process.
    pub(in crate::export) device: bool,
}

impl KnownSeries {
    pub(in crate::export) fn of_device(history: &RunHistory, ordinal: u8) -> Self {
        let Some(device) = history.devices.iter().find(|device| device.ordinal == ordinal) else {
            return Self::default();
        };
        // The history leaves out series that are unknown. Its live bytes are those of the driver in
        // a run without PyTorch.
        let [_, _, reserved, _, driver, _] = &device.series;
        Self { live: device.has_torch, reserved: !reserved.is_empty(), device: !driver.is_empty() }
    }
}
