//! Threads: ids, liveness, priority, stacks, `errno` and pending signals.

use std::ffi::CStr;
use std::ffi::{c_int, c_void};

use crate::platform::LastThreadEnd;

/// `PROC_PIDTHREADID64INFO` of `sys/proc_info.h`: information about a thread by its id.
const THREAD_INFO_BY_ID: c_int = 15;

/// The id of the calling thread: the lower half of the system-wide thread id, which is never
/// reused.
#[inline]
pub(crate) fn this_thread() -> u32 {
    let mut number = 0;
    // SAFETY: fills in our own variable; 0 is the calling thread.
    unsafe { libc::pthread_threadid_np(0, &raw mut number) };
    number as u32
}

/// True if the given thread of this process has ended.
pub(crate) fn has_thread_ended(process: u32, thread: u32) -> bool {
    // SAFETY: all-zero bytes are a valid buffer.
    let mut info: libc::proc_threadinfo = unsafe { std::mem::zeroed() };
    let result = query_process(process, THREAD_INFO_BY_ID, u64::from(thread), &mut info);
    // SAFETY: always a valid pointer.
    result <= 0 && unsafe { *errno_location() } == libc::ESRCH
}

/// How the program has ended, if the calling thread and `other`, which is ours too, are the only
/// ones that still run. Ended threads are not counted, not even the first.
pub(crate) fn last_thread_end(process: u32, other: Option<u32>) -> Option<LastThreadEnd> {
    // SAFETY: all-zero bytes are a valid buffer.
    let mut info: libc::proc_taskinfo = unsafe { std::mem::zeroed() };
    let result = query_process(process, libc::PROC_PIDTASKINFO, 0, &mut info);
    let is_last =
        result == size_of_val(&info) as c_int && info.pti_threadnum == 1 + i32::from(other.is_some());
    is_last.then_some(LastThreadEnd::Returned)
}

/// Ends the process at once, without exit handlers.
pub(crate) fn exit_process(status: i32) -> ! {
    // SAFETY: the call does not return.
    unsafe { libc::_exit(status) }
}

/// Not reached: on macOS all threads end through the C library.
pub(crate) fn exit_thread(status: i32) -> ! {
    exit_process(status)
}

fn query_process<T>(process: u32, what: c_int, of: u64, info: &mut T) -> c_int {
    let buffer = std::ptr::from_mut(info).cast::<c_void>();
    // SAFETY: the length is that of the buffer.
    unsafe { libc::proc_pidinfo(process as c_int, what, of, buffer, size_of::<T>() as c_int) }
}

/// Lowers the priority of the calling thread a little below the program's threads. May be refused.
pub(crate) fn lower_priority() {
    // SAFETY: affects only the calling thread, which is ours. (`setpriority` affects the whole
    // process on macOS.)
    unsafe { libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_UTILITY, 0) };
}

/// Names the calling thread.
pub(crate) fn name_this_thread(name: &CStr) {
    // SAFETY: a NUL-terminated name; affects only the calling thread.
    unsafe { libc::pthread_setname_np(name.as_ptr()) };
}

/// The address of the calling thread's `errno`.
#[inline]
pub(crate) fn errno_location() -> *mut i32 {
    // SAFETY: no arguments, no effect.
    unsafe { libc::__error() }
}

/// Discards the one signal of a set if it is pending in the calling thread, where it must be
/// blocked.
pub(crate) fn discard_pending_signal(set: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: an initialised set, an empty one and a number, all ours. The wait returns at once:
    // the signal is pending.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        if *set & pending == *set {
            libc::sigwait(set, &raw mut signal);
        }
    }
}

/// The address range of the calling thread's stack, end exclusive.
pub(crate) fn stack_of_this_thread() -> Option<(usize, usize)> {
    // SAFETY: both only read the calling thread's own description.
    let (high, bytes) = unsafe {
        let thread = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(thread) as usize, libc::pthread_get_stacksize_np(thread))
    };
    Some((high.checked_sub(bytes)?, high))
}
