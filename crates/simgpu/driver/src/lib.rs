//! A simulated CUDA driver: `libcuda.so.1` with real allocations and no GPU.
//!
//! CUDA programs run unchanged. Addresses come from the host's address space, capacity is counted,
//! and kernels do nothing. `state` holds all data, `api` has the exported functions, and `log`
//! writes each memory call to a log for tests of tracers. User documentation:
//! `crates/simgpu/README.md`.

// Exported functions have their C names.
#![allow(non_snake_case)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod address_thunks;
mod api;
mod config;
mod device_attributes;
mod entry;
mod ffi;
mod foreign_runtime;
mod log;
mod names;
mod planned_failures;
mod result_code;
mod shareable_fd;
mod state;
mod values;
