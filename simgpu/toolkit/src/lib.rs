//! The template of the simulated CUDA toolkit: `libcudart`, `libcublas`, `libcudnn` and the rest are copies of this one library.
//!
//! Each PyTorch wheel wants other libraries, other functions and other symbol versions, and there is no compiler on the user's machine
//! -> every hand-written function of every library is in here under the name `simgpu_fn_<name>`, everything else is a numbered stub
//! that returns 0, and `simgpu-setup` gives each copy the names, the SONAME and the versions that the wheel asks for. A copy is a library
//! of its own, with its own state, that reaches the driver by itself, as libraries with a static runtime inside do.

// The exported functions have the names of the C interfaces.
#![allow(non_snake_case)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod cublas;
mod cudart;
mod cudnn;
mod driver;
mod entry;
mod facts;
mod fft_rand;
mod nccl;
mod nvml;
mod nvrtc;
mod solver;
mod stubs;
