//! Tells the program's side that it read placeholders from the GPU.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::known_bytes::Knowledge;

/// The function of `simgpuOnUnknownRead`, or 0.
static CALLBACK: AtomicUsize = AtomicUsize::new(0);

/// Sets the function that is called when a thread copies placeholders to the host; 0 for none.
pub(crate) fn set_callback(function: usize) {
    CALLBACK.store(function, Ordering::Release);
}

/// Handles a copy from simulated memory to the host.
pub(crate) fn on_read(knowledge: Knowledge) {
    let function = CALLBACK.load(Ordering::Acquire);
    if function != 0 && knowledge < Knowledge::Known {
        // SAFETY: the caller of `simgpuOnUnknownRead` passed a function without arguments.
        let function: extern "C" fn() = unsafe { std::mem::transmute(function) };
        function();
    }
}
