//! How often modules may have gone.
//!
//! Constraint: what is known of code is kept by its address, and another module may lie there later. Consequence: whoever notices that
//! one may have gone counts here, and what was learned under another count is learned again.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(1);

/// To be called after modules may have been unloaded: another one may lie at the same addresses.
pub fn note_module_unload() {
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Changes when modules may have been unloaded; never 0.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire) | 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_never_nothing() {
        let before = generation();
        note_module_unload();
        assert!(before != 0 && generation() != before);
    }
}
