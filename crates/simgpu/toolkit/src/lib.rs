//! The template of the simulated CUDA toolkit: `libcudart`, `libcublas`, `libcudnn` and the others
//! are copies of this library.
//!
//! Each PyTorch wheel needs other libraries, functions and symbol versions, and the user's machine
//! has no compiler. The template contains every hand-written function as `simgpu_fn_<name>`, and
//! numbered stubs that return 0 for all others. `simgpu-setup` gives each copy its names, SONAME
//! and versions. Each copy has its own state and its own way to the driver, like a library with a
//! static runtime.

// Exported functions have their C names.
#![allow(non_snake_case)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod cublas;
mod cudart;
mod cudnn;
mod driver;
mod entry;
mod fft_rand;
mod nccl;
mod nvml;
mod nvrtc;
mod solver;
mod stubs;
mod versions;
