//! Counts how often modules may have been unloaded.
//!
//! Unwind rules are cached by code address, and after an unload another module may lie at the same
//! address. So each unload that is noticed increments this counter, and rules that were read under
//! another count are read again.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Notes that a module was unloaded. Cached rules for code at its addresses are no longer valid.
pub fn note_module_unload() {
    GENERATION.fetch_add(1, Ordering::Release);
}

/// How often modules are known to have been unloaded. Nodes of code that was unloaded must not
/// stand for other code at the same address, so they are defined again after each of these.
static UNLOADS: AtomicU32 = AtomicU32::new(0);

/// Notes that modules are gone.
pub(crate) fn note_unloaded_modules() {
    UNLOADS.fetch_add(1, Ordering::Release);
    note_module_unload();
}

/// The number of unloads so far.
#[inline]
pub(crate) fn unloads() -> u32 {
    UNLOADS.load(Ordering::Acquire)
}

/// A number that changes when modules may have been unloaded. Never 0.
#[inline]
pub(crate) fn unload_generation() -> u32 {
    GENERATION.load(Ordering::Acquire) | 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_changes_and_is_never_zero() {
        let before = unload_generation();
        note_module_unload();
        assert!(before != 0 && unload_generation() != before);
    }
}
