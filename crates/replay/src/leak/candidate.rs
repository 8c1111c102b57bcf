//! Sites that hold more than they did: candidates for leaks, working sets that get larger, and
//! harmless growth. [`crate::leak::candidates`] finds them.

use crate::callsite::module_calls::{FewerCalls, Rounds};
use crate::callsite::symbols::StackSymbols;
use crate::leak::growth::{Growth, GrowthRule};
use crate::leak::rate::GrowthRate;
use crate::leak::survivors::{SurvivorCounts, SurvivorEnds};
use crate::report::GrowsBy;
use crate::state::live_set::BlockOutcomes;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::SeededSet;

/// By how much, as a share, a few odd blocks may change the mean growth.
const MAX_ODD_SHARE: f64 = 0.02;
/// A candidate that grows this many times as often as another one extends it if their rates differ
/// by at most this share.
const MIN_COUNT_RATIO: f64 = 1.5;
const MAX_RATE_DIFFERENCE: f64 = 0.1;

/// A site with survivors that grow.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) site: SiteId,
    /// Growth of the number of survivors.
    pub(crate) block_growth: Growth,
    /// Growth of their bytes; `None` if their sizes vary so much that only the number is regular.
    pub(crate) byte_growth: Option<Growth>,
    /// True if growth came too few times to be judged.
    pub(crate) is_weak: bool,
    /// Whether their bytes came faster towards the end.
    pub(crate) accelerates: bool,
    /// Steps from one value of the series to the next.
    pub(crate) stride: u32,
    /// Settled survivors since the base.
    pub(crate) leaked: BlockTotals,
    /// Stacks with settled survivors since the base, most bytes first; never empty.
    pub(crate) grown: Vec<(StackId, BlockTotals)>,
    /// How their blocks ended.
    pub(crate) ends: SurvivorEnds,
    /// Whether the program did nothing but allocate and keep memory while the candidate grew.
    pub(crate) is_one_stretch: bool,
    /// The last step with settled survivors.
    pub(crate) last_step: u32,
    pub(crate) after_warm_up: GrowthAfterWarmUp,
    pub(crate) outcomes: BlockOutcomes,
    /// Blocks freed in a later step than that of their allocation.
    pub(crate) freed_after_step: u64,
    pub(crate) counts: SurvivorCounts,
    /// Age in steps and the share of blocks that reached it.
    pub(crate) survival: Vec<(u32, f64)>,
    pub(crate) free_site: Option<SiteId>,
}

/// Growth of a site's survivors since warm-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrowthAfterWarmUp {
    /// Warm-up was over at the end of this step.
    pub(crate) step: u32,
    pub(crate) bytes: u64,
}

/// Identifies the steps in which a candidate grows. Candidates with equal keys grow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockstepKey {
    first: usize,
    period: Option<usize>,
    rising_steps: usize,
    stride: u32,
}

impl Candidate {
    pub(crate) fn growth(&self) -> &Growth {
        &self.block_growth
    }

    /// True if its growth is exactly regular, and the other's is not or has a longer period.
    pub(crate) fn is_simpler_than(&self, other: &Self) -> bool {
        let (own, other) = (self.growth(), other.growth());
        own.is_exact && !(other.is_exact && other.period <= own.period)
    }

    /// True if it grows like the other one, for longer: with the same period, or at about the same
    /// rate and much more often. Leaks every two and every three steps together grow 1.33 times as
    /// often as the first.
    pub(crate) fn extends(&self, other: &Self) -> bool {
        let (count, of_other) = (self.growth_count() as f64, other.growth_count() as f64);
        let difference = (self.blocks_per_step() / other.blocks_per_step() - 1.0).abs();
        let has_same_period = self.growth().period.is_some() && self.growth().period == other.growth().period;
        has_same_period && count > of_other && difference <= MAX_ODD_SHARE
            || count >= MIN_COUNT_RATIO * of_other && difference <= MAX_RATE_DIFFERENCE
    }

    /// The last step without growth. `None` if it began with the first step.
    pub(crate) fn base_step(&self) -> Option<u32> {
        let growth = self.growth();
        (growth.first > 0).then_some(growth.base as u32 * self.stride)
    }

    /// The first step after which something stayed.
    pub(crate) fn first_step(&self) -> u64 {
        self.growth().first as u64 * u64::from(self.stride)
    }

    /// The steps from the base to the last settled one.
    fn steps_of_growth(&self) -> f64 {
        f64::from(self.last_step) - self.base_step().map_or(-1.0, f64::from)
    }

    /// Bytes per step: the rate of the blocks at their mean size. If a few blocks include the rest
    /// of their segments, it is what comes in all other periods.
    pub(crate) fn bytes_per_step(&self) -> GrowthRate {
        let mean_bytes = self.leaked.bytes as f64 / self.leaked.blocks.max(1) as f64;
        let mean = self.blocks_per_step() * mean_bytes;
        let rate = match &self.byte_growth {
            Some(bytes) if !self.is_weak && bytes.period.is_some() => {
                let usual = bytes.per_value / f64::from(self.stride);
                if (usual / mean - 1.0).abs() <= MAX_ODD_SHARE { usual } else { mean }
            }
            _ => mean,
        };
        let interval = match &self.byte_growth {
            _ if self.is_weak => [rate; 2],
            Some(bytes) => bytes.rate_interval().map(|bound| bound / f64::from(self.stride)),
            None => {
                self.block_growth.rate_interval().map(|bound| bound * mean_bytes / f64::from(self.stride))
            }
        };
        GrowthRate::with_interval(rate, interval)
    }

    /// How many survivors come in each step, on average.
    pub(crate) fn blocks_per_step(&self) -> f64 {
        if self.is_weak {
            self.leaked.blocks as f64 / self.steps_of_growth().max(1.0)
        } else {
            self.block_growth.per_value / f64::from(self.stride)
        }
    }

    /// True if most of it was freed again before the end of what was seen.
    pub(crate) fn is_released(&self) -> bool {
        self.ends.released_bytes > self.leaked.bytes / 2
    }

    /// How often something stayed.
    pub(crate) fn growth_count(&self) -> usize {
        self.growth().rising_steps
    }

    /// Whether all of it was allocated in a model that was called fewer times than the candidate
    /// grew. Not known for runs with steps.
    pub(crate) fn fewer_model_calls(&self, symbols: &StackSymbols) -> FewerCalls {
        let share_of_run = self.steps_of_growth() / (f64::from(self.last_step) + 1.0);
        let rounds = Rounds { count: self.growth_count() as u64, share_of_run };
        let of_stacks = self.grown.iter().map(|(stack, _)| symbols.has_fewer_calls(*stack, rounds));
        of_stacks.min().unwrap_or(FewerCalls::No)
    }

    pub(crate) fn lockstep_key(&self) -> LockstepKey {
        let Growth { first, period, rising_steps, .. } = *self.growth();
        LockstepKey { first, period, rising_steps, stride: self.stride }
    }
}

/// A site whose live bytes rise although no more of its blocks survive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrowingWorkingSet {
    pub(crate) site: SiteId,
    /// The rise of its live bytes, and its live blocks at the last step end.
    pub(crate) held: BlockTotals,
    /// Mean growth in bytes per step.
    pub(crate) bytes_per_step: f64,
    /// Whether its blocks get larger or more.
    pub(crate) grows_by: GrowsBy,
    /// How often it grew.
    pub(crate) events: usize,
    /// The stack with the most bytes at the last step end.
    pub(crate) stack: Option<StackId>,
}

/// A site that holds more than it did and is not a leak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenignCandidate {
    pub(crate) site: SiteId,
    pub(crate) rule: GrowthRule,
    /// The rise of the quantity that settled; the other quantity as of the last step end.
    pub(crate) held: BlockTotals,
    /// Only the bytes changed, not the number of blocks.
    pub(crate) is_by_size: bool,
    /// The stack with the most bytes of survivors.
    pub(crate) stack: Option<StackId>,
}

impl BenignCandidate {
    /// The growth of a candidate that `rule` explains.
    pub(crate) fn of_candidate(candidate: &Candidate, rule: GrowthRule) -> Self {
        let stack = candidate.grown.first().map(|(stack, _)| *stack);
        Self { site: candidate.site, rule, held: candidate.leaked, is_by_size: false, stack }
    }
}

/// Sites of a live set that hold more than they did. Each list has the most bytes first.
#[derive(Default)]
pub(crate) struct Candidates {
    pub(crate) growing: Vec<Candidate>,
    pub(crate) larger: Vec<GrowingWorkingSet>,
    pub(crate) benign: Vec<BenignCandidate>,
}

impl Candidates {
    /// The sites whose growth after warm-up is listed or slows down. Sites that grew a few times
    /// each are not among them: many of them together may be a leak.
    pub(crate) fn explained_sites(&self) -> SeededSet<SiteId> {
        let growing = self.growing.iter().map(|one| one.site);
        let settled = self.benign.iter().filter(|one| one.rule == GrowthRule::Saturating);
        growing.chain(self.larger.iter().map(|one| one.site)).chain(settled.map(|one| one.site)).collect()
    }
}
