//! What a live set keeps for viewers, if the options ask for it: a [`LifetimeTable`] of births and
//! deaths, and the extremes of its totals in narrow bins.
//!
//! Both have a fixed size, whatever the number of events. Their bins are those of the timeline, or
//! powers of two of them. `replay/tests/history` compares both with a plain recount.

pub(crate) mod lifetimes;

use crate::state::live_set::LiveBlock;
use crate::timeline::bins::{MemorySample, TimelineBins};
use crate::timeline::extremes::ExtremeSeries;
use lifetimes::LifetimeTable;

/// The history of one live set.
#[derive(Clone, Debug)]
pub(crate) struct LiveHistory {
    pub(crate) blocks: LifetimeTable,
    /// Live, reserved and device bytes.
    pub(crate) series: ExtremeSeries<3>,
}

impl LiveHistory {
    /// An empty history of a run of length `span_ns` (0 if unknown).
    pub(crate) fn for_span(span_ns: u64) -> Self {
        Self { blocks: LifetimeTable::default(), series: ExtremeSeries::for_span(span_ns) }
    }

    /// Handles the removal of a block in the current bin.
    #[inline]
    pub(crate) fn on_removed(&mut self, block: &LiveBlock) {
        self.blocks.on_removed(block);
    }

    /// Records the state after an event.
    #[inline]
    pub(crate) fn observe(&mut self, sample: &MemorySample) {
        self.series.observe(sample.time_ns, [sample.live, sample.reserved, sample.device]);
    }

    /// Follows the bins of the timeline, to which bins were appended. `serial` is that of the last
    /// event before them.
    pub(crate) fn begin_bins(&mut self, bins: &TimelineBins, serial: u64) {
        self.blocks.begin_bins(bins.all().len(), serial);
    }

    /// Follows the bins of the timeline, which were merged in pairs.
    pub(crate) fn halve(&mut self) {
        self.blocks.halve();
    }
}
