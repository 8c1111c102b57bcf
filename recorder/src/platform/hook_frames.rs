//! Whether a hook that was entered earlier still exists in the thread's call chain.
//!
//! The stack pointer alone does not decide it: a handler may run on a stack of its own, and after a
//! `siglongjmp` the program may call us from a deeper function than before. So the chain is walked
//! with the C++ runtime's unwinder, which passes signal frames and changes of the stack. An open
//! hook is found by its stack pointer, which lies in exactly one frame of the chain. If that frame
//! is not one of this library's, the hook is gone.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A stack pointer inside the frame of a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackMark(usize);

impl StackMark {
    /// All zero bits, as in the memory of a new thread.
    pub(crate) const NONE: Self = Self(0);

    /// The stack pointer of the function into which this is inlined. That function must not return
    /// before its hook ends.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "a function of its own would have another frame")]
    pub fn here() -> Self {
        let at: usize;
        // SAFETY: reads a register.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("mov {}, rsp", out(reg) at, options(nomem, nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("mov {}, sp", out(reg) at, options(nomem, nostack, preserves_flags));
        }
        Self(at)
    }
}

/// What the call chain shows about an outer hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OuterHook {
    /// It exists, and a signal handler lies between it and this hook.
    Interrupted,
    /// It exists, and no signal handler lies in between: its real function made this call.
    Calling,
    /// It does not exist any more.
    Left,
    /// The chain cannot be followed that far.
    Unknown,
}

/// Start and end of this library's code; zero until [`prepare`].
static OWN_CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Finds out where this library's code lies.
pub(crate) fn prepare() {
    let here = prepare as *const () as u64;
    let modules = super::loaded_modules();
    if let Some(own) = modules.iter().find(|module| (module.start..module.end).contains(&here)) {
        OWN_CODE[0].store(own.start as usize, Ordering::Relaxed);
        OWN_CODE[1].store(own.end as usize, Ordering::Relaxed);
    }
}

/// Looks for the hook with this mark in the call chain of the calling thread, which is inside a
/// newer hook. Signals must be blocked: the unwinder may take a lock.
#[inline(never)]
pub(crate) fn find_outer_hook(mark: StackMark) -> OuterHook {
    let own_code = [0, 1].map(|end| OWN_CODE[end].load(Ordering::Relaxed));
    if own_code[0] == 0 {
        return OuterHook::Unknown;
    }
    let mut walk = Walk {
        mark: mark.0,
        own_code,
        begin: 0,
        frame: None,
        is_newest_hook: true,
        is_interrupted: false,
        is_one_stack: true,
        found: None,
    };
    // SAFETY: the callback gets back what is passed here, which outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    match walk.found {
        Some(found) => found,
        // All frames of this stack lie above the mark.
        None if walk.is_one_stack && walk.begin > mark.0 && !is_on_signal_stack() => OuterHook::Left,
        None => OuterHook::Unknown,
    }
}

/// True if the calling thread runs on its alternate signal stack.
fn is_on_signal_stack() -> bool {
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: changes nothing and fills in our own structure.
    unsafe {
        libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) == 0
            && stack.assume_init().ss_flags & libc::SS_ONSTACK != 0
    }
}

struct Walk {
    mark: usize,
    own_code: [usize; 2],
    /// Stack pointer of the first frame.
    begin: usize,
    /// The last visited frame: its stack pointer, and whether it belongs to this library.
    frame: Option<(usize, bool)>,
    /// No frame of the program has been visited.
    is_newest_hook: bool,
    /// A signal frame has been visited.
    is_interrupted: bool,
    /// Every frame lies above the one that it called.
    is_one_stack: bool,
    found: Option<OuterHook>,
}

impl Walk {
    /// Visits a frame. True if the walk is over.
    fn visit(&mut self, stack_pointer: usize, pc: usize, is_interrupted: bool) -> bool {
        let is_own = (self.own_code[0]..self.own_code[1]).contains(&pc);
        if let Some((inner, inner_is_own)) = self.frame {
            self.is_one_stack &= inner <= stack_pointer;
            if (inner..stack_pointer).contains(&self.mark) {
                let is_open = inner_is_own && !self.is_newest_hook;
                self.found = Some(match (is_open, self.is_interrupted) {
                    (false, _) => OuterHook::Left,
                    (true, true) => OuterHook::Interrupted,
                    (true, false) => OuterHook::Calling,
                });
                return true;
            }
        } else {
            self.begin = stack_pointer;
        }
        self.is_newest_hook &= is_own;
        self.is_interrupted |= is_interrupted;
        self.frame = Some((stack_pointer, is_own));
        false
    }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        walk: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut c_void, is_interrupted: *mut c_int) -> usize;
    fn _Unwind_GetCFA(frame: *mut c_void) -> usize;
}

unsafe extern "C" fn visit(frame: *mut c_void, walk: *mut c_void) -> c_int {
    const GO_ON: c_int = 0;
    const STOP: c_int = 5;
    let mut is_interrupted = 0;
    // SAFETY: the unwinder's own frame; the out-parameter is ours.
    let (pc, stack_pointer) =
        unsafe { (_Unwind_GetIPInfo(frame, &raw mut is_interrupted), _Unwind_GetCFA(frame)) };
    // SAFETY: the pointer that `find_outer_hook` passed.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    if walk.visit(stack_pointer, pc, is_interrupted != 0) { STOP } else { GO_ON }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: usize = 0x500;
    const PROGRAM: usize = 0x5000;

    /// Walks frames of (stack pointer, program counter, interrupted).
    fn found(mark: usize, frames: &[(usize, usize, bool)]) -> Option<OuterHook> {
        let mut walk = Walk {
            mark,
            own_code: [0x100, 0x1000],
            begin: 0,
            frame: None,
            is_newest_hook: true,
            is_interrupted: false,
            is_one_stack: true,
            found: None,
        };
        let _ = frames.iter().any(|(sp, pc, is_interrupted)| walk.visit(*sp, *pc, *is_interrupted));
        walk.found
    }

    #[test]
    fn hook_under_its_real_function_is_found() {
        let frames = [(10, OWN, false), (20, PROGRAM, false), (30, OWN, false), (40, PROGRAM, false)];
        assert_eq!(found(30, &frames), Some(OuterHook::Calling));
        assert_eq!(found(39, &frames), Some(OuterHook::Calling));
    }

    #[test]
    fn hook_under_a_signal_handler_is_found() {
        let frames = [(10, OWN, false), (20, PROGRAM, false), (30, OWN, true), (40, PROGRAM, false)];
        assert_eq!(found(33, &frames), Some(OuterHook::Interrupted));
        let other_stack = [(910, OWN, false), (920, PROGRAM, false), (30, OWN, true), (40, PROGRAM, false)];
        assert_eq!(found(33, &other_stack), Some(OuterHook::Interrupted));
    }

    #[test]
    fn hook_is_gone_if_its_place_belongs_to_another_frame() {
        let deeper = [(10, OWN, false), (20, PROGRAM, false), (50, PROGRAM, false)];
        assert_eq!(found(33, &deeper), Some(OuterHook::Left));
        let same_depth = [(30, OWN, false), (40, PROGRAM, false), (50, PROGRAM, false)];
        assert_eq!(found(33, &same_depth), Some(OuterHook::Left), "it is the newest hook's own frame");
    }
}
