//! What each block of a peak is for.
//!
//! Definition: [`rules`] judges a block by where it was born and how it went, `sizes` compares the blocks with each other. Here
//! the facts are put together that one block does not show: when a backward pass ran, and what is about to begin. The peak of
//! a program without PyTorch consists of what it asked of the driver: there the library that asked tells, and nothing else.
//!
//! Constraint: the pass over the events has no time for this. Consequence: it is done for the blocks of one moment, afterwards,
//! and what a stack tells is found once for each.

pub(crate) mod context;
pub(crate) mod rules;
pub(crate) mod sizes;

use crate::callsite::symbols::SiteId;
use crate::pass::Analysis;
use crate::report::Ending;
use crate::state::device::DeviceState;
use crate::state::live_set::LiveSet;
use crate::state::live_set::peak_blocks::PeakBlock;
use crate::state::live_set::site_stats::SiteStats;
use crate::timeline::steps::StepRule;
use crate::util::seeded_map::SeededMap;
use context::{CallContext, CallContexts};
use rules::{
    BlockEvidence, BlockFate, BlockLifetime, Category, CategoryRule, CategoryVerdict, Confidence,
    WorkspaceSize, judge, unknown,
};

/// Libraries whose driver memory is what they compute or talk in, by how their file names begin.
const LIBRARIES: &[&str] =
    &["libcublas", "libcudnn", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnccl"];

/// What PyTorch takes for a cuBLAS handle: two times 4 MiB and eight times 16 KiB; 32 MiB from Hopper on; and for cublasLt.
fn workspace_size(bytes: u64) -> Option<WorkspaceSize> {
    match bytes {
        8_519_680 => Some(WorkspaceSize::Odd),
        0x10_0000 | 0x200_0000 => Some(WorkspaceSize::Round),
        _ => None,
    }
}

/// A block of a moment, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CategorizedBlock {
    /// The block.
    pub block: PeakBlock,
    /// Whose.
    pub site: SiteId,
    /// In which pass it came.
    pub born: CallContext,
    /// What for.
    pub verdict: CategoryVerdict,
}

/// Judges the blocks of a moment of a device, which come in the order in which they were born.
pub(crate) fn categorize_blocks(
    analysis: &Analysis,
    ordinal: u8,
    state: &DeviceState,
    blocks: &[PeakBlock],
) -> Vec<CategorizedBlock> {
    let mut verdicts = if state.has_torch() {
        let facts = CategoryInputs::new(analysis, ordinal, state.main());
        facts.verdicts(blocks)
    } else {
        blocks.iter().map(|block| (size_of(block), of_library(analysis, block))).collect()
    };
    sizes::compare(&mut verdicts);
    let site = |block: &PeakBlock| analysis.symbols.stack_info(block.block.stack).site;
    let mut places = CallContexts::new(&analysis.symbols);
    let judged = blocks.iter().zip(verdicts);
    judged
        .map(|(block, (_, verdict))| CategorizedBlock {
            block: *block,
            site: site(block),
            born: places.of(block.block.stack),
            verdict,
        })
        .collect()
}

/// What tells blocks of a tensor's size apart: what was asked for, where that is known.
fn size_of(one: &PeakBlock) -> u64 {
    one.block.requested_bytes.unwrap_or(one.block.bytes)
}

/// What a program without PyTorch asked of the driver.
fn of_library(analysis: &Analysis, block: &PeakBlock) -> CategoryVerdict {
    let native = analysis.symbols.stack_info(block.block.stack).native;
    let owner = analysis.owners.name(analysis.owners.known(native));
    if LIBRARIES.iter().any(|library| owner.starts_with(library)) {
        let (category, confidence) = (Category::Workspaces, Some(Confidence::High));
        return CategoryVerdict { category, confidence, rule: CategoryRule::AskedByLibrary };
    }
    unknown(CategoryRule::NoPytorch)
}

/// What is known of the run.
struct CategoryInputs<'a> {
    analysis: &'a Analysis,
    live_set: &'a LiveSet,
    /// Steps begin where the program says so or where its optimizer runs.
    has_steps: bool,
    /// The run did not end by itself.
    is_broken_off: bool,
    /// Steps in which memory ran out.
    ooms: Vec<u32>,
}

impl<'a> CategoryInputs<'a> {
    fn new(analysis: &'a Analysis, ordinal: u8, live_set: &'a LiveSet) -> Self {
        let ooms = analysis.ooms.iter().filter(|oom| oom.event.device == ordinal).map(|oom| oom.step);
        Self {
            analysis,
            live_set,
            has_steps: matches!(
                analysis.step_rule,
                StepRule::Marks | StepRule::Range(_) | StepRule::Optimizer(_)
            ),
            is_broken_off: analysis.ending != Ending::Exit,
            ooms: ooms.collect(),
        }
    }

    fn verdicts(&self, blocks: &[PeakBlock]) -> Vec<(u64, CategoryVerdict)> {
        let mut places = CallContexts::new(&self.analysis.symbols);
        let born: Vec<CallContext> = blocks.iter().map(|one| places.of(one.block.stack)).collect();
        let mut gone = |one: &PeakBlock| match one.death {
            None => BlockFate::Never,
            Some(death) => death.stack.map_or(BlockFate::Lost, |stack| BlockFate::In(places.of(stack))),
        };
        let gone: Vec<BlockFate> = blocks.iter().map(&mut gone).collect();
        // The first block that a backward pass gave back after the moment, and the last one that one made before it.
        let in_backward =
            blocks.iter().zip(&gone).filter(|(_, gone)| **gone == BlockFate::In(CallContext::Backward));
        let first_death = in_backward.map(|(one, _)| one.went).min().unwrap_or(u64::MAX);
        let last_birth = born.iter().rposition(|born| *born == CallContext::Backward);
        let before_forward = before_forward(blocks, &born);
        let evidence = |at: usize| {
            let one = &blocks[at];
            let (is_cut, lifetime) = (self.is_cut(one), self.lifetime(one));
            // An optimizer's step comes after a backward pass.
            let saw_step =
                lifetime == BlockLifetime::Next && matches!(self.analysis.step_rule, StepRule::Optimizer(_));
            BlockEvidence {
                born: born[at],
                gone: gone[at],
                lifetime,
                saw_backward: saw_step || last_birth.is_some_and(|last| last > at) || one.went > first_death,
                is_before_forward: before_forward[at],
                is_cut,
                line_dies_backward: is_cut
                    && self.dies_backward(self.analysis.symbols.stack_info(one.block.stack).site),
                workspace: workspace_size(one.block.bytes),
            }
        };
        let mut all: Vec<BlockEvidence> = (0..blocks.len()).map(evidence).collect();
        doubt_round_sizes(blocks, &mut all);
        blocks.iter().zip(all).map(|(one, evidence)| (size_of(one), judge(evidence))).collect()
    }

    fn lifetime(&self, one: &PeakBlock) -> BlockLifetime {
        let end = one.death.map_or(self.analysis.steps, |death| death.step);
        match end.saturating_sub(one.block.step) {
            _ if self.analysis.step_rule.source().is_none() => {
                if one.death.is_none() {
                    BlockLifetime::Lasting
                } else {
                    BlockLifetime::Untold
                }
            }
            2.. => BlockLifetime::Lasting,
            _ if !self.has_steps => BlockLifetime::Untold,
            0 => BlockLifetime::Step,
            1 => BlockLifetime::Next,
        }
    }

    fn is_cut(&self, one: &PeakBlock) -> bool {
        let is_last = self.is_broken_off && one.block.step == self.analysis.steps;
        is_last || self.ooms.contains(&one.block.step)
    }

    fn dies_backward(&self, site: SiteId) -> bool {
        let freed_at = self.live_set.site(site).and_then(SiteStats::main_free_site);
        let symbols = &self.analysis.symbols;
        let calls = &self.analysis.backward_calls;
        freed_at.is_some_and(|freed_at| {
            symbols.is_backward_site(freed_at)
                || calls.iter().any(|call| symbols.user_site(*call) == Some(freed_at))
        })
    }
}

/// A library has one workspace for each thread: of several blocks that came in forward passes and stayed, none is one for its round
/// size alone.
fn doubt_round_sizes(blocks: &[PeakBlock], all: &mut [BlockEvidence]) {
    let is_it = |one: &BlockEvidence| {
        one.born == CallContext::Forward && one.workspace == Some(WorkspaceSize::Round) && one.stays()
    };
    let mut of_size: SeededMap<u64, u64> = SeededMap::default();
    for (one, _) in blocks.iter().zip(&*all).filter(|(_, evidence)| is_it(evidence)) {
        *of_size.entry(one.block.bytes).or_default() += 1;
    }
    for (one, evidence) in blocks.iter().zip(all).filter(|(_, evidence)| is_it(evidence)) {
        if of_size.get(&one.block.bytes).is_some_and(|count| *count > 1) {
            evidence.workspace = None;
        }
    }
}

/// Of each block: whether the program made it when the next that anybody made was a forward pass's, of the same step, and the
/// forward pass had not begun.
fn before_forward(blocks: &[PeakBlock], born: &[CallContext]) -> Vec<bool> {
    let mut result = vec![false; blocks.len()];
    let (mut waiting, mut last) = (Vec::new(), None);
    for (at, (one, place)) in blocks.iter().zip(born).enumerate() {
        let step = one.block.step;
        match place {
            CallContext::Program => waiting.push(at),
            CallContext::Unknown | CallContext::Data | CallContext::ZeroGrad | CallContext::Seed => {}
            place => {
                for before in waiting.drain(..) {
                    let is_inside = last == Some((CallContext::Forward, blocks[before].block.step));
                    result[before] =
                        *place == CallContext::Forward && blocks[before].block.step == step && !is_inside;
                }
                last = Some((*place, step));
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
    fn of_several_that_stay_none_is_a_workspace_for_its_round_size() {
        let evidence = |gone, workspace| BlockEvidence {
            born: CallContext::Forward,
            gone,
            lifetime: BlockLifetime::Step,
            saw_backward: false,
            is_before_forward: false,
            is_cut: false,
            line_dies_backward: false,
            workspace,
        };
        let block = |bytes| PeakBlock {
            addr: 0,
            block: LiveBlock { bytes, ..LiveBlock::default() },
            death: None,
            went: 0,
        };
        let workspaces = |sizes: &[(u64, BlockFate)]| {
            let blocks: Vec<PeakBlock> = sizes.iter().map(|(bytes, _)| block(*bytes)).collect();
            let mut all: Vec<BlockEvidence> =
                sizes.iter().map(|(bytes, gone)| evidence(*gone, workspace_size(*bytes))).collect();
            doubt_round_sizes(&blocks, &mut all);
            all.iter().map(|evidence| evidence.workspace.is_some()).collect::<Vec<_>>()
        };
        let backward = BlockFate::In(CallContext::Backward);
        assert_eq!(workspaces(&[(LARGE, BlockFate::Never), (1 << 20, BlockFate::Never)]), [true, true]);
        assert_eq!(workspaces(&[(LARGE, BlockFate::Never), (LARGE, BlockFate::Never)]), [false, false]);
        // One that goes is none anyway, and says nothing about the other.
        assert_eq!(workspaces(&[(LARGE, BlockFate::Never), (LARGE, backward)]), [true, true]);
        assert_eq!(workspaces(&[(8_519_680, BlockFate::Never), (8_519_680, BlockFate::Never)]), [true, true]);
    }
}
