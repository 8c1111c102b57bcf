//! What grew from one version of a program to the next.
//!
//! Growth is a lower bound: the least that a function has in any usual run of a version, minus
//! the most that it has in any usual run of the version before. So runs of one version that vary
//! are no growth. A summary keeps the largest call sites of a trace, so the least and the most are
//! bounds too. A recording that was cut, or of a program that failed, bounds nothing from above, so
//! others are never compared with it.
//!
//! `gpumemtrace.sql` has the same rule for the tables of an archive (`questions/grown_lines.sql`).
//! `tests/suite/sql/test_growth_rule.py` compares both with a plain computation.

use crate::archive::RunArchive;
use crate::functions::{FunctionRef, Functions, GpuChoice};
use crate::versions::{CommonRanks, PairOutcome, versions};

/// Least growth that is reported, in bytes, and as a part of the bytes before.
const LEAST_GROWTH_BYTES: u64 = 1 << 20;
const LEAST_GROWTH_SHARE: f64 = 0.05;

/// What grew from version to version of each program, and what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveGrowth {
    /// Functions that grew, the latest version first and then the largest growth.
    pub regressions: Vec<Regression>,
    /// Each version of a program but the first, with the one before, the latest first.
    pub pairs: Vec<VersionPair>,
    /// Indices of runs that are in no version: their program or their start is unknown.
    pub unplaced: Vec<usize>,
}

/// A version of a program, and the last one before it that it can be compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionPair {
    /// The program, by its command line.
    pub program: String,
    /// Index of the last run of the version before.
    pub before: usize,
    /// Index of the first run of the version.
    pub after: usize,
    /// How much of both was compared, or why nothing was.
    pub outcome: PairOutcome,
}

/// A function that has more memory at the peak in one version of a program than in the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// The program, by its command line.
    pub program: String,
    /// Index of the last run of the version before.
    pub before: usize,
    /// Index of the first run of the version.
    pub after: usize,
    /// The line of the function that grew most, such as `train.py:14 in step()`; all of these if
    /// several fit.
    pub lines: Vec<String>,
    /// The functions of the version before that this one was, if it has another name or file now.
    pub moved_from: Vec<String>,
    /// Which bytes these are, of several GPUs.
    pub chosen: GpuChoice,
    /// The most in any usual run before.
    pub before_bytes: u64,
    /// True if the bytes before may be fewer: a trace keeps only its largest lines.
    pub before_is_bound: bool,
    /// The least in any usual run of the version.
    pub after_bytes: u64,
    /// True if the bytes may be more.
    pub after_is_bound: bool,
    /// False if a trace of the version is incomplete, or did not end normally.
    pub after_is_whole: bool,
}

impl Regression {
    /// The growth, at least.
    #[must_use]
    pub fn growth_bytes(&self) -> u64 {
        self.after_bytes.saturating_sub(self.before_bytes)
    }
}

/// What grew between consecutive versions of each program. Versions that begin
/// with a hidden run are compared, and left out.
///
/// Memory is compared by function, because lines move between commits, and over the ranks that both
/// versions have.
#[must_use]
pub fn growth_between_versions(archive: &RunArchive) -> ArchiveGrowth {
    let (programs, unplaced) = versions(&archive.runs);
    let mut growth = ArchiveGrowth { unplaced, ..ArchiveGrowth::default() };
    for (command, versions) in &programs {
        let program = command.join(" ");
        for place in 1..versions.len() {
            // A version of runs that all failed is compared, and nothing is compared with it.
            let baseline = versions[..place].iter().rfind(|version| version.is_baseline());
            let (before, after) = (baseline.unwrap_or(&versions[place - 1]), &versions[place]);
            let common = CommonRanks::new(before, after);
            let outcome = common.as_ref().map_or_else(|why| *why, |common| common.outcome);
            let (before, after) = (before.last(), after.first());
            let pair = VersionPair { program: program.clone(), before, after, outcome };
            if let Ok(common) = common {
                growth.regressions.extend(grown_functions(&pair, &common));
            }
            growth.pairs.push(pair);
        }
    }
    growth.pairs.retain(|pair| !archive.hidden.contains(&pair.after));
    growth.regressions.retain(|regression| !archive.hidden.contains(&regression.after));
    growth.unplaced.retain(|index| !archive.hidden.contains(index));
    growth.pairs.sort_by_key(|pair| std::cmp::Reverse((pair.after, pair.before)));
    growth.regressions.sort_by(|one, other| {
        let order = |regression: &Regression| (regression.after, regression.growth_bytes());
        order(other).cmp(&order(one)).then_with(|| one.lines.cmp(&other.lines))
    });
    growth
}

fn grown_functions(pair: &VersionPair, common: &CommonRanks<'_>) -> Vec<Regression> {
    let (before, after) = (Functions::new(&common.before), Functions::new(&common.after));
    let grown = |function: FunctionRef<'_>| {
        let origins = after.origins(function, &before);
        let names: Vec<FunctionRef<'_>> = if origins.is_empty() { vec![function] } else { origins.clone() };
        let is_grown = |choice: &GpuChoice| {
            let (old, new) = (before.most(&names, *choice), after.least(function, *choice));
            let growth_bytes = new.saturating_sub(old);
            growth_bytes >= LEAST_GROWTH_BYTES && growth_bytes as f64 >= LEAST_GROWTH_SHARE * old as f64
        };
        let chosen = [GpuChoice::Median, GpuChoice::Most].into_iter().find(is_grown)?;
        Some(Regression {
            program: pair.program.clone(),
            before: pair.before,
            after: pair.after,
            lines: after.lines_to_name(function, &before, &names),
            moved_from: origins.iter().map(ToString::to_string).collect(),
            chosen,
            before_bytes: before.most(&names, chosen),
            before_is_bound: before.has_unlisted(),
            after_bytes: after.least(function, chosen),
            after_is_bound: after.has_unlisted(),
            after_is_whole: common.after_is_whole,
        })
    };
    after.names().filter_map(grown).collect()
}
