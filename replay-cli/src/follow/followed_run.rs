//! One run that is followed: its trace, its ring file, and the state that they add up to.
//!
//! The ring file is read before the trace: an event may then be seen twice, which is harmless, but
//! is never missed.

use std::path::Path;
use std::time::{Duration, Instant};

use gpumemtrace_format::reader::{Item, OpenError};
use gpumemtrace_format::{Counters, EndReason, Meta};
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::report::shell_exit_code;
use gpumemtrace_replay::{RingFile, RunFollower};

use super::file_tail::TailChange;
use super::followed_trace::FollowedTrace;
use super::recorder_presence::{MAX_UNPROVEN_QUIET_TIME, RecorderPresence};
use crate::trace::ring::RingReader;

/// How long to wait for the exit status that `gpumemtrace run` appends to a closed trace.
const EXIT_STATUS_WAIT: Duration = Duration::from_secs(1);

/// A run that is read as it goes on.
pub(crate) struct FollowedRun {
    pub(crate) live: RunFollower,
    /// All metadata so far.
    pub(crate) meta: Meta,
    /// The recorder's counters; `None` before the first ring file or end of a trace.
    pub(crate) counters: Option<Counters>,
    trace: FollowedTrace,
    ring: RingReader,
    /// Why the ring file was not read, if the program did not answer.
    silence: Option<String>,
    presence: RecorderPresence,
    ended: Option<Instant>,
    /// The reason in the end of the trace.
    end_reason: Option<EndReason>,
}

impl FollowedRun {
    /// Opens the trace of a run; `None` while it does not exist or is empty.
    pub(crate) fn open(path: &Path, user_code: &UserCodePaths) -> Result<Option<Self>, OpenError> {
        let Some(trace) = FollowedTrace::open(path)? else { return Ok(None) };
        Ok(Some(Self {
            live: RunFollower::new(user_code.clone()),
            meta: Meta::default(),
            counters: None,
            ring: RingReader::new(path),
            silence: None,
            presence: RecorderPresence::new(trace.recorder_lock()),
            trace,
            ended: None,
            end_reason: None,
        }))
    }

    /// True if `identity` is the device and inode of the trace.
    pub(crate) fn is_file(&self, identity: (u64, u64)) -> bool {
        self.trace.is_file(identity)
    }

    /// Goes on under the new path of the trace. False if it is written in parts: the file under the
    /// path of such a trace changes. The ring file stays where the recorder made it.
    pub(crate) fn follow_rename(&mut self, path: &Path) -> bool {
        self.trace.follow_rename(path)
    }

    /// The exit code of the process as a shell shows it, with 128 plus the number of a signal.
    /// `None` if the process has not ended, or if the trace does not have its status.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        let own = || match self.end_reason? {
            EndReason::QuickExit(status) => shell_exit_code(&format!("_exit({status})")),
            EndReason::Exit | EndReason::Stopped => None,
        };
        self.meta.text("wait_status").and_then(shell_exit_code).or_else(own)
    }

    /// Reads what is new in the ring file and the trace. Anything but `Nothing` and `More` means
    /// that the trace has to be opened anew.
    pub(crate) fn poll(&mut self) -> Result<TailChange, OpenError> {
        let known = self.live.next_seq();
        let ring = self.ring.read_new(|header| header.next_seq <= known);
        self.silence = match &ring {
            RingFile::Unusable(why) if self.ring.is_unanswered() => Some(why.clone()),
            _ => None,
        };
        let found = self.poll_trace()?;
        if let RingFile::Loaded(ring) = ring
            && self.meta.text("trace_id") == Some(&*format!("{:032x}", u128::from_be_bytes(ring.trace_id)))
        {
            self.live.add_ring(&ring);
            // The end of a trace has the final counters.
            if self.ended.is_none() {
                self.counters = Some(ring.counters);
            }
        }
        Ok(found)
    }

    /// Reads what is new in the trace alone, which the recorder writes about every five seconds.
    pub(crate) fn poll_trace(&mut self) -> Result<TailChange, OpenError> {
        // Before the read: what is read after a free lock was written before it was released.
        let lock = self.trace.recorder_lock();
        let mut has_events = false;
        let Self { live, meta, counters, ended, end_reason, .. } = self;
        let found = self.trace.poll(&mut |item| match item {
            Item::Meta(more) => meta.merge(more),
            Item::End(end) => {
                *ended = Some(Instant::now());
                *end_reason = Some(end.reason);
                *counters = Some(end.counters);
            }
            item => {
                // `gpumemtrace run` appends metadata to a trace whose program was killed.
                has_events |= matches!(item, Item::Events(_));
                live.add_item(item);
            }
        })?;
        self.presence.note_read(lock, has_events, is_of_other_host(&self.meta), Instant::now());
        if self.trace.take_gap() {
            self.live.skip_missing_events();
        }
        Ok(found)
    }

    /// True once the recorder has closed the trace, or the program has died. A run whose end is not
    /// in the trace goes on if further events come.
    pub(crate) fn is_over(&self) -> bool {
        match self.ended {
            Some(since) => self.presence.is_released() || since.elapsed() > EXIT_STATUS_WAIT,
            None => self.presence.is_gone(Instant::now()),
        }
    }

    /// True while the recorder holds the trace and has not written its end.
    pub(crate) fn is_recording(&self) -> bool {
        self.presence.is_locked() && self.ended.is_none()
    }

    /// True unless the lock or the trace shows that the recorder has ended.
    pub(crate) fn may_be_recording(&self) -> bool {
        !self.presence.is_released() && self.ended.is_none()
    }

    /// How long there have been no events, and for how long there may be none until the run is
    /// over. `None` if the lock or the trace shows whether the program runs.
    pub(crate) fn unproven_quiet_time(&self) -> Option<(Duration, Duration)> {
        let is_unproven = self.may_be_recording() && !self.is_recording();
        is_unproven.then(|| (self.presence.quiet_time(Instant::now()), MAX_UNPROVEN_QUIET_TIME))
    }

    /// Why the last poll did not read the ring file, if the program did not answer.
    pub(crate) fn silence(&self) -> Option<&str> {
        self.silence.as_deref()
    }
}

/// True if the trace names another host than this one, whose locks may be invisible here.
fn is_of_other_host(meta: &Meta) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    meta.text("host").zip(own).is_some_and(|(host, own)| host != own.trim_end())
}
