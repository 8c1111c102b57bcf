//! Keeps `fork` apart from the writer thread's calls into the loader, the driver and NVML.
//!
//! A child that is forked during such a call inherits the library's locks, its temporary mappings
//! and half-changed lists, without the thread that would finish the call. So a fork waits until the
//! writer has left these libraries, and the writer does not enter them during a fork.
//!
//! The forking thread may hold a lock that the writer needs inside: a library's constructor that
//! forks holds the loader's. So both sides wait for at most a second, and then go on.
//! `tests/suite/durability/test_forks.py` has both cases.
//!
//! `vfork`, `_Fork` and the plain system calls run no fork handlers. Their children may only call
//! async-signal-safe functions, and none of these needs what the writer may hold.

use std::sync::atomic::{AtomicU32, Ordering};

use super::patience::Patience;
use super::{this_thread, wait, wake};

/// How long either side waits for the other.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Set while the writer is inside, or waits to enter. The other bits count the forks.
const WRITER: u32 = 1 << 31;

static GATE: ForkGate = ForkGate::new(PATIENCE_NS);

/// Calls into other libraries on the writer thread, outside of forks. Must not be nested.
pub(crate) fn outside_forks<R>(calls: impl FnOnce() -> R) -> R {
    let _inside = GATE.enter();
    calls()
}

/// To be called by the forking thread before a fork. Changes `errno`.
pub(crate) fn begin_fork() {
    GATE.begin_fork();
}

/// To be called in the parent after a fork, even if it failed. Changes `errno`.
pub(crate) fn end_fork() {
    GATE.end_fork();
}

/// To be called in the child, which has no writer thread.
pub(crate) fn reset_in_child() {
    GATE.reset();
}

#[derive(Debug)]
struct ForkGate {
    state: AtomicU32,
    /// The thread that is inside, or 0.
    writer: AtomicU32,
    patience_ns: u64,
}

/// Leaves the gate when dropped, also after a panic.
struct Inside<'a>(&'a ForkGate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.writer.store(0, Ordering::Relaxed);
        self.0.state.fetch_and(!WRITER, Ordering::Release);
        wake(&self.0.state);
    }
}

impl ForkGate {
    const fn new(patience_ns: u64) -> Self {
        Self { state: AtomicU32::new(0), writer: AtomicU32::new(0), patience_ns }
    }

    fn enter(&self) -> Inside<'_> {
        self.writer.store(this_thread(), Ordering::Relaxed);
        // Forks that begin now wait, so a loop of forks cannot keep the writer out.
        let mut state = self.state.fetch_or(WRITER, Ordering::AcqRel) | WRITER;
        let mut patience = Patience::new(self.patience_ns);
        while state & !WRITER != 0 {
            if patience.is_exhausted() {
                // A fork handler of the program may have been left by a jump. Do not wait again.
                self.state.store(WRITER, Ordering::Release);
                break;
            }
            wait(&self.state, state, patience.nap_ns());
            state = self.state.load(Ordering::Acquire);
        }
        Inside(self)
    }

    fn begin_fork(&self) {
        // NVML may start `nvidia-modprobe` from the writer thread.
        let is_writer = self.writer.load(Ordering::Relaxed) == this_thread();
        let mut patience = Patience::new(self.patience_ns);
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & WRITER == 0 || is_writer {
                match self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(now) => state = now,
                }
            } else if patience.is_exhausted() {
                // Later forks do not wait for the same call again.
                state = self.state.fetch_and(!WRITER, Ordering::AcqRel) & !WRITER;
            } else {
                wait(&self.state, state, patience.nap_ns());
                state = self.state.load(Ordering::Acquire);
            }
        }
    }

    fn end_fork(&self) {
        // The writer may have given up on this fork and reset the count.
        let one_less = |state: u32| (state & !WRITER != 0).then(|| state - 1);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        wake(&self.state);
    }

    fn reset(&self) {
        self.writer.store(0, Ordering::Relaxed);
        self.state.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    const SHORT: Duration = Duration::from_millis(20);
    /// Longer than any machine delays a thread.
    const LONG: Duration = Duration::from_mins(2);
    const SOON: Duration = Duration::from_mins(1);

    fn gate(patience: Duration) -> ForkGate {
        ForkGate::new(patience.as_nanos() as u64)
    }

    #[test]
    fn fork_and_writer_never_overlap() {
        let gate = gate(LONG);
        let (forks, is_inside) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        gate.begin_fork();
                        forks.fetch_add(1, Ordering::SeqCst);
                        assert!(!is_inside.load(Ordering::SeqCst));
                        forks.fetch_sub(1, Ordering::SeqCst);
                        gate.end_fork();
                    }
                });
            }
            for _ in 0..2000 {
                let _inside = gate.enter();
                is_inside.store(true, Ordering::SeqCst);
                assert_eq!(forks.load(Ordering::SeqCst), 0);
                is_inside.store(false, Ordering::SeqCst);
            }
        });
        assert_eq!(gate.state.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn fork_waits_for_a_limited_time_and_only_once() {
        let mut gate = gate(SHORT);
        // The writer is inside, and is another thread.
        gate.state.store(WRITER, Ordering::Relaxed);
        let start = Instant::now();
        gate.begin_fork();
        assert!(start.elapsed() >= SHORT);
        gate.patience_ns = LONG.as_nanos() as u64;
        let start = Instant::now();
        gate.begin_fork();
        assert!(start.elapsed() < SOON);
        gate.end_fork();
        gate.end_fork();
        assert_eq!(gate.state.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn writer_waits_for_a_limited_time_and_only_once() {
        let mut gate = gate(SHORT);
        gate.begin_fork();
        let start = Instant::now();
        drop(gate.enter());
        assert!(start.elapsed() >= SHORT);
        gate.patience_ns = LONG.as_nanos() as u64;
        let start = Instant::now();
        drop(gate.enter());
        assert!(start.elapsed() < SOON);
        gate.end_fork();
        assert_eq!(gate.state.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn writer_may_fork_and_a_child_starts_without_it() {
        let gate = gate(LONG);
        let inside = gate.enter();
        let start = Instant::now();
        gate.begin_fork();
        gate.end_fork();
        assert_eq!(gate.state.load(Ordering::SeqCst), WRITER);
        std::mem::forget(inside);
        gate.reset();
        gate.begin_fork();
        assert!(start.elapsed() < SOON);
    }
}
