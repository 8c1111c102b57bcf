//! What a live set keeps for viewers, if the options ask for it: a [`LifetimeTable`] of births and
//! deaths, the extremes of its totals in narrow bins, and what its memory consists of over time
//! ([`Composition`]).
//!
//! Their sizes do not grow with the number of events. Bins of the table are those of the timeline,
//! or powers of two of them. `crates/replay/tests/history/` compares all with a plain recount.

pub(crate) mod composition;
mod group_series;
pub(crate) mod life_class;
pub(crate) mod lifetimes;
mod pool_numbers;

use gpumemtrace_format::Detail;

use crate::callsite::symbols::StackSite;
use crate::state::live_set::LiveBlock;
use crate::state::live_set::peak_blocks::BlockFree;
use crate::state::pool_key::PoolKey;
use crate::timeline::bin_axis::BinAxis;
use crate::timeline::bins::{MemorySample, TimelineBins};
use crate::timeline::extremes::ExtremeSeries;
use crate::util::ids::SiteId;
use composition::{Composition, Grouping};
use group_series::LiveHighs;
use life_class::{LifeClass, LifeClasses, LifeEnd};
use lifetimes::LifetimeTable;
use pool_numbers::PoolNumbers;

/// Limit of removed blocks that wait for the end of their bin.
const MAX_WAITING: usize = 1 << 16;

/// The history of one live set.
#[derive(Clone, Debug)]
pub(crate) struct LiveHistory {
    pub(crate) blocks: LifetimeTable,
    /// Live, reserved and device bytes.
    pub(crate) series: ExtremeSeries<3>,
    pub(crate) classes: LifeClasses,
    pools: PoolNumbers,
    /// Groups are sites by id, and classes and pools by number.
    pub(crate) composition: Composition,
    /// Blocks allocated and removed in the current bin that were live at its high. A new high
    /// drops them, so most never cost more than their place here.
    waiting: Vec<WaitingBlock>,
    /// Stream and pool of the event that follows, which frees a block; `None` if unknown.
    pub(crate) next_free: Option<Detail>,
}

/// A removed block, with what its groups need.
#[derive(Clone, Copy, Debug)]
struct WaitingBlock {
    block: LiveBlock,
    site: SiteId,
    life: LifeEnd,
    /// Stream and pool, if known.
    detail: Option<Detail>,
}

impl LiveHistory {
    /// An empty history of a run with this axis.
    pub(crate) fn on_axis(axis: &BinAxis) -> Self {
        Self {
            blocks: LifetimeTable::default(),
            series: ExtremeSeries::on_axis(axis),
            classes: LifeClasses::default(),
            pools: PoolNumbers::default(),
            composition: Composition::on_axis(axis),
            waiting: Vec::new(),
            next_free: None,
        }
    }

    /// Handles the removal of a block of `site` by event number `event`, in the current bin.
    #[inline]
    pub(crate) fn on_removed(&mut self, block: &LiveBlock, site: SiteId, free: BlockFree, event: u64) {
        self.blocks.on_removed(block);
        if self.composition.was_at_high(block.serial) {
            self.add_removed(block, site, free, event);
        }
    }

    fn add_removed(&mut self, block: &LiveBlock, site: SiteId, free: BlockFree, event: u64) {
        let life = self.classes.end_of_life(free, event);
        let detail = self.next_free.filter(|_| free.stack.is_some());
        if self.composition.was_at_ended_high(block.serial) || self.waiting.len() >= MAX_WAITING {
            let pool = detail.map(|detail| PoolKey::of_request(detail, block.bytes));
            let highs = self.composition.highs_of_block(block.serial, event);
            self.add_to_groups((block, site, pool), life, highs);
        } else {
            self.waiting.push(WaitingBlock { block: *block, site, life, detail });
        }
    }

    fn add_to_groups(
        &mut self,
        (block, site, pool): (&LiveBlock, SiteId, Option<PoolKey>),
        life: LifeEnd,
        highs: LiveHighs,
    ) {
        let class = self.classes.number_of_block(block, life);
        let pool = self.pools.number_of(pool);
        let all = &mut self.composition;
        all.add(Grouping::Class, class, highs, block.bytes);
        all.add(Grouping::Site, site.0 as usize, highs, block.bytes);
        all.add(Grouping::Pool, pool, highs, block.bytes);
    }

    /// Handles event number `event`, which frees a block.
    #[inline]
    pub(crate) fn on_free(&mut self, origin: StackSite, event: u64) {
        self.classes.on_free(origin.stack, origin.context, event);
    }

    /// Begins the bin of the last event of the axis, which is about to change `live` bytes. `event`
    /// is the one before.
    #[inline]
    pub(crate) fn advance(&mut self, axis: &BinAxis, live: u64, event: u64) {
        if self.composition.needs_new_bin(axis.position()) {
            self.end_bin();
            self.composition.begin_bin(axis, live, event);
        }
    }

    #[inline(never)] // Once per bin.
    fn end_bin(&mut self) {
        let highs = self.composition.current_high();
        let mut waiting = std::mem::take(&mut self.waiting);
        for WaitingBlock { block, site, life, detail } in waiting.drain(..) {
            let pool = detail.map(|detail| PoolKey::of_request(detail, block.bytes));
            self.add_to_groups((&block, site, pool), life, highs);
        }
        self.waiting = waiting;
        self.composition.end_bin();
    }

    /// Records the state after event number `event`, the last of the axis.
    #[inline]
    pub(crate) fn observe(&mut self, axis: &BinAxis, sample: &MemorySample, event: u64) {
        self.series.observe(axis, [sample.live, sample.reserved, sample.device]);
        if self.composition.observe(sample.time_ns, sample.live, event) {
            self.waiting.clear();
        }
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

    /// Completes the composition with the blocks that were not freed: each with its site and its
    /// pool. `step` is the last step.
    pub(crate) fn finish_composition<'a>(
        &mut self,
        live: impl Iterator<Item = (&'a LiveBlock, SiteId, Option<PoolKey>)>,
        step: u32,
    ) {
        self.end_bin();
        let life = self.classes.end_of_run(step);
        for (block, site, pool) in live {
            let highs = self.composition.highs_of_block(block.serial, u64::MAX);
            self.add_to_groups((block, site, pool), life, highs);
        }
        self.composition.end_run();
        self.waiting = Vec::new();
    }

    /// Bytes by class of lifetime at the high of each bin.
    pub(crate) fn class_values(&self) -> impl Iterator<Item = (&LifeClass, Vec<u64>)> {
        let classes = self.classes.all().map(|(class, _)| class);
        classes.zip(self.composition.values(Grouping::Class))
    }

    /// Bytes by pool at the high of each bin; `None` for unknown pools.
    pub(crate) fn pool_values(&self) -> impl Iterator<Item = (Option<PoolKey>, Vec<u64>)> {
        self.pools.all().iter().copied().zip(self.composition.values(Grouping::Pool))
    }
}
