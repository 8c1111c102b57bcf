//! The traced programs of the tests, by name.
#![allow(unreachable_pub, clippy::exit, reason = "a scenario ends its own process")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, begin_call};

use crate::support::{record_block, record_call};

/// Number of events in the larger scenarios.
pub const MANY: u64 = 40_000;

/// Default memory limit of the recorder, rings included.
const MEMORY_LIMIT_MIB: u64 = 64;

/// Events recorded in the scenario that exits while threads record.
static RECORDED: AtomicU64 = AtomicU64::new(0);

/// Runs a scenario and ends the process.
pub fn run_scenario(name: &str) -> ! {
    if std::env::var_os("SIGPIPE_KILLS").is_some() {
        // SAFETY: restores the default disposition, which Rust's runtime changes.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match name {
        "exit" => {
            for i in 0..MANY {
                record_block(EventKind::BLOCK_ALLOC, i, 512);
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "events_after_end" => {
            record_block(EventKind::BLOCK_ALLOC, 1, 512);
            gpumemtrace_recorder::end_at_exit();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        (0..100).for_each(|i| record_block(EventKind::BLOCK_ALLOC, thread, i));
                    });
                }
            });
            (0..100).for_each(|i| record_block(EventKind::BLOCK_ALLOC, i, 512));
        }
        "thread_after_last_handler" => {
            record_block(EventKind::BLOCK_ALLOC, 1, 512);
            gpumemtrace_recorder::end_after_exit_handlers();
            let late =
                std::thread::spawn(|| (0..10).for_each(|i| record_block(EventKind::BLOCK_ALLOC, i, 512)));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!late.is_finished(), "the thread waits for the end of the process");
            // This thread must be able to end the process.
            record_block(EventKind::BLOCK_ALLOC, 1, 512);
            if std::env::var_os("ENDS_LATE").is_some() {
                late.join().unwrap();
            }
        }
        "incompressible" => {
            let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
            for _ in 0..200_000 {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                record_block(EventKind::BLOCK_ALLOC, noise, noise.rotate_left(32));
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "quick_exit" => {
            record_block(EventKind::BLOCK_ALLOC, 1, 512);
            gpumemtrace_recorder::end_at_quick_exit(7);
            // SAFETY: ends the process at once, as the hook of `_exit` does next.
            unsafe { libc::_exit(7) };
        }
        "killed" => {
            for i in 0..MANY {
                record_block(EventKind::BLOCK_ALLOC, i, 512);
            }
            // SAFETY: kills this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "killed_in_calls" => {
            record_call(EventKind::DEVICE_ALLOC, 0x1000, 512);
            let (begin, has_begun) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let mut draft = Draft::new(EventKind::DEVICE_FREE, ApiId(2));
                draft.addr = 0x1000;
                let _never_completed = begin_call(&draft);
                begin.send(()).unwrap();
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            has_begun.recv().unwrap();
            let mut draft = Draft::new(EventKind::DEVICE_ALLOC, ApiId(1));
            draft.size = 4096;
            let _never_completed = begin_call(&draft);
            // SAFETY: kills this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "threads" => {
            std::thread::scope(|scope| {
                for thread in 0..64u64 {
                    scope.spawn(move || {
                        for i in 0..2000 {
                            record_call(EventKind::DEVICE_ALLOC, thread << 32 | i, 512);
                        }
                    });
                }
            });
            gpumemtrace_recorder::end_at_exit();
        }
        "reuse" => {
            reuse_addresses();
            gpumemtrace_recorder::end_at_exit();
        }
        "full_rings" => {
            let before_kib = memory_kib("VmRSS:");
            let barrier = std::sync::Barrier::new(64);
            std::thread::scope(|scope| {
                for thread in 0..64u64 {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        record_block(EventKind::BLOCK_ALLOC, thread << 32, 512);
                        barrier.wait();
                        for i in 1..40_000 {
                            record_block(EventKind::BLOCK_ALLOC, thread << 32 | (i * 512), 512);
                        }
                    });
                }
            });
            gpumemtrace_recorder::end_at_exit();
            let grown_kib = memory_kib("VmHWM:") - before_kib;
            let setting = std::env::var("GPUMEMTRACE_MEMORY").ok();
            let limit_mib =
                setting.map_or(MEMORY_LIMIT_MIB, |text| text.trim_end_matches("MiB").parse().unwrap());
            assert!(grown_kib <= limit_mib << 10, "{grown_kib} KiB");
        }
        "no_room_for_a_ring" => {
            record_block(EventKind::BLOCK_ALLOC, 1, 512);
            // Fills the small disk to the last page.
            let folder = std::path::PathBuf::from(std::env::var_os("GPUMEMTRACE_OUTPUT").unwrap());
            let mut filler = std::fs::File::create(folder.with_file_name("filler")).unwrap();
            while std::io::Write::write(&mut filler, &[1; 4096]).is_ok_and(|written| written > 0) {}
            for _ in 0..4 {
                std::thread::spawn(|| record_block(EventKind::BLOCK_ALLOC, 2, 512)).join().unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        "exit_while_recording" => {
            for thread in 0..8u64 {
                std::thread::spawn(move || {
                    for i in 0.. {
                        record_call(EventKind::DEVICE_ALLOC, thread << 32 | i, 512);
                        record_block(EventKind::BLOCK_ALLOC, thread << 32 | i, 512);
                        RECORDED.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while RECORDED.load(Ordering::Relaxed) < 20_000 {
                std::thread::sleep(Duration::from_millis(10));
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "closed_descriptors" => {
            record_block(EventKind::BLOCK_ALLOC, 0, 512);
            // SAFETY: closes all descriptors, as daemons do.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            let folder = std::path::PathBuf::from(std::env::var_os("GPUMEMTRACE_OUTPUT").unwrap());
            let files: Vec<std::fs::File> = (0..1200)
                .map(|_| std::fs::File::create(folder.with_file_name("precious")).unwrap())
                .collect();
            for i in 1..MANY {
                record_block(EventKind::BLOCK_ALLOC, i, 512);
            }
            std::thread::scope(|scope| {
                scope.spawn(|| record_block(EventKind::BLOCK_ALLOC, MANY, 512));
            });
            gpumemtrace_recorder::end_at_exit();
            drop(files);
        }
        "child_files" => {
            record_block(EventKind::BLOCK_ALLOC, 0, 512);
            // SAFETY: gives our descriptors to files of the program, then forks a child, which must
            // keep them open.
            let status = unsafe {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                // Downwards: upwards, the next number is the one that the recorder gets when it
                // opens its file again, and closes while it becomes the program's.
                for number in (3..2000).rev() {
                    libc::dup2(null, number);
                }
                match libc::fork() {
                    0 => {
                        let lost = (3..1000).filter(|number| libc::fcntl(*number, libc::F_GETFD) < 0).count();
                        libc::_exit(i32::from(lost != 0))
                    }
                    child => {
                        let mut status = 0;
                        libc::waitpid(child, &raw mut status, 0);
                        status
                    }
                }
            };
            assert_eq!(status, 0, "the child lost files of the program");
            gpumemtrace_recorder::end_at_exit();
        }
        "many_short_threads" => {
            for _ in 0..10 {
                std::thread::scope(|scope| {
                    for thread in 0..40u64 {
                        scope.spawn(move || record_block(EventKind::BLOCK_ALLOC, thread, 512));
                    }
                });
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "drop" => {
            for i in 0..400_000 {
                record_block(EventKind::BLOCK_ALLOC, i, 512);
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "forks" => {
            let (children, mut failed) = (AtomicU64::new(0), false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for i in (0..).take_while(|i| *i < 200_000 || children.load(Ordering::Relaxed) < 20) {
                        record_block(EventKind::BLOCK_ALLOC, i, 512);
                    }
                });
                while children.load(Ordering::Relaxed) < 20 {
                    record_block(EventKind::BLOCK_FREE, 1, 1);
                    // SAFETY: the child only calls the recorder, which must do nothing there, and
                    // `_exit`.
                    match unsafe { libc::fork() } {
                        0 => {
                            for i in 0..100 {
                                record_block(EventKind::BLOCK_ALLOC, i, 77);
                            }
                            gpumemtrace_recorder::end_at_quick_exit(0);
                            // SAFETY: ends the child.
                            unsafe { libc::_exit(0) };
                        }
                        child => {
                            let mut status = 0;
                            // SAFETY: waits for the child made above.
                            unsafe { libc::waitpid(child, &raw mut status, 0) };
                            failed |= status != 0;
                            children.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
            assert!(!failed, "a forked child failed");
            gpumemtrace_recorder::end_at_exit();
        }
        "fork_first" => {
            // The parent never records; the child does.
            // SAFETY: the process has one thread, so the child may go on as a normal process.
            match unsafe { libc::fork() } {
                0 => {
                    record_block(EventKind::BLOCK_ALLOC, 1, 512);
                    gpumemtrace_recorder::end_at_exit();
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                child => {
                    // SAFETY: waits for the child made above.
                    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                }
            }
        }
        "nested" => {
            let outer = begin_call(&Draft::new(EventKind::DEVICE_ALLOC, ApiId(1))).unwrap();
            call_through_libc();
            outer.complete(0, |event| event.addr = 9);
            gpumemtrace_recorder::end_at_exit();
        }
        "locks" => crate::held_locks::record_under_locks(),
        "nothing" => {}
        other => panic!("{other}"),
    }
    std::process::exit(0);
}

/// Makes a call as a driver does: between the two hooks lies a frame of another library.
fn call_through_libc() {
    unsafe extern "C" fn compare(_: *const libc::c_void, _: *const libc::c_void) -> libc::c_int {
        record_call(EventKind::DEVICE_ALLOC, 1, 1);
        0
    }
    let (key, table) = (1_u8, [1_u8]);
    // SAFETY: a table of one element, and a function that does not read it.
    unsafe { libc::bsearch((&raw const key).cast(), table.as_ptr().cast(), 1, 1, Some(compare)) };
}

/// Threads that share a few addresses, so that another thread reuses each address at once. Like a
/// driver, the pool hands out an address only after the call that freed it was made. The calls are
/// made under the pool's lock, their records are not.
fn reuse_addresses() {
    const ADDRESSES: u64 = 16;
    let free: Mutex<Vec<u64>> = Mutex::new((1..=ADDRESSES).map(|number| number << 21).collect());
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let mut made = 0;
                while made < 1000 {
                    let call = begin_call(&Draft::new(EventKind::DEVICE_ALLOC, ApiId(1))).expect("recording");
                    let taken = free.lock().unwrap().pop();
                    call.complete(if taken.is_some() { 0 } else { 2 }, |event| {
                        event.addr = taken.unwrap_or(0);
                    });
                    let Some(addr) = taken else {
                        std::thread::yield_now();
                        continue;
                    };
                    let mut draft = Draft::new(EventKind::DEVICE_FREE, ApiId(2));
                    draft.addr = addr;
                    let call = begin_call(&draft).expect("recording");
                    free.lock().unwrap().push(addr);
                    // Another thread takes the address before this call has returned.
                    std::thread::yield_now();
                    call.complete(0, |_| ());
                    made += 1;
                }
            });
        }
    });
}

/// A value in KiB from `/proc/self/status`.
fn memory_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a line of this name");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
