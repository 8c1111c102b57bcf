//! Which session records, if any: started by the first event, never copied by a fork.
//!
//! Constraint: any thread may make the first GPU call, and a child made by `fork` shares nothing but looks the same.
//! Consequence: the pointer to the session lives in a page that the kernel zeroes in a child (`MADV_WIPEONFORK`; an atfork
//! handler does the same on old kernels); starting is a small state machine in that page. A child of a process that already
//! recorded never records: CUDA does not work there, and the driver says so itself.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::platform::{self, clock, guarded_file};
use crate::ring::protocol::start::{IDLE, OFF, StartState};
use crate::session::{self, Session};

/// What is in the page that is empty again in a child.
type ForkGuard = StartState<Session>;

static GUARD: AtomicPtr<ForkGuard> = AtomicPtr::new(std::ptr::null_mut());
/// Not wiped by a fork: tells a child that its parent recorded.
static SESSIONS: AtomicU32 = AtomicU32::new(0);
/// Longest wait for another thread that is just starting the session.
const START_PATIENCE_NS: u64 = 5_000_000_000;

/// The number of the next session.
pub(crate) fn next_generation() -> u32 {
    SESSIONS.load(Ordering::Acquire) + 1
}

fn guard() -> Option<&'static ForkGuard> {
    // SAFETY: set once to a page that is never unmapped.
    unsafe { GUARD.load(Ordering::Acquire).as_ref() }
}

/// The session, if one is running. Never starts one.
#[inline]
pub(crate) fn running() -> Option<&'static Session> {
    guard().and_then(ForkGuard::running)
}

/// True where the next event starts a session, if nothing goes wrong.
pub(crate) fn may_start() -> bool {
    SESSIONS.load(Ordering::Acquire) == 0 && guard().is_none_or(ForkGuard::is_to_come)
}

/// The session, started if this is the first event.
#[cold]
pub(crate) fn start_once() -> Option<&'static Session> {
    let guard = guard().or_else(make_guard)?;
    let make = || {
        let saved_errno = crate::diagnostics::errno();
        let session = if SESSIONS.load(Ordering::Acquire) == 0 { session::start() } else { None };
        if session.is_some() {
            SESSIONS.fetch_add(1, Ordering::AcqRel);
        }
        crate::diagnostics::set_errno(saved_errno);
        session
    };
    let mut begin_ns = None;
    guard.start(make, || {
        let begin_ns = *begin_ns.get_or_insert_with(clock::now_ns);
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(100) };
        clock::now_ns() - begin_ns <= START_PATIENCE_NS
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
    unsafe { platform::empty_in_children(page.cast(), PAGE) };
    let page = page.cast::<ForkGuard>();
    // SAFETY: our page, which nobody else knows yet.
    unsafe { page.write(ForkGuard::idle()) };
    match GUARD.compare_exchange(std::ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: a handler without arguments that only uses atomics and `close`.
        Ok(_) => unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        },
        // Another thread was first.
        // SAFETY: exactly our page, which nobody else knows.
        Err(_) => unsafe {
            libc::munmap(page.cast(), PAGE);
        },
    }
    guard()
}

extern "C" fn in_child() {
    if let Some(guard) = guard() {
        let recorded = SESSIONS.load(Ordering::Acquire) != 0;
        guard.end(if recorded { OFF } else { IDLE });
    }
    guarded_file::close_inherited();
}

/// Nothing is recorded in this process any more, also if nothing has been.
pub(crate) fn forget_for_good() {
    if let Some(guard) = guard().or_else(make_guard) {
        guard.end(OFF);
    }
}

/// From now on no hook records.
pub(crate) fn forget() {
    if let Some(guard) = guard() {
        guard.end(OFF);
    }
}
