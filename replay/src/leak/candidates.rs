//! Which sites of a book grow, and which have grown and are silent.
//!
//! Each site is judged by [`crate::leak::growth`] on its live blocks at step ends, and on its live bytes if the blocks do not grow
//! (one tensor that gets ever larger; only twelve step ends or more will do, because each step is a copy and a free, and
//! [`MIN_IRREGULAR_STEPS`] growth steps where it is not regular; and not where blocks came as well and come no more). All
//! sites that ever changed are one family of tests: growth that is not regular counts only where its share of false
//! discoveries ([`crate::leak::statistics`]) is at most [`MAX_FALSE_DISCOVERIES`].

use crate::callsite::symbols::SiteId;
use crate::leak::cohorts::{Cohort, Cohorts};
use crate::leak::growth::{Growth, GrowthJudgement, GrowthRule, SurvivorEvidence, judge};
use crate::leak::statistics::{false_discovery_rates, trend};
use crate::state::live_set::{BlockOutcomes, LiveSet, SiteStats};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

/// Highest share of false discoveries among what is not regular.
pub(crate) const MAX_FALSE_DISCOVERIES: f64 = 0.05;
/// Fewest values of a tensor that gets larger.
const MIN_VALUES_OF_SIZE: usize = 12;
/// Fewest growth steps of what has no blocks of its own to count, where it is not regular: a pool whose members are now and
/// then larger ones rises by chance as well.
pub(crate) const MIN_IRREGULAR_STEPS: usize = 16;
/// Steps in which parameters, gradients and optimizer state appear: their growth is nobody's share.
const WARM_UP: usize = 3;

/// A site that grows.
pub(crate) struct Candidate {
    /// Whose.
    pub(crate) site: SiteId,
    pub(crate) blocks: Option<Growth>,
    pub(crate) bytes: Option<Growth>,
    /// Steps from one value of the series to the next.
    pub(crate) stride: u32,
    /// Survivors; of a tensor that grows, what it grew by and the blocks there are.
    pub(crate) held: BlockTotals,
    /// The last step that ended.
    pub(crate) to: u32,
    /// Growth of its bytes from the end of this step on, when warm-up is over.
    pub(crate) after_warm_up: (u32, u64),
    pub(crate) outcomes: BlockOutcomes,
    pub(crate) cohort: Cohort,
    pub(crate) free_site: Option<SiteId>,
    /// Share of false discoveries.
    pub(crate) q: f64,
}

impl Candidate {
    /// The growth that made it one.
    pub(crate) fn growth(&self) -> &Growth {
        // One of the two is there: a finding is made from it.
        self.blocks.as_ref().or(self.bytes.as_ref()).unwrap_or(&NONE)
    }

    /// The step at whose end it had not begun; `None` if it began with the first.
    pub(crate) fn from(&self) -> Option<u32> {
        let growth = self.growth();
        (growth.first > 0).then_some(growth.base as u32 * self.stride)
    }

    /// As a finding in a series that has so many values before those that were judged.
    fn after(self, values: usize) -> Self {
        let (settled, grown) = self.after_warm_up;
        Self {
            blocks: self.blocks.map(|growth| growth.after(values)),
            bytes: self.bytes.map(|growth| growth.after(values)),
            after_warm_up: (settled.saturating_add((values as u32).saturating_mul(self.stride)), grown),
            ..self
        }
    }

    pub(crate) fn first_step(&self) -> u64 {
        self.growth().first as u64 * u64::from(self.stride)
    }

    /// Bytes per step: expected, least and most.
    pub(crate) fn bytes_rate(&self) -> [f64; 3] {
        let stride = f64::from(self.stride);
        let of = |growth: &Growth, bytes_each: f64| {
            let rate = growth.per_value * bytes_each;
            let [least, most] = growth.rate_interval().map(|bound| bound * bytes_each);
            [rate, least.min(rate), most.max(rate)].map(|rate| rate / stride)
        };
        match (&self.bytes, &self.blocks) {
            (Some(bytes), _) => of(bytes, 1.0),
            // Blocks may grow regularly while their sizes vary: then bytes per step is their mean.
            (None, Some(blocks)) if blocks.rise > 0 => {
                of(blocks, self.held.bytes as f64 / blocks.rise as f64)
            }
            _ => [0.0; 3],
        }
    }

    /// Times that something stayed, with the first.
    pub(crate) fn rises(&self) -> usize {
        let growth = self.growth();
        growth.rising_steps + usize::from(growth.first == 0)
    }

    /// What findings have in common that grow in the very same steps.
    pub(crate) fn lockstep(&self) -> (usize, Option<usize>, usize, u32) {
        let growth = self.growth();
        (growth.first, growth.period, growth.rising_steps, self.stride)
    }
}

static NONE: Growth = Growth::NONE;

/// A site that has grown and is silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenignCandidate {
    pub(crate) site: SiteId,
    pub(crate) rule: GrowthRule,
    pub(crate) held: BlockTotals,
    /// The blocks stayed and their bytes did not.
    pub(crate) is_by_size: bool,
}

/// What a book's sites do.
#[derive(Default)]
pub(crate) struct Candidates {
    /// Most bytes first.
    pub(crate) findings: Vec<Candidate>,
    pub(crate) silent: Vec<BenignCandidate>,
}

/// The suspects among the sites of a book, whose series are given: a site's own, or a part of it.
pub(crate) fn find_candidates<'a>(
    live_set: &'a LiveSet,
    sites: impl Iterator<Item = (SiteId, &'a SiteStats, std::borrow::Cow<'a, StepSeries>)>,
) -> Candidates {
    let cohorts = Cohorts::of(live_set);
    let mut suspects = Candidates::default();
    // Of each site that was judged, its p; findings know their place among them.
    let mut chances = Vec::new();
    let mut places = Vec::new();
    for (site, entry, series) in sites {
        if series.is_empty() {
            continue;
        }
        let one = SiteUnderTest { live_set, cohorts: &cohorts, site, entry };
        let (stride, before, values) = series.values_from(live_set.first_step, live_set.steps_ended());
        match one.judge(stride, &values) {
            CandidateJudgement::Candidate(finding) => {
                let finding = Box::new(finding.after(before));
                places.push(chances.len());
                chances.push(finding.growth().p);
                suspects.findings.push(*finding);
            }
            CandidateJudgement::Benign(silent) => {
                suspects.silent.push(silent);
                chances.push(1.0);
            }
            CandidateJudgement::Quiet => {
                let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
                chances.push(trend(&bytes).p);
            }
        }
    }
    let rates = false_discovery_rates(&chances);
    for (finding, place) in suspects.findings.iter_mut().zip(&places) {
        finding.q = rates[*place];
    }
    suspects
        .findings
        .retain(|finding| finding.growth().period.is_some() || finding.q <= MAX_FALSE_DISCOVERIES);
    suspects.findings.sort_by_key(|finding| (std::cmp::Reverse(finding.held.bytes), finding.site));
    suspects
}

/// All sites of a book with their own series.
pub(crate) fn candidates_of_all_sites(live_set: &LiveSet) -> Candidates {
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
        let fate = SurvivorEvidence {
            none_freed_after_step: outcomes.freed_after_step == 0,
            generations: if outcomes.freed_after_step == 0 { 0 } else { cohorts.generations(site) },
        };
        let blocks: Vec<u64> = values.iter().map(|held| held.blocks).collect();
        let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
        let of_blocks = judge(&blocks, fate);
        let blocks_grow = matches!(of_blocks, GrowthJudgement::Grows(_));
        let none_freed_after_step = fate.none_freed_after_step || blocks_grow;
        let of_bytes = judge(&bytes, SurvivorEvidence { none_freed_after_step, ..fate });
        let last = values.last().copied().unwrap_or_default();
        let silent = |rule, held: BlockTotals, is_by_size| {
            CandidateJudgement::Benign(BenignCandidate { site, rule, held, is_by_size })
        };
        if let (false, GrowthJudgement::Settled(rule, rise)) = (blocks_grow, &of_bytes) {
            let stays = !matches!(of_blocks, GrowthJudgement::Settled(..));
            return silent(
                *rule,
                BlockTotals { bytes: *rise, blocks: last.blocks },
                stays && *rule != GrowthRule::WarmUp,
            );
        }
        if let (GrowthJudgement::Settled(rule, rise), GrowthJudgement::Grows(_)) = (&of_blocks, &of_bytes)
            && *rule != GrowthRule::WarmUp
        {
            // A cache of so many entries, whose later ones happen to be larger.
            return silent(*rule, BlockTotals { bytes: last.bytes, blocks: *rise }, false);
        }
        let growth_blocks = of_blocks.growth();
        let mut growth_bytes = of_bytes.growth();
        if growth_blocks.is_none() {
            growth_bytes = growth_bytes.filter(|growth| {
                let is_certain = growth.period.is_some() || growth.rising_steps >= MIN_IRREGULAR_STEPS;
                is_certain && values.len() - growth.base >= MIN_VALUES_OF_SIZE
            });
        }
        let Some(first) = growth_blocks.as_ref().or(growth_bytes.as_ref()) else {
            return CandidateJudgement::Quiet;
        };
        let before = if first.first == 0 { BlockTotals::default() } else { values[first.base] };
        let held = BlockTotals {
            bytes: last.bytes.saturating_sub(before.bytes),
            blocks: match growth_blocks {
                Some(_) => last.blocks.saturating_sub(before.blocks),
                None => last.blocks,
            },
        };
        if held.bytes == 0 {
            return CandidateJudgement::Quiet;
        }
        let settled = first.first.max(WARM_UP).min(values.len().saturating_sub(2));
        let grown = last.bytes.saturating_sub(values[settled].bytes);
        CandidateJudgement::Candidate(Box::new(Candidate {
            after_warm_up: (settled as u32 * stride, grown),
            site,
            blocks: growth_blocks,
            bytes: growth_bytes,
            stride,
            held,
            to: live_set.steps_ended().saturating_sub(1),
            outcomes,
            cohort: cohorts.of_site(site, &outcomes),
            free_site: entry.main_free_site(),
            q: 1.0,
        }))
    }
}
