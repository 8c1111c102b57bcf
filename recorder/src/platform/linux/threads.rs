//! Threads: their numbers, whether they are still there, their stacks, their errors and signals.

use std::mem::MaybeUninit;

/// The calling thread's number.
#[inline]
pub(crate) fn this_thread() -> u32 {
    // SAFETY: no arguments, no effect.
    unsafe { libc::gettid() as u32 }
}

/// True if a thread of this process has ended.
pub(crate) fn is_gone(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered; it only asks whether the thread exists.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) != 0 && *errno_place() == libc::ESRCH }
}

/// Puts the calling thread a step behind the program's own. Refusal is harmless.
pub(crate) fn step_behind() {
    // SAFETY: 0 is the calling thread on Linux.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
}

/// Where the calling thread's `errno` is.
#[inline]
pub(crate) fn errno_place() -> *mut i32 {
    // SAFETY: no arguments, no effect.
    unsafe { libc::__errno_location() }
}

/// Forgets the one signal of a set, if it waits in this thread, where it is blocked.
pub(crate) fn forget_signal(set: &libc::sigset_t) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the signal is blocked in this thread; the wait has no length.
    unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &raw const at_once) };
}

/// The lowest address of the calling thread's stack, and the one behind its highest; `None` if the C library does not say.
pub(crate) fn stack_of_this_thread() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are filled in by the first call, read by the second and given back by the third.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let told = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (told == 0).then_some((low as usize, low as usize + size))
    }
}
