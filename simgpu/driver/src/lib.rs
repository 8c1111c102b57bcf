//! A simulated CUDA driver: `libcuda.so.1` with real allocations and no GPU.
//!
//! Programs that use CUDA run unchanged: addresses come from the host's address space, capacity is counted, kernels do nothing. The
//! driver owns all state (`state`), the exported functions (`api`) translate between C and it, and every call that concerns memory goes
//! to a log that tests compare tracers with (`log`). `simgpu/README.md` is the user's page.

// The exported functions have the names of the C interface.
#![allow(non_snake_case)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod api;
mod config;
mod device_attributes;
mod entry;
mod fail;
mod ffi;
mod log;
mod names;
mod rc;
mod share;
mod state;
mod thunks;
