//! Live, allocated and leaked memory by stack, for formats that show stacks.

mod collect;
mod frames;
mod peak_categories;
mod weight;

/// The note of an export without any block.
pub(crate) const EMPTY_NOTE: &str = "no memory was allocated in this part of the run: the file is empty";

pub(crate) use collect::{
    CollectedRun, DeviceStacks, RowLabels, StackRow, collect_stacks, device_name, devices_of_run,
};
pub(crate) use frames::{FrameOrigin, NamedStacks, ViewerFrame};
pub(crate) use weight::StackWeight;
