//! A running program at one moment, for `replay --follow`.

use std::collections::BTreeMap;

use crate::report::Site;

/// Bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes in live blocks of PyTorch's allocator; `None` before its first block.
    pub allocated: Option<u64>,
    /// Bytes in segments of PyTorch's allocator; `None` before its first block.
    pub reserved: Option<u64>,
    /// Bytes allocated from the driver.
    pub driver: u64,
}

/// A call site with growing memory.
#[derive(Clone, Debug, PartialEq)]
pub struct GrownSite {
    /// The site, without a stack.
    pub site: Site,
    /// Growth in bytes over `span_ns`.
    pub bytes: u64,
    /// Time from the earlier view to the present.
    pub span_ns: u64,
}

/// The state of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunView {
    /// Number of events so far.
    pub events: u64,
    /// Time from the first event to the last.
    pub span_ns: u64,
    /// Number of steps begun; `None` while no step source is known.
    pub steps: Option<u32>,
    /// Bytes of each device, by ordinal.
    pub devices: BTreeMap<u8, DeviceBytes>,
    /// The site with the most growth.
    pub grown: Option<GrownSite>,
}
