//! Arguments that come from C, as the other simulated libraries take them too.

pub(crate) use simgpu_common::{In, Out, Text};
