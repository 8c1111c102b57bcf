//! The live blocks at an out-of-memory error, by stack and by the time of their allocation.
//!
//! Growth is defined by survivors: blocks that are live at the error and were allocated after the
//! *base*. It can thus never exceed what a stack holds. The base is
//! 1. with `--since`, that moment;
//! 2. with steps, the last step end with the least allocated bytes;
//! 3. else the end of the set-up: the *knee* of the survivors' bytes over the events, where the
//!    curve is farthest above its chord. A knee needs [`MIN_KNEE`] and the first [`MAX_SETUP`] of
//!    the events;
//! 4. else the beginning.
//!
//! A stack that held bytes at the base and freed some of them since has replaced blocks; only the
//! difference is growth. If it freed more than 1/[`REPLACED_DIVISOR`] of its bytes, growth is at
//! most what it grew by since its lowest bytes in the second half of the time: a temporary of a
//! leaking line is less. A stack grows towards the error only if it grew in that half: optimizer
//! state, say, is allocated after the base and stays. One error costs O(n log n) in live blocks.

use crate::state::live_set::LiveSet;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::StackId;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Least distance of a knee above the chord, as a share of all survivors' bytes.
const MIN_KNEE: f64 = 0.1;
/// Share of the events in which the set-up must end.
const MAX_SETUP: f64 = 0.25;
/// A stack replaces its blocks if it freed more than 1/20 of their bytes since the base
/// (`oom::growth_never_exceeds_what_the_line_holds`).
const REPLACED_DIVISOR: u64 = 20;
/// Step ends at which a stack's bytes are looked up.
const MAX_LOOKUPS: u32 = 64;

/// The moment from which growth counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrowthBase {
    /// After this event of the live set: `--since`, the end of the set-up, or 0.
    Event(u64),
    /// The end of this step.
    StepEnd(u32),
}

/// What the blocks of one stack held at an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackAtOom {
    pub stack: StackId,
    /// All its live blocks.
    pub held: BlockTotals,
    /// The blocks among them that were allocated after the base, without replaced bytes.
    pub grown: BlockTotals,
    /// Bytes of older blocks that were freed since the base; `None` if unknown.
    pub replaced_bytes: Option<u64>,
    /// The step of its first block after the base.
    pub first_step: u32,
    /// Number of different steps in which its blocks after the base were allocated.
    pub steps: u32,
    /// All its blocks after the base are from the unfinished step, and it freed those of earlier
    /// steps.
    pub is_of_each_step: bool,
    /// It grew in the second half of the time since the base.
    pub is_recent: bool,
}

/// The blocks of one stack after the base.
#[derive(Default)]
struct OomSurvivors {
    held: BlockTotals,
    after: BlockTotals,
    steps: SeededSet<u32>,
    newest: u64,
}

/// Measures the growth of a live set up to the present. Without `has_steps`, steps are intervals of
/// time and not used. Sorted by stack id.
pub(super) fn measure_growth(live_set: &LiveSet, has_steps: bool) -> Vec<StackAtOom> {
    let base = find_base(live_set, has_steps);
    let mut by_stack: SeededMap<StackId, OomSurvivors> = SeededMap::default();
    for (_, block) in live_set.live().iter() {
        let survivors = by_stack.entry(block.stack).or_default();
        survivors.held.add(block.bytes);
        survivors.newest = survivors.newest.max(block.serial);
        let is_after = match base {
            GrowthBase::Event(serial) => block.serial > serial,
            GrowthBase::StepEnd(step) => block.step > step,
        };
        if is_after {
            survivors.after.add(block.bytes);
            survivors.steps.insert(block.step);
        }
    }
    let mut stacks: Vec<StackAtOom> =
        by_stack.iter().map(|(stack, blocks)| at_oom(live_set, (base, has_steps), *stack, blocks)).collect();
    stacks.sort_unstable_by_key(|one| one.stack);
    stacks
}

fn at_oom(
    live_set: &LiveSet,
    (base, has_steps): (GrowthBase, bool),
    stack: StackId,
    blocks: &OomSurvivors,
) -> StackAtOom {
    let OomSurvivors { held, after, steps, newest } = blocks;
    let now = live_set.steps_ended();
    let stats = live_set.stack(stack);
    let base_bytes = match base {
        GrowthBase::StepEnd(step) => Some(stats.bytes_at(step)),
        GrowthBase::Event(_) => live_set.rebased().map(|state| {
            let known = state.stacks.binary_search_by_key(&stack, |(known, ..)| *known);
            known.map_or(0, |index| state.stacks[index].2)
        }),
    };
    let older = held.bytes.saturating_sub(after.bytes);
    let replaced_bytes = base_bytes.map(|bytes| bytes.saturating_sub(older));
    let mut grown = after.bytes.saturating_sub(replaced_bytes.unwrap_or(0));
    let is_recent = match base {
        GrowthBase::StepEnd(step) => {
            let middle = step + now.saturating_sub(step) / 2;
            let ends = (middle..now).step_by((now - middle).div_ceil(MAX_LOOKUPS).max(1) as usize);
            let lowest = ends.map(|end| stats.bytes_at(end)).min().unwrap_or(0);
            let recently = held.bytes.saturating_sub(lowest);
            if replaced_bytes.is_some_and(|bytes| bytes > after.bytes / REPLACED_DIVISOR) {
                grown = grown.min(recently);
            }
            recently > 0
        }
        GrowthBase::Event(serial) => newest.saturating_mul(2) >= serial.saturating_add(live_set.events),
    };
    StackAtOom {
        stack,
        held: *held,
        grown: BlockTotals { bytes: grown, blocks: part_of_blocks(*after, grown) },
        replaced_bytes,
        first_step: steps.iter().copied().min().unwrap_or(now),
        steps: if has_steps { steps.len() as u32 } else { u32::from(!steps.is_empty()) },
        is_of_each_step: has_steps && steps.iter().all(|step| *step == now) && stats.earlier_steps > 0,
        is_recent,
    }
}

/// The number of blocks that `bytes` of all blocks are, at their mean size; at least 1.
fn part_of_blocks(all: BlockTotals, bytes: u64) -> u64 {
    let share = bytes as f64 / all.bytes.max(1) as f64;
    if bytes == 0 { 0 } else { ((all.blocks as f64 * share).round() as u64).max(1) }
}

fn find_base(live_set: &LiveSet, has_steps: bool) -> GrowthBase {
    if let Some(state) = live_set.rebased() {
        return GrowthBase::Event(state.serial);
    }
    let ended = live_set.steps_ended();
    let lowest = has_steps.then(|| lowest_step_end(live_set, ended)).flatten();
    lowest.map_or_else(|| GrowthBase::Event(find_knee(live_set)), GrowthBase::StepEnd)
}

/// The last step end with the least allocated bytes. `None` before the first.
fn lowest_step_end(live_set: &LiveSet, ended: u32) -> Option<u32> {
    let (stride, values) = live_set.series().values(ended);
    let ends = values.iter().zip((0..ended).step_by(stride as usize));
    ends.min_by_key(|(total, step)| (total.bytes, std::cmp::Reverse(*step))).map(|(_, step)| step)
}

/// The event at which the set-up ends; 0 if there is no knee.
fn find_knee(live_set: &LiveSet) -> u64 {
    let mut blocks: Vec<(u64, u64)> =
        live_set.live().iter().map(|(_, block)| (block.serial, block.bytes)).collect();
    blocks.sort_unstable();
    let total = saturating_sum(blocks.iter().map(|(_, bytes)| *bytes)).max(1) as f64;
    let events = live_set.events.max(1) as f64;
    let mut sum = 0u64;
    let mut knee = (MIN_KNEE, 0);
    for (serial, bytes) in blocks {
        sum = sum.saturating_add(bytes);
        let elapsed = serial as f64 / events;
        let above = sum as f64 / total - elapsed;
        if elapsed <= MAX_SETUP && above >= knee.0 {
            knee = (above, serial);
        }
    }
    knee.1
}
