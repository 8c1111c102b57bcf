//! Growth of what PyTorch has reserved and no tensor uses.

use super::report::{LeakFacts, LeakReporter};
use crate::callsite::symbols::{StackId, StackSymbols};
use crate::leak::blame::SHARE;
use crate::leak::candidates::{MAX_FALSE_DISCOVERIES, MIN_IRREGULAR_STEPS};
use crate::leak::growth::{Growth, SurvivorEvidence, judge};
use crate::report::{Leak, LeakShape};
use crate::state::device::DeviceState;
use crate::state::unused_reserved::ReservedGroupKey;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

/// Least Kendall's tau where it is not regular: pieces that fit nobody add up for a while in healthy runs, too.
const MIN_TAU: f64 = 0.9;

/// A part of a device that keeps more and more.
struct GrowingReserve<'a> {
    group: Option<ReservedGroupKey>,
    series: &'a StepSeries,
    growth: Growth,
    stride: u32,
}

/// The finding, if there is one. `tensors`: bytes that tensors leak on this device.
pub(super) fn leak(reporter: &LeakReporter<'_>, device: &DeviceState, tensors: u64) -> Option<Leak> {
    // Between equal times that are no steps a moment may fall anywhere in what comes and goes.
    if !reporter.has_steps() {
        return None;
    }
    let unused = &device.unused;
    let steps = (reporter.live_set.first_step, reporter.live_set.steps_ended());
    let whole = kept(None, unused.unused(), steps).filter(|kept| kept.growth.rise > tensors)?;
    // Of one stream and pool, if that is nearly all of it.
    let groups = unused.groups().into_iter().filter_map(|(key, series)| kept(Some(key), series, steps));
    let most = groups.max_by_key(|kept| (kept.growth.rise, std::cmp::Reverse(kept.group)));
    let enough = whole.growth.rise as f64 * SHARE;
    let found = most.filter(|kept| kept.growth.rise as f64 >= enough).unwrap_or(whole);
    let after = (found.growth.first > 0).then_some(found.growth.base as u32 * found.stride);
    let owners = unused.owners(found.group, after);
    Some(found.leak(reporter, &owners))
}

fn kept(
    group: Option<ReservedGroupKey>,
    series: &StepSeries,
    (first, steps): (u32, u32),
) -> Option<GrowingReserve<'_>> {
    let (stride, before, values) = series.values_from(first, steps);
    let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
    let growth = judge(&bytes, SurvivorEvidence::KEPT).growth()?.after(before);
    // What is not regular must pass the test; groups are few, and the device is asked first.
    let is_many = growth.rising_steps >= MIN_IRREGULAR_STEPS && growth.tau >= MIN_TAU;
    let passes = growth.p <= MAX_FALSE_DISCOVERIES && is_many;
    (growth.period.is_some() || passes).then_some(GrowingReserve { group, series, growth, stride })
}

impl GrowingReserve<'_> {
    fn leak(&self, reporter: &LeakReporter<'_>, owners: &[(StackId, BlockTotals)]) -> Leak {
        let symbols = &reporter.analysis.symbols;
        let Self { group, series, growth, stride } = self;
        let main = owners.first().map(|(stack, _)| *stack);
        let site = main.map_or_else(StackSymbols::unknown_site, |stack| {
            symbols.site(symbols.stack_info(stack).site, Some(stack))
        });
        let per_step = |rate: f64| rate / f64::from(*stride);
        let [least, most] = growth.rate_interval().map(per_step);
        let rate = per_step(growth.per_value);
        let blocks = owners.iter().map(|(_, held)| held.blocks).sum();
        let mut leak = reporter.leak(LeakFacts {
            site,
            held: BlockTotals { bytes: growth.rise, blocks },
            growth,
            stride: *stride,
            first_step: growth.first as u64 * u64::from(*stride),
            blocks_per_step: 0.0,
            bytes_per_step: [rate, least.min(rate), most.max(rate)],
            q: growth.p,
            after_warm_up: (growth.base as u32 * stride, growth.rise),
            total: series,
        });
        leak.members = owners
            .iter()
            .skip(1)
            .take(8)
            .map(|(stack, _)| symbols.site(symbols.stack_info(*stack).site, None))
            .collect();
        if growth.accelerates {
            leak.shape = LeakShape::Accelerating;
        }
        leak.evidence.stream = Some(group.map(|(stream, _)| stream));
        leak.evidence.pool = Some(group.map(|(_, pool)| pool));
        leak
    }
}
