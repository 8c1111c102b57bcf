//! A limit on waiting that does not count the time in which the process was stopped.
//!
//! A debugger, SIGSTOP or a frozen cgroup may stop the process for hours. The clock runs on, and a
//! thread that compares it with a start time would give up at once when the process continues. So a
//! wait is counted in short steps: a longer one has been interrupted.

use super::clock;

/// The largest step that counts in full. The naps between two calls are much shorter.
const LONGEST_STEP_NS: u64 = 100_000_000;

/// How long a thread goes on waiting. Ask at least every 100 ms.
#[derive(Debug)]
pub(crate) struct Patience {
    last_ns: u64,
    left_ns: u64,
}

impl Patience {
    /// A wait of at most `limit_ns` that begins now.
    pub(crate) fn new(limit_ns: u64) -> Self {
        Self { last_ns: clock::now_ns(), left_ns: limit_ns }
    }

    /// True once the limit has passed.
    pub(crate) fn is_exhausted(&mut self) -> bool {
        self.is_exhausted_at(clock::now_ns())
    }

    fn is_exhausted_at(&mut self, now_ns: u64) -> bool {
        let step_ns = now_ns.saturating_sub(self.last_ns).min(LONGEST_STEP_NS);
        self.last_ns = now_ns;
        self.left_ns = self.left_ns.saturating_sub(step_ns);
        self.left_ns == 0
    }

    /// The longest sleep until the next call.
    pub(crate) fn nap_ns(&self) -> u64 {
        self.left_ns.min(LONGEST_STEP_NS)
    }
}

/// How long a thread goes on waiting for another thread that makes no progress.
#[derive(Debug)]
pub(crate) struct ProgressPatience {
    patience: Patience,
    limit_ns: u64,
    progress: u32,
}

impl ProgressPatience {
    /// Waits for at most `limit_ns` without progress. `progress` changes with every step of the
    /// other thread.
    pub(crate) fn new(limit_ns: u64, progress: u32) -> Self {
        Self { patience: Patience::new(limit_ns), limit_ns, progress }
    }

    /// True once the limit has passed since the last call with another `progress`.
    pub(crate) fn is_exhausted(&mut self, progress: u32) -> bool {
        self.is_exhausted_at(clock::now_ns(), progress)
    }

    fn is_exhausted_at(&mut self, now_ns: u64, progress: u32) -> bool {
        if progress != self.progress {
            self.progress = progress;
            self.patience = Patience { last_ns: now_ns, left_ns: self.limit_ns };
        }
        self.patience.is_exhausted_at(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn stopped_time_does_not_count() {
        let mut patience = Patience { last_ns: 5, left_ns: 10 * SECOND_NS };
        let hour_ns = 3_600 * SECOND_NS;
        assert!(!patience.is_exhausted_at(hour_ns));
        assert_eq!(patience.left_ns, 10 * SECOND_NS - LONGEST_STEP_NS);
        let naps = 99 * 50;
        assert!((1..naps).all(|nap| !patience.is_exhausted_at(hour_ns + nap * 2_000_000)));
        assert!(patience.is_exhausted_at(hour_ns + naps * 2_000_000));
        assert_eq!(patience.nap_ns(), 0);
    }

    #[test]
    fn progress_begins_the_wait_anew() {
        let patience = Patience { last_ns: 0, left_ns: 200_000_000 };
        let mut waiting = ProgressPatience { patience, limit_ns: 200_000_000, progress: 7 };
        assert!(!waiting.is_exhausted_at(100_000_000, 7));
        assert!((2..100).all(|step| !waiting.is_exhausted_at(step * 100_000_000, step as u32 + 7)));
        assert!(!waiting.is_exhausted_at(10_000_000_000, 106));
        assert!(waiting.is_exhausted_at(10_100_000_000, 106));
    }

    #[test]
    fn clock_that_goes_back_counts_as_no_time() {
        let mut patience = Patience { last_ns: 100, left_ns: 10 };
        assert!(!patience.is_exhausted_at(50));
        assert!(patience.is_exhausted_at(60));
    }
}
