//! The exported C functions that programs and the Python package call.
//!
//! They are found by name, with `ctypes` or `dlsym`. None of them begins a recording except
//! `gpumemtrace_start`; without a recording the others do nothing or return 0.

#[cfg(target_os = "linux")]
mod held_memory;
mod holders;
mod markers;
#[cfg(any(target_os = "macos", feature = "metal-double"))]
mod mps_memory;
mod start_stop;
