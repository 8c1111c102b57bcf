//! `libgpumemtrace.so` and, on macOS, `libgpumemtrace.dylib`: thin hooks over the recorder.
//!
//! Every path to GPU memory ends in libcuda: dynamic and static CUDA runtimes, `dlopen` with
//! `dlsym`, ELF-linked callers. PyTorch serves most tensors from its cache without a driver call.
//! Two sets of hooks record these layers, and reports never add them up: `cuda` for the driver's
//! functions, `torch` for the blocks of PyTorch's allocator. No `cuda*` name is exported: it
//! would serve every CUDA runtime in the process, and be wrong for all but one.
//!
//! On macOS memory comes from Metal's objects; `metal` swizzles their classes. Nothing of CUDA is
//! built there.
//!
//! Each hook calls the real function with the program's own arguments and returns its result
//! unchanged. `loader` redirects calls to the hooks, and `registration` connects them to the
//! recorder. `lifecycle` handles process start and exit. `c_api` exports the functions that
//! programs call.

// Test binaries export nothing: a test must not hook its own process.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod attachment;
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
mod registration;
#[cfg(target_os = "linux")]
mod sanitizers;
#[cfg(target_os = "linux")]
mod torch;

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: gpumemtrace_recorder::Allocator = gpumemtrace_recorder::Allocator;
