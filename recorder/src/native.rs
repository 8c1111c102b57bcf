//! Native call sites through the `backtrace` crate.
//!
//! Constraint: it is complete but slow (about 100 ns a frame), so it is off unless asked for (`GPUMEMTRACE_STACKS`).
//! Consequence: only return addresses are taken here; symbols are resolved at replay.

use crate::python::walk::Walk;
use crate::stack_cache::{FrameKey, MAX_DEPTH};

/// Writes the return addresses of the calling thread, innermost first.
pub(crate) fn capture(frames: &mut [FrameKey; MAX_DEPTH]) -> Walk {
    let mut walk = Walk { depth: 0, truncated: false };
    // SAFETY: the unsynchronised form only forbids symbol resolution at the same time, which this process never does
    // through this crate.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            if walk.depth == MAX_DEPTH {
                walk.truncated = true;
                return false;
            }
            // Some unwinders report the end of the stack as a frame at address 0.
            if frame.ip().is_null() {
                return false;
            }
            frames[walk.depth] = FrameKey { code: 0, instr: frame.ip() as usize, tag: 0 };
            walk.depth += 1;
            true
        });
    }
    walk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_are_found() {
        let mut frames = [FrameKey::default(); MAX_DEPTH];
        let walk = capture(&mut frames);
        assert!(walk.depth > 2 && !walk.truncated);
        assert!(frames[..walk.depth].iter().all(|frame| frame.instr != 0));
    }
}
