//! Many ranks of two runs: each trace is compared with that of its rank, and the comparisons are
//! merged.
//!
//! A [`RankMerger`] keeps a few numbers of each pair, so thousands of pairs fit into memory. Pairs
//! may be added in any order. Call sites of different ranks are the same if their ids are.

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_replay::compare::{ChangeStatus, Comparison, ComparisonNote, LineChange, TotalQuantity};
use gpumemtrace_replay::report::{AmountUnit, LeakKind, Quantity, Site, Worded};
use schemars::JsonSchema;
use serde::Serialize;

use crate::summary::UnreadableTrace;

/// The result of `gpumemtrace compare --json`: of two traces their comparison, else that of the
/// ranks of two runs.
///
/// Sizes are bytes, unknown values are `null` and never 0. Keys may be added.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "gpumemtrace comparison", extend("$id" = "urn:gpumemtrace:comparison:1"))]
pub enum ComparisonDocument {
    /// The comparison of two traces.
    Traces(Box<Comparison>),
    /// The comparison of the ranks of two runs.
    Ranks(RankComparison),
}

/// The comparison of each rank with itself.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RankComparison {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.comparisons"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// True if any pair differs.
    pub differs: bool,
    /// True if each trace was compared with one of its rank, and nothing is missing from them.
    pub complete: bool,
    /// The pairs, by rank.
    pub pairs: Vec<RankPair>,
    /// Traces that have no trace to be compared with, by run and rank.
    pub unpaired: Vec<UnpairedTrace>,
    /// Traces that could not be read.
    pub unreadable: Vec<UnreadableTrace>,
    /// What was not compared in some pairs, and why.
    pub notes: Vec<NoteOfRanks>,
    /// The totals that differ in any pair.
    pub totals: Vec<TotalOfRanks>,
    /// Call sites that differ in any pair: those of most ranks first, then by the change.
    pub lines: Vec<LineOfRanks>,
    /// Leaks that are new, gone, or grow at another rate: those of most ranks first.
    pub leaks: Vec<LeakOfRanks>,
}

/// The traces of one rank.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RankPair {
    /// The rank of both.
    pub rank: u64,
    /// The paths of the trace of the first run, and of the second.
    pub paths: [String; 2],
    /// True if they differ.
    pub differs: bool,
    /// True if nothing is missing from both.
    pub complete: bool,
}

/// A trace that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct UnpairedTrace {
    /// The run of the trace: 0 for the first, 1 for the second.
    pub run: usize,
    /// Its rank; `null` if the trace has none.
    pub rank: Option<u64>,
    /// The path of the trace.
    pub path: String,
    /// True if the run has several traces of this rank, such as those of restarts.
    pub is_repeated: bool,
}

/// Something that was not compared in some pairs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NoteOfRanks {
    /// What was not compared. Numbers of leaks are sums over these ranks.
    #[serde(flatten)]
    pub note: Worded<ComparisonNote>,
    /// The ranks of these pairs, ascending.
    pub ranks: Vec<u64>,
}

/// The changes of one quantity over several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChangeSpread {
    /// The median; of an even number of ranks, the lower middle value.
    pub median: i64,
    /// The largest decrease, or the smallest increase.
    pub least: i64,
    /// The first rank with `least`.
    pub least_rank: u64,
    /// The largest increase, or the smallest decrease.
    pub most: i64,
    /// The first rank with `most`.
    pub most_rank: u64,
}

impl ChangeSpread {
    /// `None` of no changes. Each is with its rank.
    fn of(mut changes: Vec<(i64, u64)>) -> Option<Self> {
        changes.sort_unstable();
        let (median, _) = *changes.get(changes.len().saturating_sub(1) / 2)?;
        let (least, least_rank) = *changes.first()?;
        let (most, most_rank) =
            changes.into_iter().max_by_key(|(change, rank)| (*change, u64::MAX - rank))?;
        Some(Self { median, least, least_rank, most, most_rank })
    }
}

/// A total that differs in some pairs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TotalOfRanks {
    /// The quantity that differs.
    pub name: TotalQuantity,
    /// The unit of the amounts.
    pub unit: AmountUnit,
    /// The number of ranks in which it differs.
    pub ranks: u64,
    /// The number of ranks in which both amounts are known.
    pub known: u64,
    /// Its changes over the ranks in which both amounts are known: of several GPUs, the one
    /// furthest from 0. `null` if there is no such rank.
    pub change: Option<ChangeSpread>,
}

/// A call site that differs in some pairs. Of several GPUs, the one with the largest change counts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LineOfRanks {
    /// The call site, as the lowest of the ranks has it.
    pub site: Site,
    /// The ranks in which it differs.
    pub ranks: Vec<u64>,
    /// Bytes at the device's peak of allocated bytes, over those ranks.
    pub at_peak_bytes: ChangeSpread,
    /// Live bytes at the end of the last compared step; without steps, at the end.
    pub retained_bytes: ChangeSpread,
    /// Bytes allocated in the median step; `null` without steps.
    pub bytes_per_step: Option<ChangeSpread>,
}

/// A leak that differs in some pairs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeakOfRanks {
    /// The call site that leaks.
    pub site: Site,
    /// The memory that leaks.
    pub kind: LeakKind,
    /// The change of its rate.
    pub status: ChangeStatus,
    /// The ranks in which it changes so.
    pub ranks: Vec<u64>,
    /// The largest growth of these ranks in the second run; of a leak that is gone, in the first.
    pub most_bytes_per_step: Option<Quantity>,
}

/// The changes of one call site in one pair.
#[derive(Clone, Copy)]
struct LineAmounts {
    at_peak: i64,
    retained: i64,
    per_step: Option<i64>,
}

impl LineAmounts {
    fn of(line: &LineChange) -> Self {
        Self {
            at_peak: line.at_peak_bytes.change,
            retained: line.retained_bytes.change,
            per_step: line.bytes_per_step.map(|change| change.change),
        }
    }

    fn weight(self) -> (u64, u64) {
        let lasting = self.at_peak.unsigned_abs().max(self.retained.unsigned_abs());
        (lasting, self.per_step.unwrap_or(0).unsigned_abs())
    }
}

/// A call site, as the lowest rank has it.
struct SiteOfRank {
    rank: u64,
    site: Site,
}

impl SiteOfRank {
    fn keep_lowest(&mut self, rank: u64, site: &Site) {
        if rank < self.rank {
            *self = Self { rank, site: site.clone() };
        }
    }
}

/// By rank: the growth of a leak in bytes per step, if it is known.
type RateOfRanks = BTreeMap<u64, Option<f64>>;

/// Merges the comparisons of ranks, in any order.
#[derive(Default)]
pub struct RankMerger {
    pairs: BTreeMap<u64, RankPair>,
    notes: Vec<NoteOfRanks>,
    /// By quantity and rank: the unit, and the change if both amounts are known.
    totals: BTreeMap<TotalQuantity, (AmountUnit, BTreeMap<u64, Option<i64>>)>,
    /// Ranks in which a quantity is known and equal, of any GPU.
    equal: BTreeMap<TotalQuantity, BTreeSet<u64>>,
    lines: BTreeMap<String, (SiteOfRank, BTreeMap<u64, LineAmounts>)>,
    leaks: BTreeMap<(String, LeakKind, ChangeStatus), (SiteOfRank, RateOfRanks)>,
}

impl RankMerger {
    /// Adds the comparison of one rank.
    pub fn add(&mut self, rank: u64, comparison: &Comparison) {
        let [before, after] = &comparison.runs;
        let pair = RankPair {
            rank,
            paths: [before.path.clone(), after.path.clone()],
            differs: comparison.differs,
            complete: before.complete && after.complete,
        };
        self.pairs.insert(rank, pair);
        for total in &comparison.totals {
            if matches!(total.name, TotalQuantity::GapCause(_) | TotalQuantity::HeldBy(_)) {
                continue; // A part of another quantity.
            }
            let (_, ranks) =
                self.totals.entry(total.name.clone()).or_insert_with(|| (total.unit, BTreeMap::new()));
            let change = ranks.entry(rank).or_insert(total.change);
            // Of equal distances from 0, the increase.
            *change =
                [*change, total.change].into_iter().flatten().max_by_key(|one| (one.unsigned_abs(), *one));
        }
        for name in &comparison.equal_totals {
            self.equal.entry(name.clone()).or_default().insert(rank);
        }
        for note in &comparison.notes {
            self.add_note(rank, note.fact);
        }
        for line in &comparison.lines {
            let Some(site) = line.site() else { continue };
            let (kept, ranks) = self
                .lines
                .entry(site.id.clone())
                .or_insert_with(|| (SiteOfRank { rank, site: site.clone() }, BTreeMap::new()));
            kept.keep_lowest(rank, site);
            let amounts = LineAmounts::of(line);
            let largest = ranks.entry(rank).or_insert(amounts);
            if amounts.weight() > largest.weight() {
                *largest = amounts;
            }
        }
        for leak in &comparison.leaks {
            let Some(side) = leak.after.as_ref().or(leak.before.as_ref()) else { continue };
            let (kept, ranks) = self
                .leaks
                .entry((side.site.id.clone(), leak.kind, leak.status))
                .or_insert_with(|| (SiteOfRank { rank, site: side.site.clone() }, BTreeMap::new()));
            kept.keep_lowest(rank, &side.site);
            let rate = side.bytes_per_step.map(|rate| rate.0);
            let most = ranks.entry(rank).or_insert(rate);
            *most = max_rate(*most, rate);
        }
    }

    fn add_note(&mut self, rank: u64, note: ComparisonNote) {
        let found = self.notes.iter_mut().find_map(|known| {
            known.note.fact = sum_of_notes(known.note.fact, note)?;
            Some(known)
        });
        match found {
            Some(known) => known.ranks.push(rank),
            None => self.notes.push(NoteOfRanks { note: note.into(), ranks: vec![rank] }),
        }
    }

    /// The comparison of all ranks that were added.
    #[must_use]
    pub fn finish(
        self,
        mut unpaired: Vec<UnpairedTrace>,
        unreadable: Vec<UnreadableTrace>,
    ) -> RankComparison {
        unpaired.sort();
        let Self { pairs, mut notes, totals, equal, lines, leaks } = self;
        for note in &mut notes {
            note.ranks.sort_unstable();
        }
        notes.sort_by_key(|note| (std::cmp::Reverse(note.ranks.len()), format!("{:?}", note.note.fact)));
        let total = |(name, (unit, changed)): (TotalQuantity, (AmountUnit, BTreeMap<u64, Option<i64>>))| {
            let differs = changed.iter().filter_map(|(rank, change)| Some(((*change)?, *rank)));
            let equal = equal.get(&name).into_iter().flatten().filter(|rank| !changed.contains_key(rank));
            let changes: Vec<(i64, u64)> = differs.chain(equal.map(|rank| (0, *rank))).collect();
            let (ranks, known) = (changed.len() as u64, changes.len() as u64);
            TotalOfRanks { name, unit, ranks, known, change: ChangeSpread::of(changes) }
        };
        let totals = totals.into_iter().map(total).collect();
        let mut lines: Vec<LineOfRanks> =
            lines.into_values().filter_map(|(kept, ranks)| line_of_ranks(kept.site, &ranks)).collect();
        lines.sort_by_cached_key(|line| {
            let largest =
                line.at_peak_bytes.median.unsigned_abs().max(line.retained_bytes.median.unsigned_abs());
            (std::cmp::Reverse((line.ranks.len(), largest)), line.site.id.clone())
        });
        let mut leaks: Vec<LeakOfRanks> = leaks
            .into_iter()
            .map(|((_, kind, status), (kept, ranks))| LeakOfRanks {
                site: kept.site,
                kind,
                status,
                most_bytes_per_step: ranks.values().copied().reduce(max_rate).flatten().map(Quantity),
                ranks: ranks.into_keys().collect(),
            })
            .collect();
        leaks.sort_by_cached_key(|leak| {
            (leak.status, std::cmp::Reverse(leak.ranks.len()), leak.site.id.clone())
        });
        RankComparison {
            schema: "gpumemtrace.comparisons",
            version: 1,
            differs: pairs.values().any(|pair| pair.differs),
            complete: unreadable.is_empty()
                && unpaired.is_empty()
                && pairs.values().all(|pair| pair.complete),
            pairs: pairs.into_values().collect(),
            unpaired,
            unreadable,
            notes,
            totals,
            lines,
            leaks,
        }
    }
}

/// Both notes as one; `None` if they are of different kinds.
fn sum_of_notes(one: ComparisonNote, other: ComparisonNote) -> Option<ComparisonNote> {
    match (one, other) {
        (
            ComparisonNote::LeaksNotCompared { before, after },
            ComparisonNote::LeaksNotCompared { before: more_before, after: more_after },
        ) => Some(ComparisonNote::LeaksNotCompared {
            before: before.saturating_add(more_before),
            after: after.saturating_add(more_after),
        }),
        _ => (one == other).then_some(one),
    }
}

fn max_rate(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

fn line_of_ranks(site: Site, ranks: &BTreeMap<u64, LineAmounts>) -> Option<LineOfRanks> {
    let spread = |of: fn(&LineAmounts) -> Option<i64>| {
        ChangeSpread::of(ranks.iter().filter_map(|(rank, amounts)| Some((of(amounts)?, *rank))).collect())
    };
    Some(LineOfRanks {
        site,
        ranks: ranks.keys().copied().collect(),
        at_peak_bytes: spread(|amounts| Some(amounts.at_peak))?,
        retained_bytes: spread(|amounts| Some(amounts.retained))?,
        bytes_per_step: spread(|amounts| amounts.per_step),
    })
}
