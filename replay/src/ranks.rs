//! Many processes or devices side by side: how evenly they are used, and which one began to grow.
//!
//! Definitions. A *unit* is a device of a process. Its *excess* is its peak of live bytes over the median of all, as a share of that
//! median. The *first cause* is the unit whose first leak began in the earliest step; its lead is how many steps later another
//! unit's began.
//!
//! Constraint: ranks begin at different times and clocks of machines differ, so times say nothing of who was first. Consequence:
//! runs are laid side by side by the numbers of their steps, which training keeps equal by what ranks wait for each other for; and
//! only where all know their steps by the same rule.

use serde_json::json;

use crate::pass::Analysis;
use crate::report::display::{format_bytes, format_rank, format_site};
use crate::report::{FirstCause, Leak, RankRow, Ranks, Severity, SiteDifference, Verdict};

/// A unit is uneven from this excess on, if its peak is this share of its device; and badly so.
const UNEVEN: [(f64, f64); 2] = [(0.20, 0.30), (0.30, 0.50)];
/// Lines named with an uneven unit.
const MOST_NAMED: usize = 5;

/// All units of these traces; `None` where there is but one.
pub(crate) fn ranks(analyses: &[Analysis], leaks: &[Leak]) -> Option<Ranks> {
    let mut rows = Vec::new();
    for (trace, analysis) in analyses.iter().enumerate() {
        for (device, state) in analysis.visible_devices().filter(|(_, state)| state.has_torch()) {
            rows.push(RankRow {
                trace,
                device: u32::from(device),
                rank: analysis.meta.number("rank"),
                host: analysis.meta.text("host").map(str::to_owned),
                pid: analysis.meta.number("pid"),
                total_bytes: analysis.total_bytes(device),
                peak_live_bytes: state.torch.peak().live,
                peak_reserved_bytes: state.reserved_peak.reserved,
                end_live_bytes: state.torch.total().bytes,
                steps: analysis.step_source.name().map(|_| u64::from(analysis.steps)),
                first_growth_step: None,
                bytes_per_step: None,
                is_metal: analysis.vocabulary().is_metal,
            });
        }
    }
    for row in &mut rows {
        let its = leaks
            .iter()
            .filter(|leak| (leak.trace, leak.device, leak.kind) == (row.trace, row.device, "tensors"));
        let (mut rate, mut found) = (0.0, false);
        for leak in its {
            found = true;
            rate += leak.bytes_per_step.map_or(0.0, |rate| rate.0);
            let first = row.first_growth_step.into_iter().chain(leak.first_step).min();
            row.first_growth_step = first;
        }
        row.bytes_per_step = found.then_some(crate::report::Quantity(rate));
    }
    if !analyses.iter().all(Analysis::knows_reserved) {
        return None;
    }
    rows.sort_by_key(|row| (row.rank.unwrap_or(u64::MAX), row.trace, row.device));
    if rows.len() < 2 {
        return None;
    }
    let median = median(rows.iter().map(|row| row.peak_live_bytes).collect());
    let worst = (0..rows.len()).max_by_key(|at| (rows[*at].peak_live_bytes, std::cmp::Reverse(*at)))?;
    let excess = rows[worst].peak_live_bytes as f64 / median.max(1) as f64 - 1.0;
    let world = analyses.iter().filter_map(|analysis| analysis.meta.number("world_size")).max();
    let seen: std::collections::BTreeSet<u64> = rows.iter().filter_map(|row| row.rank).collect();
    let missing = world.map(|world| world.saturating_sub(seen.len() as u64));
    let same_rule = analyses.windows(2).all(|pair| pair[0].step_source.name() == pair[1].step_source.name());
    let is_aligned = same_rule && rows.iter().all(|row| row.steps.is_some());
    let first_cause = is_aligned.then(|| first_cause(&rows, leaks, missing)).flatten();
    let more_by_site =
        if excess >= UNEVEN[0].0 { differences(analyses, &rows, worst, median) } else { Vec::new() };
    Some(Ranks {
        aligned_by: is_aligned.then_some("step"),
        missing_ranks: missing,
        median_peak_live_bytes: median,
        worst: worst as u64,
        excess: crate::report::Quantity(excess),
        more_by_site,
        first_cause,
        rows,
    })
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let (lower, upper) = (values.get((values.len().max(1) - 1) / 2), values.get(values.len() / 2));
    lower.zip(upper).map_or(0, |(lower, upper)| lower.midpoint(*upper))
}

fn first_cause(rows: &[RankRow], leaks: &[Leak], missing: Option<u64>) -> Option<FirstCause> {
    let mut begun: Vec<(u64, usize)> =
        rows.iter().enumerate().filter_map(|(at, row)| Some((row.first_growth_step?, at))).collect();
    begun.sort_unstable();
    let (step, at) = *begun.first()?;
    let (row, next) = (&rows[at], begun.get(1).map(|(step, _)| *step));
    let is_first = |leak: &&Leak| {
        (leak.trace, leak.device, leak.kind, leak.first_step)
            == (row.trace, row.device, "tensors", Some(step))
    };
    let leak = leaks.iter().find(is_first)?;
    let lead = next.map(|next| next - step);
    Some(FirstCause {
        row: at as u64,
        step,
        lead_steps: lead,
        site: leak.site.clone(),
        bytes_per_step: leak.bytes_per_step,
        confidence: match (lead, missing) {
            (_, Some(1..)) => "low",
            (Some(0), _) => "medium",
            _ => "high",
        },
    })
}

/// Lines of which the worst unit held more at its peak than the unit whose peak is nearest to the median.
fn differences(analyses: &[Analysis], rows: &[RankRow], worst: usize, median: u64) -> Vec<SiteDifference> {
    let Some(usual) =
        (0..rows.len()).filter(|at| *at != worst).min_by_key(|at| rows[*at].peak_live_bytes.abs_diff(median))
    else {
        return Vec::new();
    };
    let held = |row: &RankRow| {
        let analysis = &analyses[row.trace];
        let mut by_place = std::collections::BTreeMap::new();
        for (_, state) in analysis.visible_devices().filter(|(device, _)| u32::from(*device) == row.device) {
            for (id, site) in state.torch.sites() {
                let bytes = state.torch.at_peak(site).bytes;
                if bytes > 0 {
                    let site = analysis.symbols.site(id, state.torch.main_stack_at_peak(id));
                    let sum = &mut by_place.entry(format_site(&site)).or_insert((site, 0u64)).1;
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        by_place
    };
    let usual = held(&rows[usual]);
    let mut more: Vec<SiteDifference> = held(&rows[worst])
        .into_iter()
        .filter_map(|(name, (site, bytes))| {
            let bytes = bytes.saturating_sub(usual.get(&name).map_or(0, |(_, bytes)| *bytes));
            (bytes > 0).then_some(SiteDifference { site, bytes })
        })
        .collect();
    more.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    more.truncate(MOST_NAMED);
    more
}

/// The verdict on units that are used unevenly.
pub(crate) fn imbalance_verdict(ranks: &Ranks) -> Option<Verdict> {
    let row = &ranks.rows[ranks.worst as usize];
    // Of what Metal recommends it is no share that tells how full the device was.
    let total = row.total_bytes.filter(|_| !row.is_metal)?;
    let share = row.peak_live_bytes as f64 / total.max(1) as f64;
    let is = |(excess, of_device): (f64, f64)| ranks.excess.0 >= excess && share >= of_device;
    if !is(UNEVEN[0]) {
        return None;
    }
    let whose = ranks.more_by_site.first().map_or_else(String::new, |first| {
        format!("; {} held {} more there", format_site(&first.site), format_bytes(first.bytes))
    });
    Some(Verdict {
        trace: row.trace,
        kind: "imbalance",
        severity: if is(UNEVEN[1]) { Severity::Critical } else { Severity::Warning },
        summary: format!(
            "{} needed {} at its peak, {:.0} % more than the median of {} ({}){whose}",
            format_rank(row, &ranks.rows),
            format_bytes(row.peak_live_bytes),
            100.0 * ranks.excess.0,
            ranks.rows.len(),
            format_bytes(ranks.median_peak_live_bytes)
        ),
        evidence: json!({
            "rank": row.rank, "device": row.device, "peak_live_bytes": row.peak_live_bytes,
            "median_peak_live_bytes": ranks.median_peak_live_bytes, "excess": ranks.excess.0, "share_of_device": share,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_two() {
        assert_eq!([vec![], vec![7], vec![1, 9], vec![9, 1, 5]].map(median), [0, 7, 5, 5]);
    }
}
