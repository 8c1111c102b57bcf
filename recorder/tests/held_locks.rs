//! Checks that an event takes no lock that another thread of the process may hold.
//!
//! The loader's lock is held inside callbacks of `dl_iterate_phdr`, which unwinders call; the lock
//! of a stream is held after `flockfile`. An event that took one of them would deadlock here.

#![allow(clippy::exit, reason = "a scenario ends its own process")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpumemtrace_format::EventKind;

use crate::support;

/// Rounds of events that were requested from the recording thread, and that are done.
static REQUESTED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
/// Far longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_mins(1);
/// Exit code of a scenario that deadlocked.
const DEADLOCK: i32 = 23;

unsafe extern "C" {
    static stderr: *mut libc::FILE;
    fn flockfile(stream: *mut libc::FILE);
    fn funlockfile(stream: *mut libc::FILE);
}

/// Records events at a new stack depth, so that frames are walked and defined, not only compared.
#[inline(never)]
fn record_deeper(levels: u32) -> u32 {
    if levels == 0 {
        support::record_block(EventKind::BLOCK_ALLOC, 512, 512);
        support::record_call(EventKind::DEVICE_ALLOC, 1024, 512);
        return 1;
    }
    black_box(record_deeper(levels - 1)) + black_box(1)
}

fn record_on_request() {
    let mut done = 0;
    while done < 3 {
        if REQUESTED.load(Ordering::Acquire) > done {
            record_deeper(done * 3 + 1);
            done += 1;
            DONE.store(done, Ordering::Release);
        }
        std::thread::yield_now();
    }
}

/// Requests a round of events from the other thread, and waits for it.
fn request_events() {
    let round = REQUESTED.fetch_add(1, Ordering::AcqRel) + 1;
    let begin = Instant::now();
    while DONE.load(Ordering::Acquire) < round {
        if begin.elapsed() > PATIENCE {
            std::process::exit(DEADLOCK);
        }
        std::thread::yield_now();
    }
}

unsafe extern "C" fn request_under_loader_lock(
    _: *mut libc::dl_phdr_info,
    _: usize,
    _: *mut c_void,
) -> c_int {
    request_events();
    // One module is enough.
    1
}

/// The traced program: requests events while it holds the locks.
pub(crate) fn record_under_locks() {
    let thread = std::thread::spawn(record_on_request);
    // The first event starts the recording, which may take locks.
    request_events();
    // SAFETY: the callback has the right signature and uses no argument.
    unsafe { libc::dl_iterate_phdr(Some(request_under_loader_lock), std::ptr::null_mut()) };
    // SAFETY: the C library's own stream, locked and unlocked by this thread.
    unsafe {
        flockfile(stderr);
        request_events();
        funlockfile(stderr);
    }
    thread.join().unwrap();
    gpumemtrace_recorder::end_at_exit();
}

#[test]
fn event_takes_no_lock_that_the_process_may_hold() {
    for stacks in ["none", "native"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("run.trace");
        let status = support::command("locks", &trace).env("GPUMEMTRACE_STACKS", stacks).status().unwrap();
        assert_eq!(status.code(), Some(0), "{stacks}: {DEADLOCK} means a deadlock");
        let left = support::TraceLeftovers::read(&trace);
        assert_eq!((left.events.len(), left.missing_events()), (6, 0));
        let with_stack = left.events.values().filter(|event| event.native_stack.0 != 0).count();
        assert_eq!(with_stack, if stacks == "native" { 6 } else { 0 });
    }
}
