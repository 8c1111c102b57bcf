//! What the recorder counts while it records.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $index:literal, $name:literal;)*) => {
        /// What the recorder counts. Losses are shown at the head of every report.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $variant = $index,)* }

        impl Counter {
            /// All counters, with their names in files and reports.
            pub const ALL: &[(Self, &str)] = &[$((Self::$variant, $name),)*];
        }
    };
}

counters! {
    /// Events not recorded: ring full (`on_full=drop`), no ring for the thread, or a failed writer.
    DroppedEvents = 0, "dropped_events";
    /// Stacks truncated at the maximum depth.
    TruncatedStacks = 1, "truncated_stacks";
    /// Python frames with an unreadable code object.
    UnreadableFrames = 2, "unreadable_frames";
    /// Driver functions that allocate, were handed out to the program and are not wrapped.
    UncoveredCalls = 3, "uncovered_calls";
    /// Writes of the trace file that failed.
    WriteErrors = 4, "write_errors";
    /// Waits of a thread for space in its ring. Not a loss.
    RingWaits = 5, "ring_waits";
    /// Calls made inside another hook of the same thread, not recorded twice. Not a loss.
    NestedCalls = 6, "nested_calls";
    /// Threads that found no free ring.
    ThreadsWithoutRing = 7, "threads_without_ring";
    /// Hook calls that ended in an internal error.
    InternalErrors = 8, "internal_errors";
    /// Blocks whose tracker entry did not match PyTorch's report to the profiler. Recorded without
    /// details.
    TrackerMismatches = 9, "tracker_mismatches";
    /// Events not recorded because a signal handler interrupted the recorder: calls that the
    /// handler made meanwhile, and events that it left by a jump.
    InterruptedEvents = 10, "interrupted_events";
    /// Events not recorded because the trace was already finished: calls of other threads, or of
    /// other exit handlers, while the process ended. Must stay the last counter of an END payload;
    /// see [`crate::meta::set_events_after_end`].
    EventsAfterEnd = 11, "events_after_end";
}

/// The values of all counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
    /// Counters of a newer recorder, with names that this version does not know.
    pub other: Vec<(String, u64)>,
}

impl Counters {
    /// The value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Sets the value of one counter.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.values[counter as usize] = value;
    }

    /// Names and values, those of [`Counter::ALL`] first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let known = Counter::ALL.iter().map(|(counter, name)| (*name, self.get(*counter)));
        known.chain(self.other.iter().map(|(name, value)| (name.as_str(), *value)))
    }
}
