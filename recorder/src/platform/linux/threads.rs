//! Threads: ids, liveness, priority, stacks, `errno` and pending signals.

use std::ffi::CStr;
use std::mem::MaybeUninit;

/// The id of the calling thread.
#[inline]
pub(crate) fn this_thread() -> u32 {
    // glibc has the function `gettid` since 2.30 only.
    // SAFETY: no arguments, no effect.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// True if the given thread of this process has ended.
pub(crate) fn has_thread_ended(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered; it only asks whether the thread exists.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) != 0 && *errno_location() == libc::ESRCH }
}

/// Ends the process at once, without exit handlers.
pub(crate) fn exit_process(status: i32) -> ! {
    loop {
        // SAFETY: the call does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Ends the calling thread at once. As the last thread of the process, it ends that too.
pub(crate) fn exit_thread(status: i32) -> ! {
    loop {
        // SAFETY: the call does not return. The thread is detached, and holds nothing.
        unsafe { libc::syscall(libc::SYS_exit, status) };
    }
}

/// Lowers the priority of the calling thread a little below the program's threads. May be refused.
///
/// Does nothing under a seccomp filter, which may end the process at the call. The filters of
/// systemd units do (`SystemCallFilter=~@resources`).
pub(crate) fn lower_priority() {
    const FILTERED: i32 = 2;
    // SAFETY: no pointers; 0 is the calling thread on Linux.
    unsafe {
        if libc::prctl(libc::PR_GET_SECCOMP) != FILTERED {
            libc::setpriority(libc::PRIO_PROCESS, 0, 5);
        }
    }
}

/// Names the calling thread; the kernel keeps 15 bytes.
pub(crate) fn name_this_thread(name: &CStr) {
    // SAFETY: a NUL-terminated name; affects only the calling thread.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// The address of the calling thread's `errno`.
#[inline]
pub(crate) fn errno_location() -> *mut i32 {
    // SAFETY: no arguments, no effect.
    unsafe { libc::__errno_location() }
}

/// Discards the one signal of a set if it is pending in the calling thread, where it must be
/// blocked.
pub(crate) fn discard_pending_signal(set: &libc::sigset_t) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the signal is blocked in this thread; the wait has no length.
    unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &raw const at_once) };
}

/// The address range of the calling thread's stack, end exclusive. `None` if the C library does not
/// know.
pub(crate) fn stack_of_this_thread() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are filled in by the first call, read by the second and given back by
    // the third.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let result = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (result == 0).then_some((low as usize, low as usize + size))
    }
}
