//! The checks of many traces against one budget.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpumemtrace_replay::budget::{BudgetCheck, BudgetDraft, SiteDraft, ValueShare};
use schemars::JsonSchema;
use serde::Serialize;

use crate::job::missing_ranks;
use crate::summary::UnreadableTrace;

/// The result of `gpumemtrace check --json`: of one trace its check, of several a list of checks.
///
/// Sizes are bytes, unknown values are `null` and never 0. Keys may be added.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "gpumemtrace check", extend("$id" = "urn:gpumemtrace:check:1"))]
pub enum CheckDocument {
    /// The check of one trace.
    One(Box<BudgetCheck>),
    /// The checks of several traces.
    Several(BudgetChecks),
}

/// The checks of several traces.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BudgetChecks {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.checks"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The path of the budget file as given.
    pub budget: String,
    /// True if no limit fails in any trace that could be read.
    pub passed: bool,
    /// True if each rank has a trace, all could be read, and nothing is missing from them.
    pub complete: bool,
    /// The check of each trace, by rank. Limits that do not fail have no contributors.
    pub checks: Vec<BudgetCheck>,
    /// Traces that could not be read.
    pub unreadable: Vec<UnreadableTrace>,
    /// Ranks of the job without a trace among these; empty if the size of the job is unknown.
    pub missing_ranks: Vec<u64>,
}

impl BudgetChecks {
    /// Puts the checks in order of their ranks, those without a rank last.
    #[must_use]
    pub fn new(budget: String, mut checks: Vec<BudgetCheck>, unreadable: Vec<UnreadableTrace>) -> Self {
        checks.sort_by_key(|check| check.rank.unwrap_or(u64::MAX));
        let world_size = checks.iter().filter_map(|check| check.world_size).max();
        let missing_ranks =
            missing_ranks(world_size, &checks.iter().filter_map(|check| check.rank).collect());
        let is_all = unreadable.is_empty() && missing_ranks.is_empty();
        Self {
            schema: "gpumemtrace.checks",
            version: 1,
            budget,
            passed: checks.iter().all(|check| check.passed),
            complete: is_all && checks.iter().all(|check| check.complete),
            missing_ranks,
            checks,
            unreadable,
        }
    }

    /// A check without the contributors of limits that do not fail: many of them fit into memory.
    #[must_use]
    pub fn shorten(mut check: BudgetCheck) -> BudgetCheck {
        for limit in check.budgets.iter_mut().filter(|limit| !limit.fails) {
            limit.contributors = Vec::new();
        }
        check
    }
}

/// The largest values of two runs, so that both keep to them. A value or a function that one of
/// them lacks is left out: its limit would fail there.
#[must_use]
pub fn merge_drafts(one: BudgetDraft, other: BudgetDraft) -> BudgetDraft {
    let values = one.values.into_iter().zip(other.values).map(|((quantity, one), (_, other))| {
        (quantity, one.and_then(|one| other.map(|other| one.max(other))))
    });
    let mut others: BTreeMap<String, SiteDraft> =
        other.sites.into_iter().map(|site| (site.pattern.clone(), site)).collect();
    let sites = one.sites.into_iter().filter_map(|site| {
        let other = others.remove(&site.pattern)?;
        let bytes_per_step = site.bytes_per_step.zip(other.bytes_per_step);
        Some(SiteDraft {
            peak_bytes: site.peak_bytes.max(other.peak_bytes),
            bytes_per_step: bytes_per_step.map(|(one, other)| one.max(other)),
            pattern: site.pattern,
        })
    });
    let mut sites: Vec<SiteDraft> = sites.collect();
    sites.sort_by_cached_key(|site| (Reverse((site.peak_bytes, site.bytes_per_step)), site.pattern.clone()));
    let mut leaks = one.leaks;
    for leak in other.leaks {
        let id = |share: &ValueShare| share.site.as_ref().map(|site| site.id.clone());
        match leaks.iter_mut().find(|known| id(known) == id(&leak)) {
            Some(known) => known.amount = known.amount.max(leak.amount),
            None => leaks.push(leak),
        }
    }
    leaks.sort_by_key(|leak| Reverse(leak.amount));
    BudgetDraft { is_metal: one.is_metal && other.is_metal, values: values.collect(), sites, leaks }
}
