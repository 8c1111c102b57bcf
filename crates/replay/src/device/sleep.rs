//! Allocated and reserved memory of PyTorch that is backed by memory of the device.
//!
//! A program may return the memory of segments that PyTorch still counts (see
//! [`crate::state::sleeping`]). Until it first does so, both are PyTorch's own levels.

use gpumemtrace_format::{Event, EventKind};

use crate::state::live_set::LiveSet;
use crate::state::live_set::block_map::BlockMap;
use crate::state::sleeping::SleepingSegments;

/// Levels of PyTorch's allocator, without what has no memory, and driver memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackedLevels {
    pub(crate) live: u64,
    pub(crate) reserved: u64,
    pub(crate) device: u64,
}

/// Blocks and segments of a device without memory, and the peaks of all others.
#[derive(Debug, Default)]
pub(crate) struct DeviceSleep {
    segments: SleepingSegments,
    /// Bytes of the blocks without memory.
    pub(crate) asleep_live: u64,
    /// Ranges fell asleep or woke since `asleep_live` was summed.
    is_outdated: bool,
    has_slept: bool,
    /// The highest backed live bytes, and the other levels at that moment.
    live_peak: BackedLevels,
    /// The highest backed reserved bytes, and the other levels at that moment.
    reserved_peak: BackedLevels,
    /// The most bytes of blocks without memory.
    most_asleep_live: u64,
    /// The most bytes of segments without memory.
    most_asleep_reserved: u64,
}

/// Peaks of memory that is backed, and of memory that sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepFacts {
    pub(crate) live_peak: BackedLevels,
    pub(crate) reserved_peak: BackedLevels,
    pub(crate) most_asleep_live: u64,
    pub(crate) most_asleep_reserved: u64,
}

impl DeviceSleep {
    /// Applies a segment event of the device, or a driver call of any.
    pub(crate) fn on_event(&mut self, event: &Event) {
        self.is_outdated |= self.segments.on_event(event);
    }

    /// Whether something changed that [`refresh`](Self::refresh) must see.
    #[inline]
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    #[inline]
    pub(crate) fn has_slept(&self) -> bool {
        self.has_slept
    }

    /// Sums the blocks without memory. O(live blocks). `before` are PyTorch's peaks so far. To be
    /// called when no segment is being freed: an allocator may unmap it before PyTorch reports it.
    #[cold]
    pub(crate) fn refresh(&mut self, live: &BlockMap, before: [BackedLevels; 2]) {
        self.is_outdated = false;
        if !self.has_slept && self.segments.bytes() > 0 {
            self.has_slept = true;
            [self.live_peak, self.reserved_peak] = before;
        }
        let asleep = live.iter().filter(|(addr, _)| self.segments.contains(*addr));
        self.asleep_live = asleep.fold(0u64, |sum, (_, block)| sum.saturating_add(block.bytes));
    }

    /// Counts a block that was allocated or freed.
    #[cold]
    pub(crate) fn on_block(&mut self, event: &Event) {
        if self.segments.contains(event.addr) {
            let is_new = event.kind == EventKind::BLOCK_ALLOC;
            let count = if is_new { u64::saturating_add } else { u64::saturating_sub };
            self.asleep_live = count(self.asleep_live, event.size);
        }
    }

    /// Notes PyTorch's levels of this moment.
    #[cold]
    pub(crate) fn observe(&mut self, torch: BackedLevels) {
        let backed = BackedLevels {
            live: torch.live.saturating_sub(self.asleep_live),
            reserved: torch.reserved.saturating_sub(self.segments.bytes()),
            ..torch
        };
        if backed.live > self.live_peak.live {
            self.live_peak = backed;
        }
        if backed.reserved > self.reserved_peak.reserved {
            self.reserved_peak = backed;
        }
        self.most_asleep_live = self.most_asleep_live.max(self.asleep_live);
        self.most_asleep_reserved = self.most_asleep_reserved.max(self.segments.bytes());
    }

    /// Begins all measurements again (`--since`).
    pub(crate) fn restart(&mut self, torch: BackedLevels) {
        (self.live_peak, self.reserved_peak) = (BackedLevels::default(), BackedLevels::default());
        (self.most_asleep_live, self.most_asleep_reserved) = (0, 0);
        self.observe(torch);
    }

    /// `None` if nothing slept.
    pub(crate) fn facts(&self) -> Option<SleepFacts> {
        let &Self { live_peak, reserved_peak, most_asleep_live, most_asleep_reserved, .. } = self;
        self.has_slept.then_some(SleepFacts {
            live_peak,
            reserved_peak,
            most_asleep_live,
            most_asleep_reserved,
        })
    }
}

/// The peak of live bytes as PyTorch has it.
pub(super) fn live_peak_of(torch: &LiveSet) -> BackedLevels {
    let peak = torch.peak();
    BackedLevels { live: peak.live, reserved: peak.reserved, device: peak.device }
}
