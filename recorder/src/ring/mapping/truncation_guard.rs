//! Until when no other process can have truncated the ring file.
//!
//! A store beyond the end of a mapped file raises SIGBUS, which ends the program. While the writer
//! thread holds its lease, another process that wants to truncate the file waits for our answer
//! ([`crate::platform::take_lease`]). A stopped process (SIGSTOP, a debugger, a frozen cgroup) does
//! not answer, so the kernel takes the lease away after `/proc/sys/fs/lease-break-time`. But that
//! time begins after the last check that found the lease unbroken. So one check is valid for a part
//! of that time, and each access to the mapping compares the clock with its end first. The writer
//! repeats the check at each nap; a hook repeats it only if the process was stopped in between.
//!
//! Not covered: a thread that is stopped between the comparison and its stores, less than a
//! microsecond later, and a truncation that no lease delays (docs/limits.md).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long a check is valid if the lease is held: at most this, and at most half of the time that
/// the kernel waits for an answer.
const LEASED_PERIOD_NS: u64 = 10_000_000_000;
/// How long a check of the file's size is valid without a lease.
const UNLEASED_PERIOD_NS: u64 = 500_000_000;

/// The result of the last check of the ring file.
#[derive(Debug)]
pub(super) struct TruncationGuard {
    safe_until_ns: AtomicU64,
    has_lease: AtomicBool,
    leased_period_ns: u64,
}

impl TruncationGuard {
    /// The guard of a file that was just made. `lease_break_ns` is the time that the kernel waits
    /// for the answer of a process that holds a lease; `None` if it is unknown.
    pub(super) fn new(now_ns: u64, lease_break_ns: Option<u64>) -> Self {
        let leased_period_ns = match lease_break_ns {
            // The kernel waits for ever.
            Some(0) => LEASED_PERIOD_NS,
            Some(ns) => LEASED_PERIOD_NS.min(ns / 2),
            None => UNLEASED_PERIOD_NS,
        };
        let safe_until_ns = AtomicU64::new(now_ns.saturating_add(UNLEASED_PERIOD_NS));
        Self { safe_until_ns, has_lease: AtomicBool::new(false), leased_period_ns }
    }

    /// True if the last check is still valid at `now_ns`.
    #[inline]
    pub(super) fn is_safe_at(&self, now_ns: u64) -> bool {
        now_ns < self.safe_until_ns.load(Ordering::Relaxed)
    }

    pub(super) fn has_lease(&self) -> bool {
        self.has_lease.load(Ordering::Acquire)
    }

    pub(super) fn set_lease(&self, is_held: bool) {
        self.has_lease.store(is_held, Ordering::Release);
    }

    /// Notes a check that began at `now_ns` and found the lease unbroken, or the size of the file
    /// unchanged.
    pub(super) fn renew(&self, now_ns: u64, is_lease_held: bool) {
        let period_ns = if is_lease_held { self.leased_period_ns } else { UNLEASED_PERIOD_NS };
        self.safe_until_ns.fetch_max(now_ns.saturating_add(period_ns), Ordering::AcqRel);
    }

    /// The mapping is anonymous memory from now on.
    pub(super) fn set_safe_for_good(&self) {
        self.safe_until_ns.store(u64::MAX, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn check_is_valid_for_less_than_the_kernel_waits() {
        let periods = [
            (Some(45 * SECOND_NS), 10 * SECOND_NS),
            (Some(2 * SECOND_NS), SECOND_NS),
            (Some(0), 10 * SECOND_NS),
            (None, UNLEASED_PERIOD_NS),
        ];
        for (lease_break_ns, period_ns) in periods {
            let guard = TruncationGuard::new(0, lease_break_ns);
            guard.renew(7 * SECOND_NS, true);
            assert!(guard.is_safe_at(7 * SECOND_NS + period_ns - 1), "{lease_break_ns:?}");
            assert!(!guard.is_safe_at(7 * SECOND_NS + period_ns), "{lease_break_ns:?}");
        }
    }

    #[test]
    fn older_check_does_not_shorten_a_newer_one() {
        let guard = TruncationGuard::new(0, Some(45 * SECOND_NS));
        assert!(guard.is_safe_at(0) && !guard.is_safe_at(SECOND_NS));
        guard.renew(SECOND_NS, true);
        guard.renew(2 * SECOND_NS, false);
        assert!(guard.is_safe_at(10 * SECOND_NS) && !guard.is_safe_at(11 * SECOND_NS));
        guard.set_safe_for_good();
        assert!(guard.is_safe_at(u64::MAX - 1));
    }
}
