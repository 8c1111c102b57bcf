//! The exported C functions that programs and the Python package call.

#[cfg(target_os = "linux")]
mod held_memory;
mod holders;
mod markers;
#[cfg(any(target_os = "macos", feature = "metal-double"))]
mod mps_memory;
#[cfg(target_os = "macos")]
mod start_macos;
pub(crate) mod start_stop;
