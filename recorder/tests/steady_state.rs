//! Checks that after a thread's first event, an event makes no system call and no allocation. So it
//! takes no lock that waits, uses no file and does not grow the heap.

#![allow(
    clippy::exit,
    clippy::print_stderr,
    reason = "a scenario ends its own process; a skipped check is printed"
)]

mod native_allocations;
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use gpumemtrace_format::EventKind;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct CountingAllocator;

// SAFETY: forwards every call to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
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
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Too few to wake the writer, which is the only system call of the hook path.
const EVENTS: u64 = 1200;
/// More events than a ring can hold.
const MORE_THAN_A_RING: u64 = 300_000;
static DONE: AtomicU32 = AtomicU32::new(0);

/// From here on, `call` is followed by the first action, and any other system call by the second.
fn filter_system_calls(call: libc::c_long, [action, other]: [u32; 2], flags: libc::c_ulong) {
    let statement = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    // The number of the system call is at offset 0 of the filter's data.
    let program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        statement(libc::BPF_RET | libc::BPF_K, action, 0),
        statement(libc::BPF_RET | libc::BPF_K, other, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: affects the threads of a scenario's own process; the program outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter), 0);
    }
}

/// From here on, the calling thread may only exit; any other system call kills it.
fn forbid_system_calls() {
    filter_system_calls(libc::SYS_exit, [libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_THREAD], 0);
}

/// Records until the ring is full, after a filter has ended the writer thread.
fn record_without_writer() {
    support::record_block(EventKind::BLOCK_ALLOC, 1, 1);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = ALLOCATIONS.with(Cell::get);
    let actions = [libc::SECCOMP_RET_KILL_THREAD, libc::SECCOMP_RET_ALLOW];
    filter_system_calls(libc::SYS_pwrite64, actions, libc::SECCOMP_FILTER_FLAG_TSYNC);
    for i in 0..MORE_THAN_A_RING {
        support::record_block(EventKind::BLOCK_FREE, i, 512);
    }
    let allocated = ALLOCATIONS.with(Cell::get) - before;
    DONE.store(if allocated == 0 { 1 } else { 2 }, Ordering::Release);
}

extern "C" fn record_under_seccomp() {
    // The first event of each kind starts the session and fills the caches of the unwinder.
    support::record_block(EventKind::BLOCK_ALLOC, 1, 1);
    support::record_call(EventKind::DEVICE_ALLOC, 1, 1);
    let before = ALLOCATIONS.with(Cell::get);
    forbid_system_calls();
    for i in 0..EVENTS / 2 {
        support::record_call(EventKind::DEVICE_ALLOC, i, 512);
        support::record_block(EventKind::BLOCK_FREE, i, 512);
    }
    let allocated = ALLOCATIONS.with(Cell::get) - before;
    DONE.store(if allocated == 0 { 1 } else { 2 }, Ordering::Release);
    // SAFETY: ends this thread without any other system call.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Starts an interpreter that calls [`record_under_seccomp`] through ctypes, 30 frames deep and
/// without the GIL.
fn record_from_python(library: &str) {
    let library = CString::new(library).unwrap();
    let script = format!(
        "import ctypes\ncallback = ctypes.CFUNCTYPE(None)({})\n\
         def deeper(n):\n    callback() if n == 0 else deeper(n - 1)\ndeeper(30)\n",
        record_under_seccomp as *const () as usize
    );
    let script = CString::new(script).unwrap();
    // SAFETY: CPython's own embedding functions, called in order by the one thread that uses them.
    unsafe {
        let python = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!python.is_null(), "{library:?} does not load");
        let symbol = |name: &CStr| libc::dlsym(python, name.as_ptr());
        let initialize: extern "C" fn(c_int) = std::mem::transmute(symbol(c"Py_InitializeEx"));
        let run: extern "C" fn(*const c_char) -> c_int = std::mem::transmute(symbol(c"PyRun_SimpleString"));
        initialize(0);
        run(script.as_ptr());
    }
}

#[test]
fn scenario() {
    match support::requested_scenario() {
        None => return,
        Some(library) if library.starts_with('/') => std::thread::spawn(move || record_from_python(&library)),
        Some(name) if name == "lost-writer" => std::thread::spawn(record_without_writer),
        Some(_) => std::thread::spawn(|| record_under_seccomp()),
    };
    for _ in 0..6000 {
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
fn event_makes_no_system_call_and_no_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let status = support::run("seccomp", &trace);
    assert_eq!(status.code(), Some(0), "21: an event allocated; 22: an event made a system call");
    let left = support::TraceLeftovers::read(&trace);
    assert_eq!((left.events.len() as u64, left.missing_events()), (2 + EVENTS / 2 * 2, 0));
}

#[test]
fn event_that_finds_the_writer_ended_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let status = support::run("lost-writer", &trace);
    assert_eq!(status.code(), Some(0), "21: an event allocated; 22: the thread has ended");
    assert!(support::TraceLeftovers::read(&trace).image.unwrap().has_lost_writer);
}

/// The shared libraries of the interpreters on this machine, each with its `PYTHONHOME`.
fn interpreters() -> Vec<(String, String)> {
    let pyenv = std::env::var("PYENV_ROOT").or_else(|_| std::env::var("HOME").map(|home| home + "/.pyenv"));
    let mut candidates: Vec<String> = (10..=14).map(|minor| format!("python3.{minor}")).collect();
    if let Ok(versions) = std::fs::read_dir(pyenv.unwrap_or_default() + "/versions") {
        let name = |entry: std::fs::DirEntry| entry.path().join("bin/python").to_string_lossy().into_owned();
        candidates.extend(versions.flatten().map(name));
    }
    let script = "import sys, sysconfig as s; v = sys.version_info[:2]; (3, 10) <= v <= (3, 14) or sys.exit(1); \
                  print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME')); print(sys.base_prefix)";
    let query = |python: &String| {
        let output = Command::new(python)
            .args(["-c", script])
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?;
        let (library, home) = text.trim().split_once('\n')?;
        (library.contains(".so") && std::path::Path::new(library).exists())
            .then(|| (library.to_owned(), home.to_owned()))
    };
    let mut found: Vec<(String, String)> = candidates.iter().filter_map(query).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn event_with_thirty_python_frames_makes_none_either() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        assert!(std::env::var_os("GPUMEMTRACE_REQUIRE_ALL").is_none(), "no shared libpython on this machine");
        eprintln!("skipped: no shared libpython on this machine");
    }
    for (library, home) in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("run.trace");
        let status = support::command(&library, &trace).env("PYTHONHOME", &home).status().unwrap();
        assert_eq!(
            status.code(),
            Some(0),
            "{library}: 21: an event allocated; 22: an event made a system call"
        );
        let left = support::TraceLeftovers::read(&trace);
        assert_eq!((left.events.len() as u64, left.missing_events()), (2 + EVENTS / 2 * 2, 0));
        let names: Vec<&str> = left.codes.iter().map(|code| code.name.as_str()).collect();
        assert!(names.contains(&"deeper") && left.py_nodes.len() > 30, "{library}: {names:?}");
        assert!(
            left.events.values().all(|event| event.python_stack != gpumemtrace_format::NodeId::NONE),
            "{library}"
        );
    }
}
