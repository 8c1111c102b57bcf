//! Checks a run against a budget.

use super::measure::{BudgetMeasurer, ContributorSource, MeasureResult};
use super::outcome::{BudgetCheck, CheckState, CheckedLimit, ValueShare};
use super::size::{BytesLimit, CountLimit, Tolerance};
use super::{Budget, BudgetQuantity, IfUnknown};
use crate::compare::Profile;
use crate::report::{AmountUnit, GrowingSite, Site, Worded};

/// Checks a run against a budget. `path` is that of the budget file.
pub fn check(profile: &Profile<'_>, budget: &Budget, path: &str) -> BudgetCheck {
    use BudgetQuantity as Q;
    let measure = BudgetMeasurer::new(profile);
    let mut run = CheckRun { profile, budget, limits: Vec::new() };
    run.bytes(Q::PeakLive.name(), budget.peak.live, || measure.peak_live());
    run.bytes(Q::PeakReserved.name(), budget.peak.reserved, || measure.peak_reserved());
    run.bytes(Q::PeakDevice.name(), budget.peak.device, || measure.peak_device());
    run.bytes(Q::GapBytes.name(), budget.gap.bytes, || measure.gap());
    run.count(Q::LeaksCount.name(), budget.leaks.count, || measure.leak_count());
    // The general tolerance is for constant sizes, not for growth in each step.
    let rate = budget
        .leaks
        .bytes_per_step
        .map(|limit| BytesLimit { tolerance: limit.tolerance.or(Some(Tolerance::Bytes(0))), ..limit });
    run.bytes(Q::LeaksBytesPerStep.name(), rate, || measure.leak_rate());
    run.bytes(Q::StepPeak.name(), budget.step.peak, || measure.step_peak());
    run.bytes(Q::StepBytes.name(), budget.step.bytes, || measure.step_allocated(|held| held.bytes));
    run.count(Q::StepAllocations.name(), budget.step.allocations, || {
        measure.step_allocated(|held| held.blocks)
    });
    for site in &budget.site {
        let pattern = &site.pattern;
        let name = |quantity: &str| format!("site[{pattern}].{quantity}");
        let of_site = |limit: Option<BytesLimit>| {
            limit.map(|limit| BytesLimit {
                tolerance: limit.tolerance.or(site.tolerance),
                if_unknown: limit.if_unknown.or(site.if_unknown),
                ..limit
            })
        };
        run.bytes(&name("peak"), of_site(site.peak), || measure.site_at_peak(pattern));
        run.bytes(&name("retained"), of_site(site.retained), || measure.site_retained(pattern));
        run.bytes(&name("bytes_per_step"), of_site(site.bytes_per_step), || {
            measure.site_allocated(pattern, |held| held.bytes)
        });
        let count = site
            .allocations_per_step
            .map(|count| CountLimit { if_unknown: count.if_unknown.or(site.if_unknown), ..count });
        run.count(&name("allocations_per_step"), count, || {
            measure.site_allocated(pattern, |held| held.blocks)
        });
    }
    let analysis = profile.analysis;
    BudgetCheck {
        schema: "gpumemtrace.check",
        version: 1,
        trace: analysis.path.clone(),
        rank: analysis.meta.number("rank"),
        world_size: analysis.meta.number("world_size"),
        budget: path.to_owned(),
        command: Some(analysis.meta.list("command").to_vec()).filter(|command| !command.is_empty()),
        complete: analysis.incomplete.is_empty(),
        incomplete: analysis.incomplete.iter().cloned().map(Worded::from).collect(),
        passed: run.limits.iter().all(|limit| !limit.fails),
        budgets: run.limits,
        possible_leaks: possible_leaks(profile),
    }
}

/// What grew and may be a leak, as shares in bytes.
pub(super) fn possible_leaks(profile: &Profile<'_>) -> Vec<ValueShare> {
    let possible = profile.assessment.growth.iter().filter(|growth| growth.is_warning());
    let share = |growth: &GrowingSite| {
        let site = Site { stack: Vec::new(), ..growth.site.clone() };
        ValueShare { site: Some(site), name: None, amount: growth.bytes }
    };
    possible.map(share).collect()
}

struct CheckRun<'a> {
    profile: &'a Profile<'a>,
    budget: &'a Budget,
    limits: Vec<CheckedLimit>,
}

impl CheckRun<'_> {
    fn bytes(&mut self, name: &str, limit: Option<BytesLimit>, measure: impl FnOnce() -> MeasureResult) {
        let Some(limit) = limit else { return };
        let tolerance = limit
            .tolerance
            .or(self.budget.tolerance)
            .map_or(0, |tolerance| tolerance.bytes_for_limit(limit.bytes));
        let allowed = limit.bytes.saturating_add(tolerance);
        self.add((name, AmountUnit::Bytes), (limit.bytes, allowed), limit.if_unknown, measure());
    }

    fn count(&mut self, name: &str, count: Option<CountLimit>, measure: impl FnOnce() -> MeasureResult) {
        let Some(count) = count else { return };
        self.add((name, AmountUnit::Count), (count.limit, count.limit), count.if_unknown, measure());
    }

    fn add(
        &mut self,
        (name, unit): (&str, AmountUnit),
        (limit, allowed): (u64, u64),
        if_unknown: Option<IfUnknown>,
        result: MeasureResult,
    ) {
        let mut checked = CheckedLimit {
            name: name.to_owned(),
            unit,
            state: CheckState::Unknown,
            fails: if_unknown.or(self.budget.if_unknown).unwrap_or_default() == IfUnknown::Fail,
            limit,
            allowed,
            measured: None,
            over_by: None,
            device: None,
            why: None,
            contributors: Vec::new(),
            contributor_unit: unit,
        };
        match result {
            Err(why) => checked.why = Some(why.into()),
            Ok(measured) => {
                let is_exceeded = measured.value > allowed;
                checked.state = if is_exceeded { CheckState::Exceeded } else { CheckState::Kept };
                checked.fails = is_exceeded;
                checked.measured = Some(measured.value);
                checked.over_by = is_exceeded.then(|| measured.value - limit);
                checked.device = measured.device.map(u32::from);
                checked.contributor_unit = measured.contributor_unit.unwrap_or(unit);
                let share = |(source, amount): (ContributorSource, u64)| match source {
                    ContributorSource::Line(line) => {
                        let site = Some(self.profile.lines[line].site.clone());
                        ValueShare { site, name: None, amount }
                    }
                    ContributorSource::Site(site) => ValueShare { site: Some(*site), name: None, amount },
                    ContributorSource::Named(name) => ValueShare { site: None, name: Some(name), amount },
                };
                checked.contributors = measured.contributors.into_iter().map(share).collect();
            }
        }
        self.limits.push(checked);
    }
}
