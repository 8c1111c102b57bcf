//! `libgpumemtrace.so` and, on macOS, `libgpumemtrace.dylib`: the hooks, thin over the recorder.
//!
//! Constraint: every path to GPU memory (dynamic and static CUDA runtimes, `dlopen` + `dlsym`, ELF-linked callers) ends in
//! libcuda, and PyTorch hands out blocks without asking anyone. Consequence: two sets of hooks that are never summed: the
//! driver's functions (`cuda`) and PyTorch's own report of each block (`torch`). No `cuda*` name is exported: one such
//! name would serve two runtimes in one process, and be wrong for one of them.
//!
//! On macOS memory comes from Metal's objects, whose classes are swizzled (`metal`); nothing of CUDA is built there.
//!
//! Each hook calls the real function with the program's own arguments and returns its result untouched. `process` is
//! what happens when the process starts and ends.

// The exported half of the library is left out of test binaries: a test must not hook its own process.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod c_api;
#[cfg(target_os = "linux")]
mod cuda;
mod lifecycle;
#[cfg(target_os = "linux")]
mod loader;
#[cfg(any(target_os = "macos", feature = "metal-double"))]
mod metal;
#[cfg(target_os = "linux")]
mod nvtx;
mod panic_guard;
#[cfg(target_os = "linux")]
mod torch;

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: gpumemtrace_recorder::Allocator = gpumemtrace_recorder::Allocator;
