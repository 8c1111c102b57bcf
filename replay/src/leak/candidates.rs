//! Decides which sites of a live set grow, and which have grown for a known, harmless reason.
//!
//! [`growth`](crate::leak::growth) judges the live blocks of a site at step ends. If the blocks do
//! not grow, it judges the live bytes, to find one tensor that gets larger. Growth of bytes alone
//! needs [`MIN_VALUES_OF_SIZE`] step ends, because each step copies and frees the tensor. Without a
//! period it needs [`MIN_IRREGULAR_STEPS`] growth steps. It does not count where the number of
//! blocks grew and stopped.
//!
//! Every site that ever changed is one hypothesis of a multiple test. Growth without a period
//! counts only if its false discovery rate ([`crate::leak::statistics`]) is at most
//! [`MAX_FALSE_DISCOVERIES`].
//!
//! The cost is one pass over each site's series. `tests/accuracy.rs` checks the outcome.

use crate::leak::cohorts::{Cohort, Cohorts};
use crate::leak::growth::{Growth, GrowthJudgement, GrowthRule, SurvivorEvidence, judge_series};
use crate::leak::rate::GrowthRate;
use crate::leak::statistics::{false_discovery_rates, mann_kendall};
use crate::state::live_set::{BlockOutcomes, LiveSet, SiteStats};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::SiteId;

/// Highest false discovery rate of growth without a period: one finding in twenty may be chance.
pub(crate) const MAX_FALSE_DISCOVERIES: f64 = 0.05;
/// Step ends needed to judge a tensor that gets larger.
const MIN_VALUES_OF_SIZE: usize = 12;
/// Growth steps needed where growth has no period and blocks cannot be counted. A pool rises by
/// chance if its members are replaced by larger ones now and then.
pub(crate) const MIN_IRREGULAR_STEPS: usize = 16;
/// Steps in which parameters, gradients and optimizer state appear. Growth in them does not count
/// towards a site's share of all growth.
const WARM_UP_STEPS: usize = 3;

/// A site that grows.
pub(crate) struct Candidate {
    pub(crate) site: SiteId,
    /// Growth of the number of live blocks.
    pub(crate) block_growth: Option<Growth>,
    /// Growth of live bytes. One of the two is there.
    pub(crate) byte_growth: Option<Growth>,
    /// Steps from one value of the series to the next.
    pub(crate) stride: u32,
    /// What the site retained since the base. If only its bytes grow, `blocks` counts all its live
    /// blocks.
    pub(crate) leaked: BlockTotals,
    /// The last step that ended.
    pub(crate) last_step: u32,
    pub(crate) after_warm_up: GrowthAfterWarmUp,
    pub(crate) outcomes: BlockOutcomes,
    pub(crate) cohort: Cohort,
    pub(crate) free_site: Option<SiteId>,
    /// False discovery rate among all sites of the live set (q-value).
    pub(crate) q: f64,
}

/// Growth of a site's live bytes since warm-up.
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
    /// The growth that made the site a candidate: of blocks if they grow, else of bytes.
    pub(crate) fn growth(&self) -> &Growth {
        static NO_GROWTH: Growth = Growth::NONE;
        self.block_growth.as_ref().or(self.byte_growth.as_ref()).unwrap_or(&NO_GROWTH)
    }

    /// The last step without growth. `None` if it began with the first step.
    pub(crate) fn base_step(&self) -> Option<u32> {
        let growth = self.growth();
        (growth.first > 0).then_some(growth.base as u32 * self.stride)
    }

    /// Moves a candidate from the judged part of its series to the whole, which has `values` values
    /// before that part.
    fn shifted_by(self, values: usize) -> Self {
        let GrowthAfterWarmUp { step, bytes } = self.after_warm_up;
        let step = step.saturating_add((values as u32).saturating_mul(self.stride));
        Self {
            block_growth: self.block_growth.map(|growth| growth.shifted_by(values)),
            byte_growth: self.byte_growth.map(|growth| growth.shifted_by(values)),
            after_warm_up: GrowthAfterWarmUp { step, bytes },
            ..self
        }
    }

    /// The first step after which something stayed.
    pub(crate) fn first_step(&self) -> u64 {
        self.growth().first as u64 * u64::from(self.stride)
    }

    /// Bytes per step. Where blocks grow regularly and their sizes vary, their mean size counts.
    pub(crate) fn bytes_per_step(&self) -> GrowthRate {
        let (growth, bytes_per_unit) = match (&self.byte_growth, &self.block_growth) {
            (Some(bytes), _) => (bytes, 1.0),
            (None, Some(blocks)) if blocks.rise > 0 => {
                (blocks, self.leaked.bytes as f64 / blocks.rise as f64)
            }
            _ => return GrowthRate::default(),
        };
        let interval = growth.rate_interval().map(|bound| bound * bytes_per_unit);
        GrowthRate::with_interval(growth.per_value * bytes_per_unit, interval)
            .divided_by(f64::from(self.stride))
    }

    /// How often something stayed. Growth that begins with the first step has one occurrence more
    /// than it has growth steps.
    pub(crate) fn growth_count(&self) -> usize {
        let growth = self.growth();
        growth.rising_steps + usize::from(growth.first == 0)
    }

    pub(crate) fn lockstep_key(&self) -> LockstepKey {
        let Growth { first, period, rising_steps, .. } = *self.growth();
        LockstepKey { first, period, rising_steps, stride: self.stride }
    }
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
}

/// Sites of a live set that hold more than they did.
#[derive(Default)]
pub(crate) struct Candidates {
    /// Sites that grow, most bytes first.
    pub(crate) growing: Vec<Candidate>,
    pub(crate) benign: Vec<BenignCandidate>,
}

/// Judges `sites` of a live set, each with its series: the site's own, or a part of it.
pub(crate) fn find_candidates<'a>(
    live_set: &'a LiveSet,
    sites: impl Iterator<Item = (SiteId, &'a SiteStats, std::borrow::Cow<'a, StepSeries>)>,
) -> Candidates {
    let cohorts = Cohorts::of_survivors(live_set);
    let mut candidates = Candidates::default();
    // The p-value of each site that was judged, and the index of each growing candidate in it.
    let mut p_values = Vec::new();
    let mut p_value_index = Vec::new();
    for (site, entry, series) in sites {
        if series.is_empty() {
            continue;
        }
        let under_test = SiteUnderTest { live_set, cohorts: &cohorts, site, entry };
        let (stride, before, values) = series.values_from(live_set.first_step, live_set.steps_ended());
        match under_test.judge(stride, &values) {
            CandidateJudgement::Candidate(candidate) => {
                let candidate = Box::new(candidate.shifted_by(before));
                p_value_index.push(p_values.len());
                p_values.push(candidate.growth().p);
                candidates.growing.push(*candidate);
            }
            CandidateJudgement::Benign(benign) => {
                candidates.benign.push(benign);
                p_values.push(1.0);
            }
            CandidateJudgement::Quiet => {
                let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
                p_values.push(mann_kendall(&bytes).p);
            }
        }
    }
    let q_values = false_discovery_rates(&p_values);
    for (candidate, index) in candidates.growing.iter_mut().zip(&p_value_index) {
        candidate.q = q_values[*index];
    }
    candidates
        .growing
        .retain(|candidate| candidate.growth().period.is_some() || candidate.q <= MAX_FALSE_DISCOVERIES);
    candidates.growing.sort_by_key(|candidate| (std::cmp::Reverse(candidate.leaked.bytes), candidate.site));
    candidates
}

/// Judges all sites of a live set by their own series.
pub(crate) fn find_candidates_of_all_sites(live_set: &LiveSet) -> Candidates {
    let sites =
        live_set.sites().map(|(site, entry)| (site, entry, std::borrow::Cow::Borrowed(entry.series())));
    find_candidates(live_set, sites)
}

enum CandidateJudgement {
    Candidate(Box<Candidate>),
    Benign(BenignCandidate),
    Quiet,
}

struct SiteUnderTest<'a> {
    live_set: &'a LiveSet,
    cohorts: &'a Cohorts,
    site: SiteId,
    entry: &'a SiteStats,
}

impl SiteUnderTest<'_> {
    fn judge(&self, stride: u32, values: &[BlockTotals]) -> CandidateJudgement {
        let Self { live_set, cohorts, site, entry } = *self;
        let outcomes = live_set.outcomes(entry);
        let survivors = SurvivorEvidence {
            none_freed_after_step: outcomes.freed_after_step == 0,
            generations: if outcomes.freed_after_step == 0 { 0 } else { cohorts.count_generations(site) },
        };
        let blocks: Vec<u64> = values.iter().map(|held| held.blocks).collect();
        let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
        let block_judgement = judge_series(&blocks, survivors);
        let blocks_grow = matches!(block_judgement, GrowthJudgement::Grows(_));
        let none_freed_after_step = survivors.none_freed_after_step || blocks_grow;
        let byte_judgement = judge_series(&bytes, SurvivorEvidence { none_freed_after_step, ..survivors });
        let last = values.last().copied().unwrap_or_default();
        let benign = |rule, held: BlockTotals, is_by_size| {
            CandidateJudgement::Benign(BenignCandidate { site, rule, held, is_by_size })
        };
        if let (false, GrowthJudgement::Settled(rule, rise)) = (blocks_grow, &byte_judgement) {
            let is_block_count_stable = !matches!(block_judgement, GrowthJudgement::Settled(..));
            return benign(
                *rule,
                BlockTotals { bytes: *rise, blocks: last.blocks },
                is_block_count_stable && *rule != GrowthRule::WarmUp,
            );
        }
        if let (GrowthJudgement::Settled(rule, rise), GrowthJudgement::Grows(_)) =
            (&block_judgement, &byte_judgement)
            && *rule != GrowthRule::WarmUp
        {
            // A bounded cache with later entries that happen to be larger.
            return benign(*rule, BlockTotals { bytes: last.bytes, blocks: *rise }, false);
        }
        let block_growth = block_judgement.growth();
        let mut byte_growth = byte_judgement.growth();
        if block_growth.is_none() {
            byte_growth = byte_growth.filter(|growth| {
                let is_certain = growth.period.is_some() || growth.rising_steps >= MIN_IRREGULAR_STEPS;
                is_certain && values.len() - growth.base >= MIN_VALUES_OF_SIZE
            });
        }
        let Some(growth) = block_growth.as_ref().or(byte_growth.as_ref()) else {
            return CandidateJudgement::Quiet;
        };
        let before = if growth.first == 0 { BlockTotals::default() } else { values[growth.base] };
        let leaked = BlockTotals {
            bytes: last.bytes.saturating_sub(before.bytes),
            blocks: match block_growth {
                Some(_) => last.blocks.saturating_sub(before.blocks),
                None => last.blocks,
            },
        };
        if leaked.bytes == 0 {
            return CandidateJudgement::Quiet;
        }
        let settled = growth.first.max(WARM_UP_STEPS).min(values.len().saturating_sub(2));
        let after_warm_up = GrowthAfterWarmUp {
            step: settled as u32 * stride,
            bytes: last.bytes.saturating_sub(values[settled].bytes),
        };
        CandidateJudgement::Candidate(Box::new(Candidate {
            after_warm_up,
            site,
            block_growth,
            byte_growth,
            stride,
            leaked,
            last_step: live_set.steps_ended().saturating_sub(1),
            outcomes,
            cohort: cohorts.cohort_of_site(site, &outcomes),
            free_site: entry.main_free_site(),
            q: 1.0,
        }))
    }
}
