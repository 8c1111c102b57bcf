//! Growth of all call sites together that no single one explains.
//!
//! A leak may be spread over many call sites, each with too little of it to be judged, or take a
//! form that no rule knows. So the *rest*, all live bytes without those of the call sites that are
//! listed as leaks, growth or harmless, is judged like one call site. If it grows, the report says
//! so, at the deepest line below which most of it was allocated.
//!
//! The cost is O(listed sites x step ends). `tests/leaks/doubts.rs` has cases.

use crate::callsite::module_calls::{FewerCalls, Rounds};
use crate::leak::blame::deepest_common_line;
use crate::leak::growth::judge_series;
use crate::leak::report::LeakReporter;
use crate::report::{GrowingSite, GrowthClass, Quantity};
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Smallest growth that is reported, in bytes and as a share of the live bytes at the last step
/// end.
const MIN_BYTES: u64 = 1 << 20;
const MIN_SHARE: f64 = 0.01;

/// The growth of the live bytes without those of `listed` call sites; `None` if they do not grow.
pub(super) fn find_remainder(reporter: &LeakReporter<'_>, listed: &SeededSet<SiteId>) -> Option<GrowingSite> {
    let live_set = reporter.live_set;
    let (stride, before, values) = live_set.series().values_from(live_set.first_step, live_set.steps_ended());
    let of_listed: Vec<_> = live_set.sites().filter(|(site, _)| listed.contains(site)).collect();
    let step_of = |index: usize| (before + index) as u32 * stride;
    let rest = |(index, total): (usize, &BlockTotals)| {
        let step = step_of(index);
        let explained = saturating_sum(of_listed.iter().map(|(_, site)| site.series().at(step).bytes));
        total.bytes.saturating_sub(explained)
    };
    let rest: Vec<u64> = values.iter().enumerate().map(rest).collect();
    let growth = judge_series(&rest).growth()?;
    let held = values.last().map_or(0, |last| last.bytes);
    let is_large = growth.rise >= MIN_BYTES && growth.rise as f64 >= MIN_SHARE * held as f64;
    if !is_large || !growth.is_certain_of_live_bytes(rest.len()) {
        return None;
    }
    // The last interval of a run without steps may be in the middle of a pass.
    let end = live_set.end_total().bytes;
    let is_undone = |base: u64| end > 0 && end.saturating_sub(base) < growth.rise / 2;
    if !reporter.has_steps() && is_undone(values[growth.base].bytes) {
        return None;
    }
    let grown = grown_stacks(reporter, listed, step_of(growth.base));
    let symbols = &reporter.analysis.symbols;
    // The layers of one call of a model look like steps, and so do the lines in them together.
    let share_of_run = (rest.len() - growth.base) as f64 / rest.len() as f64;
    let rounds = Rounds { count: growth.rising_steps as u64, share_of_run };
    let is_of_one_call = |stack: StackId| symbols.has_fewer_calls(stack, rounds) == FewerCalls::Yes;
    let of_one_call = grown.iter().filter(|(stack, _)| is_of_one_call(*stack)).map(|(_, held)| held.bytes);
    if !reporter.has_steps() && saturating_sum(of_one_call) > growth.rise / 2 {
        return None;
    }
    let largest = grown.iter().max_by_key(|(stack, totals)| (totals.bytes, std::cmp::Reverse(*stack)));
    let site = deepest_common_line(symbols, &grown).or_else(|| Some(live_set.site_of(largest?.0)))?;
    Some(GrowingSite {
        site: symbols.site(site, largest.map(|(stack, _)| *stack)),
        device: u32::from(reporter.ordinal),
        memory: reporter.kind,
        bytes: growth.rise,
        blocks: saturating_sum(grown.iter().map(|(_, totals)| totals.blocks)),
        class: GrowthClass::Unknown,
        grows_by: None,
        events: Some(growth.rising_steps as u64),
        needs: None,
        bytes_per_step: reporter.has_steps().then_some(Quantity(growth.per_value / f64::from(stride))),
        holders: None,
        finding: None,
    })
}

/// The stacks of other call sites with blocks that were allocated after step `base` and stayed.
fn grown_stacks(
    reporter: &LeakReporter<'_>,
    listed: &SeededSet<SiteId>,
    base: u32,
) -> Vec<(StackId, BlockTotals)> {
    let mut totals: SeededMap<StackId, BlockTotals> = SeededMap::default();
    let ends_in_teardown = reporter.analysis.ends_in_teardown();
    for (block, _) in reporter.live_set.survivors(ends_in_teardown).filter(|(block, _)| block.step > base) {
        if !listed.contains(&reporter.live_set.site_of(block.stack)) {
            totals.entry(block.stack).or_default().add(block.bytes);
        }
    }
    let mut grown: Vec<_> = totals.into_iter().collect();
    grown.sort_unstable_by_key(|(stack, totals)| (std::cmp::Reverse(totals.bytes), *stack));
    grown
}
