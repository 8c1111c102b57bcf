//! Decides the category of every block that was live at one moment.
//!
//! [`categorize_blocks`] collects evidence that a single block does not show: when a backward
//! pass ran, and which pass came next. Then [`rules`] judges each block, and [`sizes`] refines
//! the verdicts by comparing the blocks. Without PyTorch, blocks are driver memory, and only the
//! requesting library decides.
//!
//! It runs after the pass over the events and is linear in the blocks. [`over_time`] applies the
//! same rules to the whole run. `tests/peaks.rs` checks the categories of a synthetic training.

pub(crate) mod over_time;
pub(crate) mod rules;
pub(crate) mod sizes;

use crate::callsite::call_context::CallContext;
use crate::device::DeviceState;
use crate::pass::Analysis;
use crate::report::Ending;
use crate::state::live_set::LiveSet;
use crate::state::live_set::peak_blocks::PeakBlock;
use crate::state::live_set::site_stats::SiteStats;
use crate::state::workspace_size::workspace_size;
use crate::timeline::steps::StepRule;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::SeededMap;
use rules::{
    BlockEvidence, BlockLifetime, BlockOutcome, Category, CategoryRule, CategoryVerdict, Confidence,
    WorkspaceSize, judge_block, unknown,
};

/// File name prefixes of libraries that request driver memory as workspaces.
const WORKSPACE_LIBRARIES: &[&str] =
    &["libcublas", "libcudnn", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnccl"];

/// A block with its category.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CategorizedBlock<'a> {
    pub block: &'a PeakBlock,
    pub site: SiteId,
    /// Context of the allocation.
    pub allocated_in: CallContext,
    pub verdict: CategoryVerdict,
}

/// Decides the categories of a device's blocks at one moment. `blocks` must be in the order of
/// allocation; the result has the same order.
pub(crate) fn categorize_blocks<'a>(
    analysis: &Analysis,
    ordinal: u8,
    state: &DeviceState,
    blocks: &'a [PeakBlock],
) -> Vec<CategorizedBlock<'a>> {
    let mut verdicts = if state.has_torch() {
        EvidenceCollector::new(analysis, ordinal, state.main()).judge_blocks(blocks)
    } else {
        blocks.iter().map(|block| (tensor_size(block), judge_by_library(analysis, block))).collect()
    };
    sizes::refine_by_size(&mut verdicts);
    blocks
        .iter()
        .zip(verdicts)
        .map(|(block, (_, verdict))| CategorizedBlock {
            block,
            site: analysis.symbols.stack_info(block.block.stack).site,
            allocated_in: analysis.symbols.stack_info(block.block.stack).context,
            verdict,
        })
        .collect()
}

/// The requested size where it is known, else the block's. Tensors of equal shape have equal
/// requested sizes.
fn tensor_size(one: &PeakBlock) -> u64 {
    one.block.requested_bytes.unwrap_or(one.block.bytes)
}

/// Judges driver memory of a program without PyTorch by the library that requested it.
fn judge_by_library(analysis: &Analysis, block: &PeakBlock) -> CategoryVerdict {
    let native = analysis.symbols.stack_info(block.block.stack).native;
    let owner = analysis.owners.name(analysis.owners.known(native));
    if WORKSPACE_LIBRARIES.iter().any(|library| owner.starts_with(library)) {
        let (category, confidence) = (Category::Workspaces, Some(Confidence::High));
        return CategoryVerdict { category, confidence, rule: CategoryRule::AllocatedByLibrary };
    }
    unknown(CategoryRule::NoPytorch)
}

/// Collects evidence about blocks from the analysis of the run.
struct EvidenceCollector<'a> {
    analysis: &'a Analysis,
    live_set: &'a LiveSet,
    /// Exact step boundaries are known: from marks, ranges or the optimizer.
    has_exact_steps: bool,
    /// The process did not exit normally.
    ended_abnormally: bool,
    /// Steps with an out-of-memory error on this device.
    oom_steps: Vec<u32>,
}

impl<'a> EvidenceCollector<'a> {
    fn new(analysis: &'a Analysis, ordinal: u8, live_set: &'a LiveSet) -> Self {
        let oom_steps = analysis.ooms.iter().filter(|oom| oom.event.device == ordinal).map(|oom| oom.step);
        Self {
            analysis,
            live_set,
            has_exact_steps: matches!(
                analysis.step_rule,
                StepRule::Marks | StepRule::Range(_) | StepRule::Optimizer { .. }
            ),
            ended_abnormally: analysis.ending != Ending::Exit,
            oom_steps: oom_steps.collect(),
        }
    }

    /// Judges each block by the rules. Returns tensor sizes and verdicts.
    fn judge_blocks(&self, blocks: &[PeakBlock]) -> Vec<(u64, CategoryVerdict)> {
        let context_of = |stack: StackId| self.analysis.symbols.stack_info(stack).context;
        let allocated_in: Vec<CallContext> = blocks.iter().map(|one| context_of(one.block.stack)).collect();
        let outcome = |one: &PeakBlock| match one.free {
            None => BlockOutcome::Live,
            Some(free) => {
                free.stack.map_or(BlockOutcome::Unknown, |stack| BlockOutcome::FreedIn(context_of(stack)))
            }
        };
        let outcomes: Vec<BlockOutcome> = blocks.iter().map(outcome).collect();
        // A backward pass ran no later than the first free in one after this moment, and no
        // earlier than the last allocation in one before it.
        let freed_in_backward = blocks
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| **outcome == BlockOutcome::FreedIn(CallContext::Backward));
        let first_free = freed_in_backward.map(|(one, _)| one.frees_before).min().unwrap_or(u64::MAX);
        let last_allocation = allocated_in.iter().rposition(|context| *context == CallContext::Backward);
        let is_before_forward = find_before_forward(blocks, &allocated_in);
        let evidence = |at: usize| {
            let one = &blocks[at];
            let (is_cut_short, lifetime) = (self.is_cut_short(one), self.lifetime(one));
            BlockEvidence {
                allocated_in: allocated_in[at],
                outcome: outcomes[at],
                lifetime,
                saw_backward: self.saw_step(lifetime)
                    || last_allocation.is_some_and(|last| last > at)
                    || one.frees_before > first_free,
                is_before_forward: is_before_forward[at],
                is_cut_short,
                line_is_freed_in_backward: is_cut_short
                    && self.is_freed_in_backward(self.analysis.symbols.stack_info(one.block.stack).site),
                workspace: workspace_size(one.block.bytes),
            }
        };
        let mut all: Vec<BlockEvidence> = (0..blocks.len()).map(evidence).collect();
        clear_repeated_workspace_sizes(blocks, &mut all);
        blocks.iter().zip(all).map(|(one, evidence)| (tensor_size(one), judge_block(evidence))).collect()
    }

    fn lifetime(&self, one: &PeakBlock) -> BlockLifetime {
        let end = one.free.map_or(self.analysis.steps, |free| free.step);
        self.lifetime_of_age(end.saturating_sub(one.block.step), one.free.is_none())
    }

    /// True if the steps show that a block was live in a backward pass: the optimizer marks steps,
    /// and its call follows a backward pass.
    fn saw_step(&self, lifetime: BlockLifetime) -> bool {
        let is_by_optimizer = matches!(self.analysis.step_rule, StepRule::Optimizer { .. });
        lifetime == BlockLifetime::NextStep && is_by_optimizer
    }

    fn lifetime_of_age(&self, age_steps: u32, is_live: bool) -> BlockLifetime {
        match age_steps {
            _ if self.analysis.step_rule.source().is_none() => {
                if is_live {
                    BlockLifetime::Lasting
                } else {
                    BlockLifetime::Unknown
                }
            }
            2.. => BlockLifetime::Lasting,
            _ if !self.has_exact_steps => BlockLifetime::Unknown,
            0 => BlockLifetime::WithinStep,
            1 => BlockLifetime::NextStep,
        }
    }

    fn is_cut_short(&self, one: &PeakBlock) -> bool {
        let is_last = self.ended_abnormally && one.block.step == self.analysis.steps;
        is_last || self.oom_steps.contains(&one.block.step)
    }

    /// True if the backward pass frees most blocks of this line.
    fn is_freed_in_backward(&self, site: SiteId) -> bool {
        let freed_at = self.live_set.site(site).and_then(SiteStats::main_free_site);
        let symbols = &self.analysis.symbols;
        let calls = &self.analysis.backward_calls;
        freed_at.is_some_and(|freed_at| {
            symbols.is_backward_site(freed_at)
                || calls.iter().any(|call| symbols.user_site(*call) == Some(freed_at))
        })
    }
}

/// Drops the evidence of a workspace from several lasting blocks of the same power of two that
/// forward passes allocated: a library has one workspace per thread.
fn clear_repeated_workspace_sizes(blocks: &[PeakBlock], all: &mut [BlockEvidence]) {
    let may_be_workspace = |one: &BlockEvidence| {
        one.allocated_in == CallContext::Forward
            && one.workspace == Some(WorkspaceSize::PowerOfTwo)
            && one.stays()
    };
    let mut count_by_size: SeededMap<u64, u64> = SeededMap::default();
    for (one, _) in blocks.iter().zip(&*all).filter(|(_, evidence)| may_be_workspace(evidence)) {
        *count_by_size.entry(one.block.bytes).or_default() += 1;
    }
    for (one, evidence) in blocks.iter().zip(all).filter(|(_, evidence)| may_be_workspace(evidence)) {
        if count_by_size.get(&one.block.bytes).is_some_and(|count| *count > 1) {
            evidence.workspace = None;
        }
    }
}

/// Returns for each block whether plain program code allocated it just before a forward pass: the
/// next allocation in any pass is a forward pass's, in the same step, and that forward pass had
/// not begun.
fn find_before_forward(blocks: &[PeakBlock], allocated_in: &[CallContext]) -> Vec<bool> {
    let mut result = vec![false; blocks.len()];
    // Blocks of the program since the last pass, and context and step of that pass.
    let (mut undecided, mut last) = (Vec::new(), None);
    for (at, (one, context)) in blocks.iter().zip(allocated_in).enumerate() {
        let step = one.block.step;
        match context {
            CallContext::Program => undecided.push(at),
            CallContext::Unknown | CallContext::Data | CallContext::ZeroGrad | CallContext::Seed => {}
            context => {
                for before in undecided.drain(..) {
                    let has_begun = last == Some((CallContext::Forward, blocks[before].block.step));
                    result[before] =
                        *context == CallContext::Forward && blocks[before].block.step == step && !has_begun;
                }
                last = Some((*context, step));
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::live_set::LiveBlock;

    const LARGE: u64 = 32 << 20;

    #[test]
    fn repeated_power_of_two_sizes_are_not_workspaces() {
        let evidence = |outcome, workspace| BlockEvidence {
            allocated_in: CallContext::Forward,
            outcome,
            lifetime: BlockLifetime::WithinStep,
            saw_backward: false,
            is_before_forward: false,
            is_cut_short: false,
            line_is_freed_in_backward: false,
            workspace,
        };
        let block = |bytes| PeakBlock {
            addr: 0,
            block: LiveBlock { bytes, ..LiveBlock::default() },
            free: None,
            frees_before: 0,
        };
        let workspaces = |sizes: &[(u64, BlockOutcome)]| {
            let blocks: Vec<PeakBlock> = sizes.iter().map(|(bytes, _)| block(*bytes)).collect();
            let mut all: Vec<BlockEvidence> =
                sizes.iter().map(|(bytes, outcome)| evidence(*outcome, workspace_size(*bytes))).collect();
            clear_repeated_workspace_sizes(&blocks, &mut all);
            all.iter().map(|evidence| evidence.workspace.is_some()).collect::<Vec<_>>()
        };
        let backward = BlockOutcome::FreedIn(CallContext::Backward);
        assert_eq!(workspaces(&[(LARGE, BlockOutcome::Live), (1 << 20, BlockOutcome::Live)]), [true, true]);
        assert_eq!(workspaces(&[(LARGE, BlockOutcome::Live), (LARGE, BlockOutcome::Live)]), [false, false]);
        // A block that is freed is not a workspace, and does not count against the other.
        assert_eq!(workspaces(&[(LARGE, BlockOutcome::Live), (LARGE, backward)]), [true, true]);
        assert_eq!(
            workspaces(&[(8_519_680, BlockOutcome::Live), (8_519_680, BlockOutcome::Live)]),
            [true, true]
        );
    }
}
