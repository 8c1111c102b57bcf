//! Threads: their numbers, whether they are still there, their stacks, their errors and signals.

use std::ffi::{c_int, c_void};

/// `PROC_PIDTHREADID64INFO` of `sys/proc_info.h`: about the thread of a number.
const OF_THREAD: c_int = 15;

/// The calling thread's number: the system's, of which it uses one for each thread since it was started, without its upper half.
#[inline]
pub(crate) fn this_thread() -> u32 {
    let mut number = 0;
    // SAFETY: fills in our own number; 0 is the calling thread.
    unsafe { libc::pthread_threadid_np(0, &raw mut number) };
    number as u32
}

/// True if a thread of this process has ended.
pub(crate) fn is_gone(process: u32, thread: u32) -> bool {
    // SAFETY: all-zero bytes are a valid buffer.
    let mut info: libc::proc_threadinfo = unsafe { std::mem::zeroed() };
    let answer = ask(process, OF_THREAD, u64::from(thread), &mut info);
    // SAFETY: always a valid pointer.
    answer <= 0 && unsafe { *errno_place() } == libc::ESRCH
}

/// True if the calling thread is the only one that runs. One that has ended is in no list, the first one neither.
pub(crate) fn is_last_thread(process: u32) -> bool {
    // SAFETY: all-zero bytes are a valid buffer.
    let mut info: libc::proc_taskinfo = unsafe { std::mem::zeroed() };
    let answer = ask(process, libc::PROC_PIDTASKINFO, 0, &mut info);
    answer == size_of_val(&info) as c_int && info.pti_threadnum == 1
}

fn ask<T>(process: u32, what: c_int, of: u64, info: &mut T) -> c_int {
    let buffer = std::ptr::from_mut(info).cast::<c_void>();
    // SAFETY: the buffer is as long as we say.
    unsafe { libc::proc_pidinfo(process as c_int, what, of, buffer, size_of::<T>() as c_int) }
}

/// Puts the calling thread a step behind the program's own. Refusal is harmless.
pub(crate) fn step_behind() {
    // SAFETY: of the calling thread alone, which is ours. (`setpriority` is the whole process's here.)
    unsafe { libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_UTILITY, 0) };
}

/// Where the calling thread's `errno` is.
#[inline]
pub(crate) fn errno_place() -> *mut i32 {
    // SAFETY: no arguments, no effect.
    unsafe { libc::__error() }
}

/// Forgets the one signal of a set, if it waits in this thread, where it is blocked.
pub(crate) fn forget_signal(set: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: an initialised set, an empty one and a number, all ours. The wait has no length: the signal is there.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        if *set & pending == *set {
            libc::sigwait(set, &raw mut signal);
        }
    }
}

/// The lowest address of the calling thread's stack, and the one behind its highest.
pub(crate) fn stack_of_this_thread() -> Option<(usize, usize)> {
    // SAFETY: both only look at the calling thread's own description.
    let (high, bytes) = unsafe {
        let thread = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(thread) as usize, libc::pthread_get_stacksize_np(thread))
    };
    Some((high.checked_sub(bytes)?, high))
}
