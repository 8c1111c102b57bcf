//! What grows, and what has grown and is silent, as `--json` prints them. `docs/analyses.md` has the definitions.

use serde::Serialize;
use serde_json::Value;

use super::{Holder, HolderCoverage, Quantity, Site};
use crate::callsite::symbols::SiteId;

/// A site that grows.
#[derive(Clone, Debug, Serialize)]
pub struct Leak {
    /// Index in `traces`.
    pub trace: usize,
    /// `tensors`, `device` (driver memory), `pinned_host` or `reserved` (by PyTorch, and used by no tensor).
    pub kind: &'static str,
    /// The deepest user line that holds nine tenths of the growth and nothing healthy.
    pub site: Site,
    /// Where it is allocated, if that is another line.
    pub leaf: Option<Site>,
    /// On what.
    pub device: u32,
    /// `linear`, `accelerating`, `retained_graph` or `one_off`.
    pub shape: &'static str,
    /// 0 to 1.
    pub confidence: f64,
    /// Survivors at the end of the last complete step; where one block gets larger, the blocks there are.
    pub blocks: u64,
    /// Their bytes; where one block gets larger, what it grew by.
    pub bytes: u64,
    /// Growth.
    pub blocks_per_step: Option<Quantity>,
    /// Growth.
    pub bytes_per_step: Option<Quantity>,
    /// Bounds of that: 95 % by Theil and Sen, or twice the same where the growth is exact.
    pub bytes_per_step_interval: Option<[Quantity; 2]>,
    /// Steps after which the growth repeats.
    pub period_steps: Option<u64>,
    /// First step that left something behind, counted from 0.
    pub first_step: Option<u64>,
    /// The last complete step: `blocks` and `bytes` are as of its end.
    pub last_step: Option<u64>,
    /// `blocks`: there are more and more; `size`: they get larger and larger.
    pub grows_by: &'static str,
    /// False where growth comes without a period: a cache that is still filling cannot be told from a leak then.
    pub is_regular: bool,
    /// Of all growth on this device in the same time.
    pub share_of_growth: Option<f64>,
    /// At this rate alone (see `docs/analyses.md`).
    pub steps_to_oom: Option<u64>,
    /// When the device is full if all its leaks go on.
    pub oom_step: Option<OomForecast>,
    /// Blocks of the same lines that were live at the last step end.
    pub survivors: Option<u64>,
    /// Steps that those of the main line come from.
    pub generations: Option<u64>,
    /// How many of the main line's blocks live how long (`crate::leak::cohorts`).
    pub cohort_survival: Vec<Survival>,
    /// Chance of such a trend without growth: Mann-Kendall with Hamed and Rao's correction.
    pub p_value: f64,
    /// Share of false discoveries among what is as certain as this, of all sites: Benjamini and Hochberg.
    pub q_value: f64,
    /// What became of the other blocks of the same line.
    pub freed_siblings: FreedSiblings,
    /// Where threads of autograd allocated it: the calls of `backward()` that they work for.
    pub backward_calls: Vec<Site>,
    /// Of a retained graph: the lines its blocks come from; where that is one line, the functions of the library below it. Of several
    /// lines under one: these.
    pub members: Vec<Site>,
    /// Who holds its blocks, largest first; `None` where the program did not look.
    pub holders: Option<Vec<Holder>>,
    /// How much of it was looked at.
    pub holders_seen: Option<HolderCoverage>,
    /// The numbers behind it.
    pub evidence: Value,
    /// The sites that grow, and the step at whose end that of each had not begun.
    #[serde(skip)]
    pub(crate) sites: Vec<(SiteId, Option<u32>)>,
}

/// When a device will be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OomForecast {
    /// Most likely.
    pub expected: u64,
    /// With nothing of PyTorch's cache, at the highest rate.
    pub earliest: u64,
    /// With all of it, at the lowest rate.
    pub latest: Option<u64>,
}

/// How many blocks live how long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Survival {
    /// After the step that they were allocated in; each value ends a class of ages, twice as wide as the one before.
    pub after_steps: u32,
    /// Of those that were watched so long.
    pub share: f64,
}

/// A site that holds more than it did and is no leak.
#[derive(Clone, Debug, Serialize)]
pub struct BenignGrowth {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// As of [`Leak::kind`].
    pub kind: &'static str,
    /// Whose.
    pub site: Site,
    /// `warm_up`, `one_off`, `saturating`, `ratchet`, `optimizer_state`, `library_workspace` or `too_early`.
    pub rule: &'static str,
    /// What it grew by.
    pub bytes: u64,
    /// In so many blocks.
    pub blocks: u64,
}

/// Blocks of the same line that were freed.
#[derive(Clone, Debug, Serialize)]
pub struct FreedSiblings {
    /// Of all blocks of the line.
    pub share: f64,
    /// Where most of them were freed.
    pub site: Option<Site>,
}
