//! Measures how many events a process can record, with threads that do nothing else and a trace
//! that is written.
//!
//! Prints one row of a Markdown table for each number of threads. Each row is a process of its own,
//! because a process makes one recording. Wall time ends when the trace is closed; CPU time is
//! measured by thread. Extra memory is the peak of the process (VmHWM) minus its memory before the
//! first event, so it includes the mapped rings.
#![allow(missing_docs, clippy::print_stdout, reason = "a program")]

use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, record_event};

const THREADS: [u64; 4] = [1, 2, 8, 64];
const EVENTS: u64 = 8_000_000;
const THREADS_VARIABLE: &str = "THROUGHPUT_THREADS";

fn main() {
    match std::env::var(THREADS_VARIABLE).ok().and_then(|threads| threads.parse().ok()) {
        Some(threads) => record(threads),
        None => print_table(),
    }
}

fn print_table() {
    println!(
        "| threads | million events/s | CPU a thread's event | CPU of the writer | bytes/event | dropped | extra memory |"
    );
    println!("|---|---|---|---|---|---|---|");
    for threads in THREADS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let trace = folder.path().join("run.trace");
        let status = Command::new(std::env::current_exe().expect("this program"))
            .env(THREADS_VARIABLE, threads.to_string())
            .env("GPUMEMTRACE_OUTPUT", &trace)
            .env("GPUMEMTRACE_ON_FULL", "block")
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}

/// Records events like a training step: 40 lines, each with blocks of its own size.
fn record_steps(thread: u64, events: u64) {
    let mut allocated = 0;
    for number in 0..events {
        let line = number / 2 % 40;
        let is_alloc = number.is_multiple_of(2);
        let kind = if is_alloc { EventKind::BLOCK_ALLOC } else { EventKind::BLOCK_FREE };
        let mut draft = Draft::new(kind, ApiId::default());
        draft.size = 512 * (1 + line * line);
        allocated = if is_alloc { allocated + draft.size } else { allocated - draft.size };
        draft.device = 0;
        draft.addr = 0x7f00_0000_0000 + (thread << 32) + line * (2 << 20);
        draft.aux = [allocated, 64 << 20];
        record_event(&draft);
    }
}

fn record(threads: u64) {
    let each = EVENTS / threads;
    let before_kib = status_kib("VmRSS");
    let barrier = Barrier::new(threads as usize + 1);
    let (wall, cpu_ns) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    record_steps(thread, 1);
                    barrier.wait();
                    let begin = thread_cpu_ns();
                    record_steps(thread, each);
                    thread_cpu_ns() - begin
                })
            })
            .collect();
        barrier.wait();
        let begin = Instant::now();
        let cpu_ns: u64 = threads.into_iter().map(|thread| thread.join().expect("it ends")).sum();
        (begin, cpu_ns)
    });
    let writer_ns = writer_cpu_ns();
    let pss_kib = pss_of_rings_kib();
    gpumemtrace_recorder::end_at_exit();
    let wall = wall.elapsed();
    let extra_kib = status_kib("VmHWM") - before_kib;
    let trace = std::env::var("GPUMEMTRACE_OUTPUT").expect("a trace");
    let total = (each * threads) as f64;
    println!(
        "| {threads} | {:.1} | {:.0} ns | {:.0} ns | {:.2} | {} | {:.1} MiB, {:.1} of them rings |",
        total / wall.as_secs_f64() / 1e6,
        cpu_ns as f64 / total,
        writer_ns as f64 / total,
        std::fs::metadata(&trace).expect("a trace").len() as f64 / total,
        dropped(Path::new(&trace)),
        extra_kib as f64 / 1024.0,
        pss_kib as f64 / 1024.0,
    );
}

fn dropped(trace: &Path) -> u64 {
    use gpumemtrace_format::reader::{Item, TraceReader};
    let bytes = std::fs::read(trace).expect("a trace");
    let (mut read, mut dropped) = (0, None);
    for item in TraceReader::new(&bytes[..]).expect("a trace") {
        match item {
            Item::Events(events) => read += events.len() as u64,
            Item::End(end) => dropped = Some(end.events - read),
            _ => {}
        }
    }
    let counted = EVENTS.saturating_sub(read);
    dropped.expect("an end").max(counted)
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn writer_cpu_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let writer = tasks.flatten().map(|task| task.path()).find(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "gpumemtrace")
    });
    let spent = std::fs::read_to_string(writer.expect("the writer").join("schedstat")).expect("schedstat");
    spent.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn status_kib(name: &str) -> u64 {
    kib_of(&std::fs::read_to_string("/proc/self/status").expect("Linux"), name)
}

fn kib_of(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn pss_of_rings_kib() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
    let rings = maps.find(".trace.ring").map_or("", |at| &maps[at..]);
    kib_of(rings, "Pss:")
}
