//! Shows without a system call that a thread has ended, however it ended.
//!
//! A hook may run under a seccomp filter that allows few calls, so it cannot ask the kernel. The
//! kernel itself marks the robust mutexes of a thread that ends ([get_robust_list(2)]).
//!
//! [get_robust_list(2)]: https://man7.org/linux/man-pages/man2/get_robust_list.2.html

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bit of a mutex's first word that the kernel sets (`FUTEX_OWNER_DIED`).
const OWNER_DIED: u32 = 0x4000_0000;

/// The mark of one thread. Never freed.
#[derive(Debug)]
pub(crate) struct LifeMark(UnsafeCell<libc::pthread_mutex_t>);

impl LifeMark {
    /// The mark of the calling thread. `None` if the system has none.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_this_thread() -> Option<&'static Self> {
        let mark: &Self = Box::leak(Box::new(Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))));
        let mut attributes = std::mem::MaybeUninit::uninit();
        // SAFETY: the attributes are initialised first and destroyed last. The mutex has its final
        // place, and no other thread knows it.
        let is_held = unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            let is_made = libc::pthread_mutex_init(mark.0.get(), attributes.as_ptr()) == 0;
            libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
            is_made && libc::pthread_mutex_lock(mark.0.get()) == 0
        };
        is_held.then_some(mark)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_this_thread() -> Option<&'static Self> {
        None
    }

    /// True if the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        // SAFETY: the first word of the C library's mutexes is what the kernel and all threads
        // change with atomics.
        unsafe { AtomicU32::from_ptr(self.0.get().cast()) }.load(Ordering::Acquire) & OWNER_DIED != 0
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn mark_shows_the_end_of_its_thread() {
        let (sender, marks) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mark = LifeMark::of_this_thread().unwrap();
            sender.send(std::ptr::from_ref(mark) as usize).unwrap();
            let _ = wait.recv();
        });
        // SAFETY: a mark is never freed.
        let mark = unsafe { &*(marks.recv().unwrap() as *const LifeMark) };
        assert!(!mark.has_ended());
        drop(end);
        thread.join().unwrap();
        assert!(mark.has_ended());
    }
}
