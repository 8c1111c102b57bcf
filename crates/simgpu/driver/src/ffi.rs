//! FFI argument types, shared with the toolkit.

pub(crate) use simgpu_common::{In, Out, Text};
