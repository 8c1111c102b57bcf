//! Live, allocated and leaked memory by stack, for formats that show stacks.

mod collect;
mod frames;
mod peak_categories;
mod value;

pub(crate) use collect::{
    Amount, CollectedRun, DeviceStacks, RowLabels, StackRow, collect_stacks, device_name, devices_of_run,
};
pub(crate) use frames::{FrameOrigin, NamedFrame, NamedStacks};
pub(crate) use value::StackValue;
