//! What the traced processes of the lifecycle tests do, by name.
#![allow(unreachable_pub, clippy::exit, reason = "a scenario ends its own process")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, begin};

use crate::support::{block, call};

/// Events of a scenario that makes many.
pub const MANY: u64 = 40_000;

/// How far the storm has come.
static STORM: AtomicU64 = AtomicU64::new(0);

/// Plays a scenario and ends the process.
pub fn play(name: &str) -> ! {
    if std::env::var_os("SIGPIPE_KILLS").is_some() {
        // SAFETY: the disposition that most programs have; Rust's runtime changes it.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match name {
        "exit" => {
            for i in 0..MANY {
                block(EventKind::BLOCK_ALLOC, i, 512);
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "incompressible" => {
            let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
            for _ in 0..200_000 {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                block(EventKind::BLOCK_ALLOC, noise, noise.rotate_left(32));
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "quick_exit" => {
            block(EventKind::BLOCK_ALLOC, 1, 512);
            gpumemtrace_recorder::end_at_quick_exit(7);
            // SAFETY: ends the process at once, as the hook of `_exit` does next.
            unsafe { libc::_exit(7) };
        }
        "killed" => {
            for i in 0..MANY {
                block(EventKind::BLOCK_ALLOC, i, 512);
            }
            // SAFETY: kills this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "killed_in_calls" => {
            call(EventKind::DEVICE_ALLOC, 0x1000, 512);
            std::thread::spawn(|| {
                let mut draft = Draft::new(EventKind::DEVICE_FREE, ApiId(2));
                draft.addr = 0x1000;
                let _never_finished = begin(&draft);
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            std::thread::sleep(Duration::from_millis(100));
            let mut draft = Draft::new(EventKind::DEVICE_ALLOC, ApiId(1));
            draft.size = 4096;
            let _never_finished = begin(&draft);
            // SAFETY: kills this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "threads" => {
            std::thread::scope(|scope| {
                for thread in 0..64u64 {
                    scope.spawn(move || {
                        for i in 0..2000 {
                            call(EventKind::DEVICE_ALLOC, thread << 32 | i, 512);
                        }
                    });
                }
            });
            gpumemtrace_recorder::end_at_exit();
        }
        "exit_in_a_storm" => {
            for thread in 0..8u64 {
                std::thread::spawn(move || {
                    for i in 0.. {
                        call(EventKind::DEVICE_ALLOC, thread << 32 | i, 512);
                        block(EventKind::BLOCK_ALLOC, thread << 32 | i, 512);
                        STORM.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while STORM.load(Ordering::Relaxed) < 20_000 {
                std::thread::sleep(Duration::from_millis(10));
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "closed_descriptors" => {
            block(EventKind::BLOCK_ALLOC, 0, 512);
            // SAFETY: what a daemon does to all descriptors, ours among them.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            let folder = std::path::PathBuf::from(std::env::var_os("GPUMEMTRACE_OUTPUT").unwrap());
            let files: Vec<std::fs::File> = (0..1200)
                .map(|_| std::fs::File::create(folder.with_file_name("precious")).unwrap())
                .collect();
            for i in 1..MANY {
                block(EventKind::BLOCK_ALLOC, i, 512);
            }
            std::thread::scope(|scope| {
                scope.spawn(|| block(EventKind::BLOCK_ALLOC, MANY, 512));
            });
            gpumemtrace_recorder::end_at_exit();
            drop(files);
        }
        "child_files" => {
            block(EventKind::BLOCK_ALLOC, 0, 512);
            // SAFETY: makes our numbers mean files of the program's, then a child, which must keep them open.
            let status = unsafe {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                for number in 3..2000 {
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
            assert_eq!(status, 0, "a child lost files that were not ours");
            gpumemtrace_recorder::end_at_exit();
        }
        "many_short_threads" => {
            for _ in 0..10 {
                std::thread::scope(|scope| {
                    for thread in 0..40u64 {
                        scope.spawn(move || block(EventKind::BLOCK_ALLOC, thread, 512));
                    }
                });
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "drop" => {
            for i in 0..400_000 {
                block(EventKind::BLOCK_ALLOC, i, 512);
            }
            gpumemtrace_recorder::end_at_exit();
        }
        "forks" => {
            std::thread::scope(|scope| {
                let storm = scope.spawn(|| {
                    for i in 0..200_000 {
                        block(EventKind::BLOCK_ALLOC, i, 512);
                    }
                });
                let mut children = 0;
                while !storm.is_finished() {
                    block(EventKind::BLOCK_FREE, 1, 1);
                    // SAFETY: the child only calls the recorder, which must do nothing there, and `_exit`.
                    match unsafe { libc::fork() } {
                        0 => {
                            for i in 0..100 {
                                block(EventKind::BLOCK_ALLOC, i, 77);
                            }
                            gpumemtrace_recorder::end_at_quick_exit(0);
                            // SAFETY: ends the child.
                            unsafe { libc::_exit(0) };
                        }
                        child => {
                            let mut status = 0;
                            // SAFETY: waits for the child made above.
                            unsafe { libc::waitpid(child, &raw mut status, 0) };
                            assert_eq!(status, 0, "a forked child did not end well");
                            children += 1;
                        }
                    }
                }
                assert!(children > 3);
            });
            gpumemtrace_recorder::end_at_exit();
        }
        "fork_first" => {
            // The parent never records; the child does.
            // SAFETY: a single-threaded part of the child goes on as a normal process.
            match unsafe { libc::fork() } {
                0 => {
                    block(EventKind::BLOCK_ALLOC, 1, 512);
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
            let outer = begin(&Draft::new(EventKind::DEVICE_ALLOC, ApiId(1))).unwrap();
            call(EventKind::DEVICE_ALLOC, 1, 1);
            outer.finish(0, |event| event.addr = 9);
            gpumemtrace_recorder::end_at_exit();
        }
        "nothing" => {}
        other => panic!("{other}"),
    }
    std::process::exit(0);
}
