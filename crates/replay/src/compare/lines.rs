//! Compares each line on each device.
//!
//! [`compare_lines`] visits every line of both runs once. A line is listed if any of its
//! quantities differs. `tests/compare.rs` finds a single changed line among a million events.

use std::collections::BTreeSet;

use super::align::LinePair;
use super::difference::{ChangeStatus, LineChange};
use super::profile::{LineOnDevice, Profile};
use super::totals::AmountChange;
use super::{ComparedRange, all_lines};
use crate::report::{Quantity, Site};
use crate::util::block_totals::BlockTotals;

/// The lines that differ, largest change first.
pub(super) fn compare_lines(
    before: &Profile<'_>,
    after: &Profile<'_>,
    steps: Option<ComparedRange>,
    aligned: &[LinePair],
) -> Vec<LineChange> {
    let none = LineOnDevice::default();
    let mut changes = Vec::new();
    for line in all_lines(before, after, aligned) {
        let old = line.before.map(|line| &before.lines[line]);
        let new = line.after.map(|line| &after.lines[line]);
        let ordinals: BTreeSet<u8> =
            [old, new].into_iter().flatten().flat_map(|line| line.devices.keys().copied()).collect();
        for ordinal in ordinals {
            let on = |line: Option<&'_ super::LineProfile>| {
                line.and_then(|line| line.devices.get(&ordinal).cloned())
            };
            let (old_on, new_on) = (on(old), on(new));
            let site = |profile: &Profile<'_>,
                        line: Option<&super::LineProfile>,
                        on: &Option<LineOnDevice>| {
                let (line, on) = (line?, on.as_ref()?);
                let stack = on.stack.map_or_else(Vec::new, |stack| profile.analysis.symbols.frames(stack));
                Some(Site { stack, ..line.site.clone() })
            };
            let values = (old_on.as_ref().unwrap_or(&none), new_on.as_ref().unwrap_or(&none));
            let is_in = [old_on.is_some(), new_on.is_some()];
            if let Some(mut change) = compare_line(u32::from(ordinal), values, is_in, steps) {
                change.before = site(before, old, &old_on);
                change.after = site(after, new, &new_on);
                changes.push(change);
            }
        }
    }
    changes.sort_by_cached_key(|change| (std::cmp::Reverse(change.weight()), change.place()));
    changes
}

/// The change of a line on a device, without its sites. `is_in`: whether each run has the line.
/// `None` if nothing differs.
fn compare_line(
    device: u32,
    (old, new): (&LineOnDevice, &LineOnDevice),
    is_in: [bool; 2],
    steps: Option<ComparedRange>,
) -> Option<LineChange> {
    let (old_end, new_end) = steps.map_or((old.end, new.end), |steps| steps.retained(&old.held, &new.held));
    let in_steps = steps.map(|steps| steps.pairs(&old.allocated, &new.allocated));
    let steps_that_differ =
        in_steps.as_ref().map(|pairs| pairs.iter().filter(|(one, other)| one != other).count());
    let (old_step, new_step) = match steps {
        Some(steps) => steps.medians(&old.allocated, &new.allocated),
        None => (BlockTotals::default(), BlockTotals::default()),
    };
    let is_same = old.at_peak == new.at_peak
        && old_end == new_end
        && steps_that_differ.unwrap_or(0) == 0
        && (steps.is_some() || old.blocks == new.blocks);
    if is_same {
        return None;
    }
    let growth = |on: &LineOnDevice| steps.and_then(|steps| steps.growth(&on.held)).map(Quantity);
    let in_step = |of: fn(BlockTotals) -> u64| steps.map(|_| AmountChange::new(of(old_step), of(new_step)));
    let mut change = LineChange {
        device,
        status: ChangeStatus::Changed,
        before: None,
        after: None,
        at_peak_bytes: AmountChange::new(old.at_peak.bytes, new.at_peak.bytes),
        at_peak_blocks: AmountChange::new(old.at_peak.blocks, new.at_peak.blocks),
        retained_bytes: AmountChange::new(old_end.bytes, new_end.bytes),
        retained_blocks: AmountChange::new(old_end.blocks, new_end.blocks),
        growth_bytes_per_step: growth(old).zip(growth(new)).map(|(old, new)| [old, new]),
        bytes_per_step: in_step(|held| held.bytes),
        allocations_per_step: in_step(|held| held.blocks),
        allocations: steps.is_none().then(|| AmountChange::new(old.blocks, new.blocks)),
        steps_that_differ: steps_that_differ.map(|steps| steps as u64),
    };
    change.status = match is_in {
        [false, _] => ChangeStatus::Appeared,
        [_, false] => ChangeStatus::Disappeared,
        _ => change.direction(),
    };
    Some(change)
}
