//! How the library got into this process, which decides what it can record.
//!
//! There are three ways: the loader preloaded it, PyTorch loaded it as its allocator, or the
//! program loaded it and started a recording itself. `gpumemtrace_recorder::is_preloaded` answers
//! for the first; the flags here cover the rest. Each flag is set at most once, before the first
//! event that depends on it.

use std::sync::atomic::{AtomicBool, Ordering};

static STARTED_BY_PROGRAM: AtomicBool = AtomicBool::new(false);
#[cfg(target_os = "linux")]
static WITHOUT_DRIVER: AtomicBool = AtomicBool::new(false);
#[cfg(target_os = "linux")]
static LOADED_AFTER_DRIVER: AtomicBool = AtomicBool::new(false);

/// True once the program has called `gpumemtrace_start` in a process that was not preloaded.
pub(crate) fn is_started_by_program() -> bool {
    STARTED_BY_PROGRAM.load(Ordering::Acquire)
}

/// Notes a successful `gpumemtrace_start`.
pub(crate) fn set_started_by_program() {
    STARTED_BY_PROGRAM.store(true, Ordering::Release);
}

/// True if this recording omits all driver calls: the driver was loaded before it began.
#[cfg(target_os = "linux")]
pub(crate) fn is_without_driver() -> bool {
    WITHOUT_DRIVER.load(Ordering::Acquire)
}

/// Sets the value of [`is_without_driver`].
#[cfg(target_os = "linux")]
pub(crate) fn set_without_driver(is_without: bool) {
    WITHOUT_DRIVER.store(is_without, Ordering::Release);
}

/// True if the library was loaded, without a preload, into a process that already had the driver.
/// Calls through addresses that the program had taken by then are not recorded.
#[cfg(target_os = "linux")]
pub(crate) fn is_loaded_after_driver() -> bool {
    LOADED_AFTER_DRIVER.load(Ordering::Relaxed)
}

/// Makes [`is_loaded_after_driver`] true from now on.
#[cfg(target_os = "linux")]
pub(crate) fn set_loaded_after_driver() {
    LOADED_AFTER_DRIVER.store(true, Ordering::Relaxed);
}
