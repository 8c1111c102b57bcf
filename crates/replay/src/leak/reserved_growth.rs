//! Finds growth of memory that PyTorch has reserved and no tensor uses.
//!
//! The series is judged by the rules of [`crate::leak::growth`], for the device as a whole and
//! for each stream and pool. Irregular growth needs more here than elsewhere: [`MIN_TAU`] and
//! [`MIN_IRREGULAR_STEPS`] growth steps. The finding is reported under the deepest user line below
//! which most of the new segments were requested ([`deepest_common_line`]), and names the lines
//! that requested them. `tests/leaks/accuracy.rs` checks that healthy runs with fragmentation have
//! no such finding.

use super::report::{LeakFacts, LeakReporter};
use crate::callsite::symbols::StackSymbols;
use crate::device::DeviceState;
use crate::leak::blame::{SHARE, deepest_common_line};
use crate::leak::candidate::GrowthAfterWarmUp;
use crate::leak::growth::{Growth, MAX_CHANCE, MIN_IRREGULAR_STEPS, accelerates, judge_series};
use crate::leak::rate::GrowthRate;
use crate::report::{Leak, LeakShape};
use crate::state::unused_reserved::ReservedGroupKey;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::SeededSet;

/// Kendall's tau that irregular growth needs. Free pieces that fit no request accumulate for a
/// while in healthy runs as well.
const MIN_TAU: f64 = 0.9;

/// Growth steps of equal amounts that a leak of reserved memory needs.
const MIN_REGULAR_STEPS: usize = 6;
/// Most lines named that requested segments.
const MAX_MEMBERS: usize = 8;

/// Unused reserved memory that grows.
struct GrowingReserve<'a> {
    /// Stream and pool. `None` for the whole device.
    group: Option<ReservedGroupKey>,
    series: &'a StepSeries,
    growth: Growth,
    stride: u32,
    accelerates: bool,
}

/// Finds growth of a device's unused reserved memory. Reports nothing if it is at most
/// `leaked_tensor_bytes`: segments of a leak are never completely full. Reports nothing without
/// steps, since intervals without steps may end anywhere in an allocation pattern.
pub(super) fn find_reserved_leak(
    reporter: &LeakReporter<'_>,
    device: &DeviceState,
    leaked_tensor_bytes: u64,
) -> Option<Leak> {
    if !reporter.has_steps() {
        return None;
    }
    let unused = &device.unused;
    let steps = (reporter.live_set.first_step, reporter.live_set.steps_ended());
    let of_device = judge_reserve(None, unused.unused(), steps)
        .filter(|reserve| reserve.growth.rise > leaked_tensor_bytes)?;
    let groups =
        unused.groups().into_iter().filter_map(|(key, series)| judge_reserve(Some(key), series, steps));
    let largest = groups.max_by_key(|reserve| (reserve.growth.rise, std::cmp::Reverse(reserve.group)));
    let enough = of_device.growth.rise as f64 * SHARE;
    let found = largest.filter(|reserve| reserve.growth.rise as f64 >= enough).unwrap_or(of_device);
    let after = (found.growth.first > 0).then_some(found.growth.base as u32 * found.stride);
    let owners = unused.owners(found.group, after);
    Some(found.report(reporter, &owners))
}

/// Judges one series. Groups are few, and the device is judged first, so the p-value needs no
/// correction for multiple tests.
fn judge_reserve(
    group: Option<ReservedGroupKey>,
    series: &StepSeries,
    (first, steps): (u32, u32),
) -> Option<GrowingReserve<'_>> {
    let (stride, before, values) = series.values_from(first, steps);
    let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
    let growth = judge_series(&bytes).growth()?;
    let accelerates = accelerates(&bytes[growth.base..]);
    let growth = growth.shifted_by(before);
    let is_trend = growth.rising_steps >= MIN_IRREGULAR_STEPS && growth.tau >= MIN_TAU;
    let is_significant = growth.p <= MAX_CHANCE && is_trend;
    (growth.period.is_some() || is_significant).then_some(GrowingReserve {
        group,
        series,
        growth,
        stride,
        accelerates,
    })
}

impl GrowingReserve<'_> {
    /// `owners`: stacks that requested the segments, most bytes first.
    fn report(&self, reporter: &LeakReporter<'_>, owners: &[(StackId, BlockTotals)]) -> Leak {
        let symbols = &reporter.analysis.symbols;
        let Self { group, series, growth, stride, .. } = self;
        let main = owners.first().map(|(stack, _)| *stack);
        let line = deepest_common_line(symbols, owners);
        let site = main.map_or_else(StackSymbols::unknown_site, |stack| {
            symbols.site(line.unwrap_or(symbols.stack_info(stack).site), Some(stack))
        });
        let mut seen = SeededSet::default();
        let lines: Vec<SiteId> = owners
            .iter()
            .map(|(stack, _)| symbols.stack_info(*stack).site)
            .filter(|line| seen.insert(*line))
            .collect();
        let blocks = owners.iter().map(|(_, held)| held.blocks).sum();
        let mut leak = reporter.leak(LeakFacts {
            site,
            held: BlockTotals { bytes: growth.rise, blocks },
            growth,
            stride: *stride,
            first_step: growth.first as u64 * u64::from(*stride),
            last_step: reporter.live_set.steps_ended().saturating_sub(1),
            blocks_per_step: 0.0,
            bytes_per_step: GrowthRate::with_interval(growth.per_value, growth.rate_interval())
                .divided_by(f64::from(*stride)),
            after_warm_up: GrowthAfterWarmUp { step: growth.base as u32 * stride, bytes: growth.rise },
            total: series,
        });
        // A leak of one line has no members.
        if lines.iter().any(|other| Some(*other) != line) {
            leak.members = lines.iter().take(MAX_MEMBERS).map(|line| symbols.site(*line, None)).collect();
        }
        if self.accelerates {
            leak.shape = LeakShape::Accelerating;
        }
        leak.is_regular = growth.is_exact && growth.rising_steps >= MIN_REGULAR_STEPS;
        leak.evidence.stream = Some(group.map(|(stream, _)| stream));
        leak.evidence.pool = Some(group.map(|(_, pool)| pool));
        leak
    }
}
