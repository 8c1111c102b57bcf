//! From times of a run to the wall clock.
//!
//! All times of a file are on `CLOCK_REALTIME`. A trace has the start of its recording on that
//! clock and on `CLOCK_MONOTONIC`, on which its events are. torch.profiler converts its times to
//! `CLOCK_REALTIME`, too, so a file that merges both needs no other relation.
//! `tests/suite/export/test_profile.py` compares the times of equal allocations.

use gpumemtrace_replay::report::TraceInfo;

use crate::export::protobuf::Message;

use super::packets::{builtin_clock, new_packet, packet};

/// The wall clock of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunClock {
    started_unix_ns: u64,
}

impl RunClock {
    /// The clock of a run. Without the time of its start, it starts at 0.
    pub(super) fn new(info: &TraceInfo) -> Self {
        Self { started_unix_ns: info.started_unix_ns.unwrap_or(0) }
    }

    /// A time since the start of recording, in nanoseconds since the Unix epoch.
    pub(super) fn unix_ns(self, time_ns: u64) -> u64 {
        self.started_unix_ns.saturating_add(time_ns)
    }

    /// A time of the wall clock since the start of recording; 0 if it is earlier.
    pub(super) fn since_start_ns(self, unix_ns: u64) -> u64 {
        unix_ns.saturating_sub(self.started_unix_ns)
    }
}

/// The relation of the clocks in a file.
///
/// Heap profiles have times on `CLOCK_MONOTONIC_COARSE`, whatever the rest of the file uses. It is
/// that of one run: times of all others are converted with the same difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileClock {
    unix_ns: u64,
    monotonic_ns: u64,
}

impl FileClock {
    /// The clocks at the start of the earliest run: its wall clock and its `started_ns`.
    pub(super) fn new(starts: impl Iterator<Item = (RunClock, u64)>) -> Self {
        let earliest = starts.min_by_key(|(clock, _)| clock.started_unix_ns);
        let (unix_ns, monotonic_ns) =
            earliest.map_or((0, 0), |(clock, monotonic_ns)| (clock.started_unix_ns, monotonic_ns));
        Self { unix_ns, monotonic_ns }
    }

    /// A time of the wall clock on the clock of heap profiles.
    pub(super) fn monotonic_ns(self, unix_ns: u64) -> u64 {
        self.monotonic_ns.saturating_add(unix_ns.saturating_sub(self.unix_ns))
    }

    /// The packet that relates the clocks.
    pub(super) fn snapshot_packet(self, sequence: u32) -> Message {
        let mut snapshot = Message::new();
        let clocks = [
            (builtin_clock::REALTIME, self.unix_ns),
            (builtin_clock::MONOTONIC, self.monotonic_ns),
            (builtin_clock::MONOTONIC_COARSE, self.monotonic_ns),
        ];
        for (clock, time_ns) in clocks {
            let mut message = Message::new();
            message.uint(1, clock).uint(2, time_ns);
            snapshot.message(1, &message);
        }
        snapshot.uint(2, builtin_clock::REALTIME);
        let mut packet = new_packet(sequence);
        packet.message(packet::CLOCK_SNAPSHOT, &snapshot);
        packet
    }
}
