//! Which session is running in this process, if any.
//!
//! Any thread may make the first GPU call. A child made by `fork` has a copy of everything but must
//! not write to its parent's trace. So the pointer to the session and the start-up state machine
//! ([`StartState`]) live in one page that the kernel zeroes in a child (`MADV_WIPEONFORK`). On old
//! kernels an atfork handler does the same. A child of a process that has recorded never records:
//! CUDA does not work in such a child, and the driver reports that itself.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::Session;
use crate::diagnostics::{errno, set_errno};
use crate::platform::patience::Patience;
use crate::platform::{self, fork_gate, guarded_file};
use crate::ring::protocol::start::{IDLE, OFF, StartState};

/// The content of the page that is empty in a forked child.
type ForkGuard = StartState<Session>;

static GUARD: AtomicPtr<ForkGuard> = AtomicPtr::new(std::ptr::null_mut());
/// Sessions started. A fork does not reset it, so a child knows whether its parent has recorded.
static SESSIONS_STARTED: AtomicU32 = AtomicU32::new(0);
/// How long a thread waits for another thread that is starting the session.
const START_PATIENCE_NS: u64 = 5_000_000_000;

pub(super) fn next_generation() -> u32 {
    SESSIONS_STARTED.load(Ordering::Acquire) + 1
}

fn guard() -> Option<&'static ForkGuard> {
    // SAFETY: set once to a page that is never unmapped.
    unsafe { GUARD.load(Ordering::Acquire).as_ref() }
}

/// The running session; `None` if none was started or it has ended. Never starts one.
#[inline]
pub(crate) fn running() -> Option<&'static Session> {
    guard().and_then(ForkGuard::running)
}

/// True if the next event would start a session.
pub(crate) fn may_start() -> bool {
    SESSIONS_STARTED.load(Ordering::Acquire) == 0 && guard().is_none_or(ForkGuard::may_start)
}

/// The running session. The first caller creates it with `make`; others wait for that caller.
///
/// Leaves `errno` as it was.
#[cold]
pub(crate) fn start_once(make: impl FnOnce() -> Option<&'static Session>) -> Option<&'static Session> {
    let guard = guard().or_else(make_guard)?;
    let make = || {
        let saved_errno = errno();
        let session = if SESSIONS_STARTED.load(Ordering::Acquire) == 0 { make() } else { None };
        if session.is_some() {
            SESSIONS_STARTED.fetch_add(1, Ordering::AcqRel);
        }
        set_errno(saved_errno);
        session
    };
    let mut patience = None;
    guard.start(make, || {
        let patience = patience.get_or_insert_with(|| Patience::new(START_PATIENCE_NS));
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(100) };
        !patience.is_exhausted()
    })
}

fn make_guard() -> Option<&'static ForkGuard> {
    const PAGE: usize = 4096;
    // SAFETY: a new private mapping.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: exactly our page; zero bytes are the documented start of `ForkGuard`.
    unsafe { platform::zero_in_children(page.cast(), PAGE) };
    let page = page.cast::<ForkGuard>();
    // SAFETY: our page, which no other thread knows yet.
    unsafe { page.write(ForkGuard::idle()) };
    match GUARD.compare_exchange(std::ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        // The allocator of the program has registered its handlers by now, so ours run before them:
        // the writer can allocate while a fork waits for it.
        // SAFETY: handlers without arguments that only use atomics, futexes and `close`.
        Ok(_) => unsafe {
            libc::pthread_atfork(Some(begin_fork), Some(end_fork), Some(reset_in_child));
        },
        // Another thread was first.
        // SAFETY: exactly our page, which no other thread knows.
        Err(_) => unsafe {
            libc::munmap(page.cast(), PAGE);
        },
    }
    guard()
}

extern "C" fn begin_fork() {
    let saved = errno();
    fork_gate::begin_fork();
    set_errno(saved);
}

extern "C" fn end_fork() {
    let saved = errno();
    fork_gate::end_fork();
    set_errno(saved);
}

extern "C" fn reset_in_child() {
    fork_gate::reset_in_child();
    if let Some(guard) = guard() {
        let has_recorded = SESSIONS_STARTED.load(Ordering::Acquire) != 0;
        guard.end(if has_recorded { OFF } else { IDLE });
    }
    guarded_file::close_inherited();
}

/// Rules out any recording in this process from now on, even if none was started.
pub(crate) fn disable() {
    if let Some(guard) = guard().or_else(make_guard) {
        guard.end(OFF);
    }
}

/// Hides the session from hooks that begin from now on.
pub(super) fn clear() {
    if let Some(guard) = guard() {
        guard.end(OFF);
    }
}
