//! The promise of the hook path, seen from the other side: an event waits for no lock that somebody in the process may hold. The loader's
//! is held inside of `dl_iterate_phdr`'s callbacks (unwinders call it), a stream's by whoever has called `flockfile`; an event that
//! took one of them would end here in a deadlock.

#![allow(clippy::exit, reason = "a scenario ends its own process")]

mod support;

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpumemtrace_format::EventKind;

/// Turns that a thread has made events in, of those it was asked for.
static ASKED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
/// Far more than any machine needs that is only busy.
const PATIENCE: Duration = Duration::from_mins(1);
const DEADLOCK: i32 = 23;

unsafe extern "C" {
    static stderr: *mut libc::FILE;
    fn flockfile(stream: *mut libc::FILE);
    fn funlockfile(stream: *mut libc::FILE);
}

/// Events at a depth that no event was made at before: its frames are walked and defined, not only compared.
#[inline(never)]
fn deeper(levels: u32) -> u32 {
    if levels == 0 {
        support::block(EventKind::BLOCK_ALLOC, 512, 512);
        support::call(EventKind::DEVICE_ALLOC, 1024, 512);
        return 1;
    }
    black_box(deeper(levels - 1)) + black_box(1)
}

fn make_events() {
    let mut done = 0;
    while done < 3 {
        if ASKED.load(Ordering::Acquire) > done {
            deeper(done * 3 + 1);
            done += 1;
            DONE.store(done, Ordering::Release);
        }
        std::thread::yield_now();
    }
}

/// Lets the other thread make events, and waits for it.
fn ask() {
    let turn = ASKED.fetch_add(1, Ordering::AcqRel) + 1;
    let begin = Instant::now();
    while DONE.load(Ordering::Acquire) < turn {
        if begin.elapsed() > PATIENCE {
            std::process::exit(DEADLOCK);
        }
        std::thread::yield_now();
    }
}

unsafe extern "C" fn ask_under_the_loaders_lock(
    _: *mut libc::dl_phdr_info,
    _: usize,
    _: *mut c_void,
) -> c_int {
    ask();
    // One module is enough.
    1
}

#[test]
fn scenario() {
    if support::asked_scenario().is_none() {
        return;
    }
    let thread = std::thread::spawn(make_events);
    // The first event may set things up.
    ask();
    // SAFETY: the callback has the right signature and uses no argument.
    unsafe { libc::dl_iterate_phdr(Some(ask_under_the_loaders_lock), std::ptr::null_mut()) };
    // SAFETY: the C library's own stream, locked and unlocked by this thread.
    unsafe {
        flockfile(stderr);
        ask();
        funlockfile(stderr);
    }
    thread.join().unwrap();
    gpumemtrace_recorder::end_at_exit();
    std::process::exit(0);
}

#[test]
fn an_event_waits_for_no_lock_of_the_process() {
    for stacks in ["none", "native"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("run.trace");
        let status = support::command("locks", &trace).env("GPUMEMTRACE_STACKS", stacks).status().unwrap();
        assert_eq!(status.code(), Some(0), "{stacks}: {DEADLOCK} is a deadlock");
        let left = support::TraceLeftovers::read(&trace);
        assert_eq!((left.events.len(), left.missing()), (6, 0));
        let with_stack = left.events.values().filter(|event| event.native_stack.0 != 0).count();
        assert_eq!(with_stack, if stacks == "native" { 6 } else { 0 });
    }
}
