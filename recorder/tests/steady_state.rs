//! The promise of the hook path: once a thread has recorded its first event, an event needs no system call (so no lock
//! that waits, no file, no growing heap) and no allocation.

#![allow(clippy::exit, reason = "a scenario ends its own process")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use gpumemtrace_format::EventKind;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fewer than wake the writer: waking it is the one system call there is, once a round.
const EVENTS: u64 = 1500;
static DONE: AtomicU32 = AtomicU32::new(0);

/// From here on, this thread may only end; any other system call kills it.
fn forbid_system_calls() {
    let statement = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    // Offset 0 of the data a filter sees is the number of the call.
    let program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_exit as u32, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_THREAD, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: affects this thread alone, which ends without returning; the program outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

fn record_under_seccomp() {
    support::block(EventKind::BLOCK_ALLOC, 1, 1);
    let before = ALLOCATIONS.with(Cell::get);
    forbid_system_calls();
    for i in 0..EVENTS / 2 {
        support::call(EventKind::DEVICE_ALLOC, i, 512);
        support::block(EventKind::BLOCK_FREE, i, 512);
    }
    let allocated = ALLOCATIONS.with(Cell::get) - before;
    DONE.store(if allocated == 0 { 1 } else { 2 }, Ordering::Release);
    // SAFETY: ends this thread without running anything that would need a system call.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

#[test]
fn scenario() {
    if support::asked_scenario().is_none() {
        return;
    }
    std::thread::spawn(record_under_seccomp);
    for _ in 0..200 {
        if DONE.load(Ordering::Acquire) != 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let code = match DONE.load(Ordering::Acquire) {
        1 => 0,
        2 => 21,
        _ => 22,
    };
    gpumemtrace_recorder::end_at_exit();
    std::process::exit(code);
}

#[test]
fn an_event_makes_no_system_call_and_no_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let status = support::run("seccomp", &trace);
    assert_eq!(status.code(), Some(0), "21: it allocated; 22: it made a system call and was killed for it");
    let left = support::Left::read(&trace);
    assert_eq!((left.events.len() as u64, left.missing()), (1 + EVENTS / 2 * 2, 0));
}
