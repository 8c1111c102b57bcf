//! Which session records, if any: started by the first event, never copied by a fork.
//!
//! Constraint: any thread may make the first GPU call, and a child made by `fork` shares nothing but looks the same.
//! Consequence: the pointer to the session lives in a page that the kernel zeroes in a child (`MADV_WIPEONFORK`; an atfork
//! handler does the same on old kernels); starting is a small state machine in that page. A child of a process that already
//! recorded never records: CUDA does not work there, and the driver says so itself.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::session::{self, Session};
use crate::{clock, own_file};

/// The page that is empty again in a child.
#[derive(Debug)]
struct ForkGuard {
    session: AtomicPtr<Session>,
    state: AtomicU32,
}

const IDLE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const OFF: u32 = 3;

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
    // SAFETY: sessions are never freed.
    guard().and_then(|guard| unsafe { guard.session.load(Ordering::Acquire).as_ref() })
}

/// The session, started if this is the first event.
#[inline]
pub(crate) fn active_session() -> Option<&'static Session> {
    running().or_else(start_once)
}

#[cold]
fn start_once() -> Option<&'static Session> {
    let guard = guard().or_else(make_guard)?;
    match guard.state.compare_exchange(IDLE, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let saved_errno = crate::say::errno();
            let session = if SESSIONS.load(Ordering::Acquire) == 0 { session::start() } else { None };
            if let Some(session) = session {
                guard.session.store(std::ptr::from_ref(session).cast_mut(), Ordering::Release);
                SESSIONS.fetch_add(1, Ordering::AcqRel);
            }
            guard.state.store(if session.is_some() { RUNNING } else { OFF }, Ordering::Release);
            crate::say::set_errno(saved_errno);
            session
        }
        Err(STARTING) => {
            let begin = clock::now_ns();
            while guard.state.load(Ordering::Acquire) == STARTING {
                if clock::now_ns() - begin > START_PATIENCE_NS {
                    return None;
                }
                // SAFETY: a plain sleep.
                unsafe { libc::usleep(100) };
            }
            running()
        }
        Err(_) => running(),
    }
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
    unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) };
    let page = page.cast::<ForkGuard>();
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
        guard.session.store(std::ptr::null_mut(), Ordering::Release);
        let recorded = SESSIONS.load(Ordering::Acquire) != 0;
        guard.state.store(if recorded { OFF } else { IDLE }, Ordering::Release);
    }
    own_file::close_inherited();
}

/// From now on no hook records.
pub(crate) fn forget() {
    if let Some(guard) = guard() {
        guard.state.store(OFF, Ordering::Release);
        guard.session.store(std::ptr::null_mut(), Ordering::Release);
    }
}
