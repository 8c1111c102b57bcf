//! Live bytes by category at the highest moment of each bin of the timeline.
//!
//! The rules are those of the peak ([`super::rules`]). They judge classes of blocks
//! ([`crate::state::live_set::history::life_class`]) instead of single blocks. What comparing the
//! blocks of the peak refined ([`super::sizes`]) applies to all blocks of equal size in the class.
//! At the peak itself, each block has its own verdict. `crates/replay/tests/history/` compares the
//! result with a recount of a training in which each block has one known category.

use std::collections::BTreeMap;

use super::rules::{
    BlockEvidence, BlockOutcome, CUT, Category, CategoryVerdict, KEPT, WORKSPACE, judge_block,
};
use super::{CategorizedBlock, EvidenceCollector, categorize_blocks, tensor_size};
use crate::callsite::call_context::CallContext;
use crate::device::DeviceState;
use crate::pass::Analysis;
use crate::state::live_set::history::life_class::{LifeClass, MAX_AGE_STEPS};
use crate::state::workspace_size::WorkspaceSize;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Blocks that comparing sizes treats alike: context, outcome, age in steps, requested bytes.
type SizedClass = (CallContext, BlockOutcome, u32, u64);

/// Live bytes by category at the highest moment of each bin; they sum up to its live bytes. Empty
/// without PyTorch, and without a history.
pub(crate) fn categories_over_time(
    analysis: &Analysis,
    ordinal: u8,
    state: &DeviceState,
) -> BTreeMap<Category, Vec<u64>> {
    let live_set = state.main();
    let Some(history) = live_set.history().filter(|_| state.has_torch()) else { return BTreeMap::new() };
    let collector = EvidenceCollector::new(analysis, ordinal, live_set);
    let peak_blocks = live_set.peak_blocks();
    let blocks = categorize_blocks(analysis, ordinal, state, &peak_blocks);
    let at_peak = categories_by_size(analysis, &blocks);
    let highs = history.composition.highs();
    let repeated = repeated_workspace_sizes(history.classes.all());
    let mut all: BTreeMap<Category, Vec<u64>> = BTreeMap::new();
    for (class, values) in history.class_values() {
        let sums = all.entry(collector.category_of_class(class, &at_peak, &repeated)).or_default();
        sums.resize(values.len(), 0);
        for (sum, bytes) in sums.iter_mut().zip(values) {
            *sum = sum.saturating_add(bytes);
        }
    }
    let peak = live_set.peak();
    if let Some(bin) = highs.iter().position(|high| (high.time_ns, high.live) == (peak.time_ns, peak.live)) {
        // Each block of the peak was judged on its own.
        for sums in all.values_mut() {
            sums[bin] = 0;
        }
        for one in &blocks {
            let sums = all.entry(one.verdict.category).or_insert_with(|| vec![0; highs.len()]);
            sums[bin] = sums[bin].saturating_add(one.block.block.bytes);
        }
    }
    all
}

/// The category of most bytes at the peak, of blocks of one size and class.
fn categories_by_size(
    analysis: &Analysis,
    blocks: &[CategorizedBlock<'_>],
) -> SeededMap<SizedClass, Category> {
    let mut sums: SeededMap<SizedClass, BTreeMap<Category, u64>> = SeededMap::default();
    for one in blocks {
        let by_category = sums.entry(sized_class(analysis, one)).or_default();
        let sum = by_category.entry(one.verdict.category).or_default();
        *sum = sum.saturating_add(one.block.block.bytes);
    }
    let largest = |sums: BTreeMap<Category, u64>| sums.into_iter().max_by_key(|(_, bytes)| *bytes);
    sums.into_iter().filter_map(|(class, sums)| Some((class, largest(sums)?.0))).collect()
}

fn sized_class(analysis: &Analysis, one: &CategorizedBlock<'_>) -> SizedClass {
    let (block, free) = (&one.block.block, one.block.free);
    let context = |stack| analysis.symbols.stack_info(stack).context;
    let outcome = match free {
        None => BlockOutcome::Live,
        Some(free) => free.stack.map_or(BlockOutcome::Unknown, |stack| BlockOutcome::FreedIn(context(stack))),
    };
    let end = free.map_or(analysis.steps, |free| free.step);
    let age_steps = end.saturating_sub(block.step).min(MAX_AGE_STEPS);
    (one.allocated_in, outcome, age_steps, tensor_size(one.block))
}

/// True for blocks that are a workspace only if there is one of their size: see
/// [`super::clear_repeated_workspace_sizes`].
fn may_be_repeated(class: &LifeClass) -> bool {
    let is_freed = matches!(class.outcome, BlockOutcome::FreedIn(_));
    class.allocated_in == CallContext::Forward
        && class.workspace == Some(WorkspaceSize::PowerOfTwo)
        && (class.age_steps == MAX_AGE_STEPS || !is_freed)
}

fn repeated_workspace_sizes<'a>(classes: impl Iterator<Item = (&'a LifeClass, u64)>) -> SeededSet<u64> {
    let mut counts: SeededMap<u64, u64> = SeededMap::default();
    for (class, count) in classes.filter(|(class, _)| may_be_repeated(class)) {
        *counts.entry(class.bytes).or_default() += count;
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(bytes, _)| bytes).collect()
}

impl EvidenceCollector<'_> {
    fn category_of_class(
        &self,
        class: &LifeClass,
        at_peak: &SeededMap<SizedClass, Category>,
        repeated: &SeededSet<u64>,
    ) -> Category {
        let LifeClass { allocated_in, outcome, age_steps, bytes, .. } = *class;
        let is_live = outcome == BlockOutcome::Live;
        let lifetime = self.lifetime_of_age(age_steps, is_live);
        let is_cut_short = class.is_of_failed_step || self.ended_abnormally && is_live && age_steps == 0;
        let evidence = BlockEvidence {
            allocated_in,
            outcome,
            lifetime,
            saw_backward: class.saw_backward || self.saw_step(lifetime),
            is_before_forward: class.is_before_forward,
            is_cut_short,
            line_is_freed_in_backward: false,
            workspace: class.workspace.filter(|_| !repeated.contains(&bytes) || !may_be_repeated(class)),
        };
        let CategoryVerdict { category, rule, .. } = judge_block(evidence);
        let is_refined = matches!(rule, KEPT | WORKSPACE | CUT);
        let refined = at_peak.get(&(allocated_in, outcome, age_steps, bytes)).filter(|_| is_refined);
        refined.copied().unwrap_or(category)
    }
}
