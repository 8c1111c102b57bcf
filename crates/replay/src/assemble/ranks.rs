//! Processes or devices side by side: how evenly they use memory, and where growth began first.
//!
//! The *excess* of a row is its peak of allocated bytes divided by the median of all rows, minus 1.
//! [`Spread`] says which rows differ from the others.
//! The *first cause* is the row with the earliest first leak; its *lead* is the
//! number of steps until another row's began.
//!
//! Ranks start at different times and on machines with different clocks, so rows are aligned by
//! step numbers. Collectives keep those equal in training. Rows are aligned only if all traces find
//! their steps by the same rule, and no rank has several traces: steps begin again after a restart.

use std::collections::BTreeSet;

use crate::pass::Analysis;
use crate::report::{
    Confidence, FirstCause, Leak, LeakKind, Quantity, RankAlignment, RankRow, Ranks, Severity, SiteBytes,
    Verdict, VerdictEvidence,
};
use crate::util::spread::Spread;

/// From this excess and share of the device on, a row that differs is worth a warning; the second
/// pair is critical.
const UNEVEN: [(f64, f64); 2] = [(0.20, 0.30), (0.30, 0.50)];
/// Most call sites named with an uneven row.
const MAX_SITES: usize = 5;

/// The rows of these traces; `None` if there is only one.
pub(crate) fn ranks(analyses: &[Analysis], leaks: &[Leak]) -> Option<Ranks> {
    let mut rows = rank_rows(analyses, leaks);
    if !analyses.iter().all(Analysis::knows_reserved) {
        return None;
    }
    rows.sort_by_key(|row| (row.rank.unwrap_or(u64::MAX), row.trace, row.device));
    if rows.len() < 2 {
        return None;
    }
    let spread = Spread::from_values(rows.iter().map(|row| row.peak_live_bytes).collect())?;
    let median = spread.median_bytes;
    let worst = (0..rows.len()).max_by_key(|at| (rows[*at].peak_live_bytes, std::cmp::Reverse(*at)))?;
    let excess = spread.excess(rows[worst].peak_live_bytes);
    // Of a median of 0, there is no share.
    let differs = median > 0 && spread.is_outlier(rows[worst].peak_live_bytes);
    let world = analyses.iter().filter_map(|analysis| analysis.meta.number("world_size")).max();
    let seen: BTreeSet<u64> = rows.iter().filter_map(|row| row.rank).collect();
    let missing = world.map(|world| world.saturating_sub(seen.len() as u64));
    let same_rule = analyses.windows(2).all(|pair| pair[0].step_rule.source() == pair[1].step_rule.source());
    let traces: BTreeSet<_> = rows.iter().filter_map(|row| Some((row.rank?, row.trace))).collect();
    let is_aligned = same_rule && traces.len() == seen.len() && rows.iter().all(|row| row.steps.is_some());
    let first_cause = is_aligned.then(|| first_cause(&rows, leaks, missing)).flatten();
    let more_by_site = if differs && excess >= UNEVEN[0].0 {
        differences(analyses, &rows, worst, median)
    } else {
        Vec::new()
    };
    Some(Ranks {
        aligned_by: is_aligned.then_some(RankAlignment::Step),
        missing_ranks: missing,
        median_peak_live_bytes: median,
        worst: worst as u64,
        excess: Quantity(excess),
        differs,
        more_by_site,
        first_cause,
        rows,
    })
}

/// A row for each device with PyTorch's memory, with the growth of its leaks.
fn rank_rows(analyses: &[Analysis], leaks: &[Leak]) -> Vec<RankRow> {
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
                end_live_bytes: state.torch.end_total().bytes,
                steps: analysis.step_rule.source().map(|_| u64::from(analysis.steps)),
                first_growth_step: None,
                bytes_per_step: None,
                is_metal: analysis.is_metal(),
            });
        }
    }
    for row in &mut rows {
        let of_row = leaks.iter().filter(|leak| {
            (leak.trace, leak.device, leak.kind) == (row.trace, row.device, LeakKind::Tensors)
        });
        let (mut rate, mut found) = (0.0, false);
        for leak in of_row {
            found = true;
            rate += leak.bytes_per_step.map_or(0.0, |rate| rate.0);
            let first = row.first_growth_step.into_iter().chain(leak.first_step).min();
            row.first_growth_step = first;
        }
        row.bytes_per_step = found.then_some(Quantity(rate));
    }
    rows
}

fn first_cause(rows: &[RankRow], leaks: &[Leak], missing: Option<u64>) -> Option<FirstCause> {
    let mut begun: Vec<(u64, usize)> =
        rows.iter().enumerate().filter_map(|(at, row)| Some((row.first_growth_step?, at))).collect();
    begun.sort_unstable();
    let (step, at) = *begun.first()?;
    let (row, next) = (&rows[at], begun.get(1).map(|(step, _)| *step));
    let is_first = |leak: &&Leak| {
        (leak.trace, leak.device, leak.kind, leak.first_step)
            == (row.trace, row.device, LeakKind::Tensors, Some(step))
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
            (_, Some(1..)) => Confidence::Low,
            (Some(0), _) => Confidence::Medium,
            _ => Confidence::High,
        },
    })
}

/// Call sites that held more on the worst row at its peak than on the row closest to the median.
fn differences(analyses: &[Analysis], rows: &[RankRow], worst: usize, median: u64) -> Vec<SiteBytes> {
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
                    let sum = &mut by_place.entry(site.place()).or_insert((site, 0u64)).1;
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        by_place
    };
    let usual = held(&rows[usual]);
    let mut more: Vec<SiteBytes> = held(&rows[worst])
        .into_iter()
        .filter_map(|(place, (site, bytes))| {
            let bytes = bytes.saturating_sub(usual.get(&place).map_or(0, |(_, bytes)| *bytes));
            (bytes > 0).then_some(SiteBytes { site, bytes })
        })
        .collect();
    more.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    more.truncate(MAX_SITES);
    more
}

/// The verdict on uneven memory between rows.
pub(crate) fn imbalance_verdict(ranks: &Ranks) -> Option<Verdict> {
    let row = &ranks.rows[ranks.worst as usize];
    // Metal recommends a size and does not enforce it, so a share of it says nothing about
    // headroom.
    let total = row.total_bytes.filter(|_| !row.is_metal)?;
    let share = row.peak_live_bytes as f64 / total.max(1) as f64;
    let is = |(excess, of_device): (f64, f64)| ranks.excess.0 >= excess && share >= of_device;
    if !ranks.differs || !is(UNEVEN[0]) {
        return None;
    }
    Some(Verdict {
        trace: row.trace,
        severity: if is(UNEVEN[1]) { Severity::Critical } else { Severity::Warning },
        summary: String::new(),
        evidence: VerdictEvidence::Imbalance {
            rank: row.rank,
            device: row.device,
            peak_live_bytes: row.peak_live_bytes,
            median_peak_live_bytes: ranks.median_peak_live_bytes,
            excess: ranks.excess.0,
            share_of_device: share,
        },
    })
}
