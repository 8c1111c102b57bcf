//! State of the recorder's part in PyTorch's allocator.

/// aux0 of [`super::EventKind::TRACKER`]: whether the recorder sees all of PyTorch's allocator
/// events, and if not, why.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum TrackerState {
    /// Attached: every event of the allocator is recorded.
    Attached = 1,
    /// The fields of this version of PyTorch are unknown.
    UnknownVersion = 2,
    /// This version of PyTorch has no tracker.
    NoTracker = 3,
    /// The library cannot be read, or lacks symbols that every wheel has.
    Unreadable = 4,
    /// The native allocator is not in use: each tensor is a driver call, or outside our view.
    OtherAllocator = 5,
    /// The cache is disabled: each tensor is a driver call.
    CacheOff = 6,
    /// The tracker's first entries did not match what the allocator reported.
    Disagreed = 7,
    /// Disabled by the user.
    NotWanted = 8,
    /// Our own caching allocator serves tensors and records the same events itself.
    OwnAllocator = 9,
}

impl TrackerState {
    const ALL: [(Self, &str); 9] = [
        (Self::Attached, "attached"),
        (Self::UnknownVersion, "unknown_version"),
        (Self::NoTracker, "no_tracker"),
        (Self::Unreadable, "unreadable"),
        (Self::OtherAllocator, "other_allocator"),
        (Self::CacheOff, "cache_off"),
        (Self::Disagreed, "disagreed"),
        (Self::NotWanted, "not_wanted"),
        (Self::OwnAllocator, "own_allocator"),
    ];

    /// The name that reports use.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize - 1].1
    }

    /// The state with this number; `None` if this version does not know it.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.iter().map(|(state, _)| *state).find(|state| *state as u64 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_in_the_table_at_its_number() {
        for (number, (state, name)) in (1..).zip(TrackerState::ALL) {
            assert_eq!((TrackerState::from_number(number), state.name()), (Some(state), name));
        }
        assert_eq!(TrackerState::from_number(10), None);
    }
}
