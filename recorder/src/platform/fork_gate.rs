//! Keeps `fork` apart from the calls of our threads into the loader, the driver and NVML.
//!
//! A child that is forked during such a call inherits the library's locks, its temporary mappings
//! and half-changed lists, without the thread that would finish the call. So a fork waits until our
//! threads have left these libraries, and they do not enter them during a fork. Each of our two
//! threads has a gate of its own: one of them may be stuck.
//!
//! The forking thread may hold a lock that our thread needs inside: a library's constructor that
//! forks holds the loader's. So both sides wait for at most a second, and then go on.
//! `tests/suite/durability/test_forks.py` has both cases.
//!
//! `vfork`, `_Fork` and the plain system calls run no fork handlers. Their children may only call
//! async-signal-safe functions, and none of these needs what our threads may hold.

use std::sync::atomic::{AtomicU32, Ordering};

use super::patience::Patience;
use super::{this_thread, wait, wake};

/// How long either side waits for the other.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Set while our thread is inside, or waits to enter. The other bits count the forks.
const INSIDE: u32 = 1 << 31;

/// The gate of the writer thread.
pub(crate) static WRITER: ForkGate = ForkGate::new(PATIENCE_NS);
/// The gate of the thread that asks the driver and NVML.
pub(crate) static LIBRARY_THREAD: ForkGate = ForkGate::new(PATIENCE_NS);

/// To be called by the forking thread before a fork. Changes `errno`.
pub(crate) fn begin_fork() {
    WRITER.begin_fork();
    LIBRARY_THREAD.begin_fork();
}

/// To be called in the parent after a fork, even if it failed. Changes `errno`.
pub(crate) fn end_fork() {
    LIBRARY_THREAD.end_fork();
    WRITER.end_fork();
}

/// To be called in the child, which has none of our threads.
pub(crate) fn reset_in_child() {
    WRITER.reset();
    LIBRARY_THREAD.reset();
}

/// Keeps one of our threads apart from forks.
#[derive(Debug)]
pub(crate) struct ForkGate {
    state: AtomicU32,
    /// The thread that is inside, or 0.
    thread: AtomicU32,
    patience_ns: u64,
}

/// Leaves the gate when dropped, also after a panic.
struct Inside<'a>(&'a ForkGate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Release);
        self.0.state.fetch_and(!INSIDE, Ordering::Release);
        wake(&self.0.state);
    }
}

impl ForkGate {
    const fn new(patience_ns: u64) -> Self {
        Self { state: AtomicU32::new(0), thread: AtomicU32::new(0), patience_ns }
    }

    /// Calls into other libraries, outside of forks. For one thread only; must not be nested.
    pub(crate) fn outside_forks<R>(&self, calls: impl FnOnce() -> R) -> R {
        let _inside = self.enter();
        calls()
    }

    /// Leaves the gate on a thread that will do nothing any more.
    pub(crate) fn leave_for_good(&self) {
        drop(Inside(self));
    }

    /// True while our thread is inside another library, or waits to enter.
    pub(crate) fn is_inside(&self) -> bool {
        self.thread.load(Ordering::Acquire) != 0
    }

    fn enter(&self) -> Inside<'_> {
        self.thread.store(this_thread(), Ordering::Relaxed);
        // Forks that begin now wait, so a loop of forks cannot keep our thread out.
        let mut state = self.state.fetch_or(INSIDE, Ordering::AcqRel) | INSIDE;
        let mut patience = Patience::new(self.patience_ns);
        while state & !INSIDE != 0 {
            if patience.is_exhausted() {
                // A fork handler of the program may have been left by a jump. Do not wait again.
                self.state.store(INSIDE, Ordering::Release);
                break;
            }
            wait(&self.state, state, patience.nap_ns());
            state = self.state.load(Ordering::Acquire);
        }
        Inside(self)
    }

    fn begin_fork(&self) {
        // NVML may start `nvidia-modprobe` from our thread.
        let is_own = self.thread.load(Ordering::Relaxed) == this_thread();
        let mut patience = Patience::new(self.patience_ns);
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & INSIDE == 0 || is_own {
                match self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(now) => state = now,
                }
            } else if patience.is_exhausted() {
                // Later forks do not wait for the same call again.
                state = self.state.fetch_and(!INSIDE, Ordering::AcqRel) & !INSIDE;
            } else {
                wait(&self.state, state, patience.nap_ns());
                state = self.state.load(Ordering::Acquire);
            }
        }
    }

    fn end_fork(&self) {
        // Our thread may have given up on this fork and reset the count.
        let one_less = |state: u32| (state & !INSIDE != 0).then(|| state - 1);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        wake(&self.state);
    }

    fn reset(&self) {
        self.thread.store(0, Ordering::Relaxed);
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
    fn fork_and_our_thread_never_overlap() {
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
        // Our thread is inside, and is another one than this.
        gate.state.store(INSIDE, Ordering::Relaxed);
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
    fn our_thread_waits_for_a_limited_time_and_only_once() {
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
    fn our_thread_may_fork_and_a_child_starts_without_it() {
        let gate = gate(LONG);
        let inside = gate.enter();
        let start = Instant::now();
        gate.begin_fork();
        gate.end_fork();
        assert_eq!(gate.state.load(Ordering::SeqCst), INSIDE);
        std::mem::forget(inside);
        gate.reset();
        gate.begin_fork();
        assert!(start.elapsed() < SOON);
    }
}
