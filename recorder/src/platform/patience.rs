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

/// What a waiting thread sees of the thread that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// Changes with each step, for whichever thread.
    pub(crate) steps: u32,
    /// Number of finished rounds. In a round, the other thread does for each thread what it can.
    pub(crate) rounds: u32,
    /// Changes with each step for the waiting thread.
    pub(crate) own: u64,
}

/// Rounds after which steps for other threads do not count any more. The first may have begun
/// before the wait.
const ROUNDS_IN_VAIN: u32 = 2;

/// How long a thread goes on waiting for another thread that makes no progress.
#[derive(Debug)]
pub(crate) struct ProgressPatience {
    patience: Patience,
    limit_ns: u64,
    /// As it was at the last step that counted. `rounds` is of the last step for this thread.
    last: Progress,
}

impl ProgressPatience {
    /// Waits for at most `limit_ns` without progress.
    pub(crate) fn new(limit_ns: u64, progress: Progress) -> Self {
        Self { patience: Patience::new(limit_ns), limit_ns, last: progress }
    }

    /// True once the limit has passed since the last progress. That is a step for the calling
    /// thread, or any step until whole rounds have passed without one.
    pub(crate) fn is_exhausted(&mut self, progress: Progress) -> bool {
        self.is_exhausted_at(clock::now_ns(), progress)
    }

    fn is_exhausted_at(&mut self, now_ns: u64, progress: Progress) -> bool {
        let is_step = if progress.own == self.last.own {
            let is_in_vain = progress.rounds.wrapping_sub(self.last.rounds) >= ROUNDS_IN_VAIN;
            progress.steps != self.last.steps && !is_in_vain
        } else {
            self.last.rounds = progress.rounds;
            true
        };
        if is_step {
            self.last = Progress { rounds: self.last.rounds, ..progress };
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
        let mut waiting = waiting_from(7);
        let at = |steps| Progress { steps, rounds: 0, own: 0 };
        assert!(!waiting.is_exhausted_at(100_000_000, at(7)));
        assert!((2..100).all(|step| !waiting.is_exhausted_at(step * 100_000_000, at(step as u32 + 7))));
        assert!(!waiting.is_exhausted_at(10_000_000_000, at(106)));
        assert!(waiting.is_exhausted_at(10_100_000_000, at(106)));
    }

    #[test]
    fn steps_for_other_threads_do_not_count_after_rounds_in_vain() {
        let mut waiting = waiting_from(0);
        // A round takes one second and has ten steps. The first one serves this thread too.
        let at = |tenth: u64| Progress {
            steps: tenth as u32,
            rounds: tenth as u32 / 10,
            own: u64::from(tenth >= 10),
        };
        let ended = (1..100).find(|tenth| waiting.is_exhausted_at(tenth * 100_000_000, at(*tenth)));
        assert_eq!(ended, Some(31), "two rounds after the first, and the limit from the last step on");
    }

    #[test]
    fn rounds_that_serve_the_thread_begin_the_wait_anew() {
        let mut waiting = waiting_from(0);
        let at = |tenth: u64| Progress { steps: 0, rounds: 10 * tenth as u32, own: tenth };
        assert!((1..100).all(|tenth| !waiting.is_exhausted_at(tenth * 100_000_000, at(tenth))));
    }

    fn waiting_from(steps: u32) -> ProgressPatience {
        let (last_ns, limit_ns) = (0, 200_000_000);
        let patience = Patience { last_ns, left_ns: limit_ns };
        ProgressPatience { patience, limit_ns, last: Progress { steps, rounds: 0, own: 0 } }
    }

    #[test]
    fn clock_that_goes_back_counts_as_no_time() {
        let mut patience = Patience { last_ns: 100, left_ns: 10 };
        assert!(!patience.is_exhausted_at(50));
        assert!(patience.is_exhausted_at(60));
    }
}
