//! Whether a recorder may still write a trace that has no end.
//!
//! The recorder locks its trace (`flock`), and the kernel releases the lock when the process dies.
//! A free lock therefore shows at once that the program was killed, but only if the lock would be
//! visible here. Lustre can be mounted without locks (`noflock`), or with locks that other nodes
//! do not see (`localflock`; on NFS, `local_lock`): mount.lustre(8), nfs(5). There a free lock
//! means nothing, and only a long time without events shows that the program is gone.

use std::time::{Duration, Instant};

/// A program with a free lock is gone once the trace has had no new events for this long.
const MAX_QUIET_TIME: Duration = Duration::from_millis(500);
/// The same if the lock proves nothing. The recorder writes new events within about five seconds.
pub(super) const MAX_UNPROVEN_QUIET_TIME: Duration = Duration::from_mins(1);

/// What an attempt to lock a trace has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecorderLock {
    Held,
    Free,
    /// The file cannot be opened or locked.
    Unknown,
}

/// Whether a lock of the recorder would be visible here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockVisibility {
    /// Assumed for a trace of this host only.
    Unproven,
    /// The lock was seen held.
    Proven,
    /// Events came after the lock was seen free.
    Disproven,
}

/// What the lock and the growth of a trace have shown so far.
pub(super) struct RecorderPresence {
    lock: RecorderLock,
    visibility: LockVisibility,
    is_of_other_host: bool,
    /// Since when the lock is not held and no events come.
    quiet_since: Option<Instant>,
    /// Nothing has been read yet.
    is_unread: bool,
}

impl RecorderPresence {
    /// Begins with the lock as found before the first read.
    pub(super) fn new(lock: RecorderLock) -> Self {
        Self {
            lock,
            visibility: LockVisibility::Unproven,
            is_of_other_host: false,
            quiet_since: None,
            is_unread: true,
        }
    }

    /// Notes the lock as it was before a read, and whether that read found new events.
    pub(super) fn note_read(
        &mut self,
        lock: RecorderLock,
        has_events: bool,
        is_of_other_host: bool,
        now: Instant,
    ) {
        // The first read finds what was written before. Later ones do so only while a lock is held.
        let was_free = !std::mem::take(&mut self.is_unread) && self.lock == RecorderLock::Free;
        if has_events && was_free && lock != RecorderLock::Held {
            self.visibility = LockVisibility::Disproven;
        } else if self.visibility == LockVisibility::Unproven && lock == RecorderLock::Held {
            self.visibility = LockVisibility::Proven;
        }
        self.is_of_other_host = is_of_other_host;
        self.lock = lock;
        if has_events || lock == RecorderLock::Held {
            self.quiet_since = None;
        } else {
            self.quiet_since.get_or_insert(now);
        }
    }

    /// True if the trace is locked.
    pub(super) fn is_locked(&self) -> bool {
        self.lock == RecorderLock::Held
    }

    /// True if a free lock shows that no process writes the trace.
    pub(super) fn is_released(&self) -> bool {
        let is_visible = match self.visibility {
            LockVisibility::Unproven => !self.is_of_other_host,
            LockVisibility::Proven => true,
            LockVisibility::Disproven => false,
        };
        self.lock == RecorderLock::Free && is_visible
    }

    /// How long the trace has had neither a lock nor new events.
    pub(super) fn quiet_time(&self, now: Instant) -> Duration {
        self.quiet_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// True if no process has the lock and no events have come for long enough.
    pub(super) fn is_gone(&self, now: Instant) -> bool {
        let limit = if self.is_released() { MAX_QUIET_TIME } else { MAX_UNPROVEN_QUIET_TIME };
        self.quiet_since.is_some() && self.quiet_time(now) >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads once a second, from second 0 on, and returns in which seconds the recorder is gone.
    /// `reads` are the lock and whether there were new events.
    fn gone_seconds(is_of_other_host: bool, reads: &[(RecorderLock, bool)]) -> Vec<u64> {
        let begin = Instant::now();
        let mut presence = RecorderPresence::new(reads[0].0);
        let mut gone = Vec::new();
        for (second, (lock, has_events)) in (0..).zip(reads) {
            let now = begin + Duration::from_secs(second);
            presence.note_read(*lock, *has_events, is_of_other_host, now);
            gone.extend(presence.is_gone(now).then_some(second));
        }
        gone
    }

    use RecorderLock::{Free, Held, Unknown};

    #[test]
    fn released_lock_ends_a_run_at_once() {
        for is_of_other_host in [false, true] {
            let reads = [(Held, true), (Held, false), (Free, true), (Free, false), (Free, false)];
            assert_eq!(gone_seconds(is_of_other_host, &reads), [4]);
        }
        // It ended before it was opened.
        assert_eq!(gone_seconds(false, &[(Free, true), (Free, false), (Free, false)]), [2]);
    }

    #[test]
    fn lock_that_proves_nothing_takes_a_minute_without_events() {
        for (is_of_other_host, lock) in [(false, Unknown), (true, Unknown), (true, Free)] {
            let mut reads = vec![(lock, true)];
            reads.extend([(lock, false); 59]);
            reads.push((lock, true));
            reads.extend([(lock, false); 62]);
            assert_eq!(gone_seconds(is_of_other_host, &reads), [121, 122], "{lock:?}");
        }
    }

    #[test]
    fn growth_without_a_lock_shows_that_locks_are_invisible() {
        let mut reads = vec![(Free, true), (Free, true)];
        reads.extend([(Free, false); 61]);
        assert_eq!(gone_seconds(false, &reads), [62]);
        // The run counts as over too early, once, and goes on.
        let mut reads = vec![(Free, true), (Free, false), (Free, false), (Free, true)];
        reads.extend([(Free, false); 60]);
        assert_eq!(gone_seconds(false, &reads), [2]);
    }
}
