//! Lists the blocks of each leak and possible leak, for the search of Python references that hold
//! them.
//!
//! A block belongs to a leak if a stack of the finding allocated it after the finding's base step,
//! in a step that has ended, and it is still live. Older blocks are healthy. Blocks of the
//! current step may still be in use. Without steps, all live blocks of the stack belong to it.
//! Only findings in tensors have blocks. The Python suite's `test_holders.py` compares the result
//! with known lists.

use std::collections::BTreeMap;

use super::LeakFindings;
use crate::pass::Analysis;
use crate::report::{BlocksOfLeak, BlocksOfStack, LeakKind};
use crate::state::live_set::LiveSet;
use crate::util::ids::StackId;

/// Limit of listed blocks per stack. Of more blocks, an even sample from oldest to newest is
/// listed.
const MAX_BLOCKS: usize = 4096;
/// Blocks listed per leak, of all its stacks together, if each gets at least [`MIN_BLOCKS`].
const MAX_BLOCKS_OF_LEAK: usize = 50_000;
const MIN_BLOCKS: usize = 4;

/// Lists the blocks of all leaks and possible leaks in tensors, as of the end of the trace. Repeats
/// the leak analysis.
pub fn blocks_of_leaks(analysis: &Analysis) -> Vec<BlocksOfLeak> {
    let LeakFindings { leaks, growth, .. } = super::find_leaks(0, analysis);
    let possible = growth.iter().filter_map(|growth| growth.finding.as_deref());
    let has_steps = analysis.step_rule.source().is_some();
    let mut listed = Vec::new();
    for leak in leaks.iter().chain(possible).filter(|leak| leak.kind == LeakKind::Tensors) {
        let Some((_, device)) =
            analysis.devices.iter().find(|(ordinal, _)| u32::from(*ordinal) == leak.device)
        else {
            continue;
        };
        listed.push(BlocksOfLeak {
            device: leak.device,
            file: leak.site.file.clone(),
            line: leak.site.line,
            function: leak.site.function.clone(),
            stacks: list_blocks(device.main(), &leak.stacks, has_steps),
        });
    }
    listed
}

/// A leaked block. Orders by age, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LeakedBlock {
    /// Number of the event that allocated it.
    serial: u64,
    addr: u64,
    bytes: u64,
}

/// `stacks`: each stack of a finding with its base step; `None` if it grew from the first step on.
fn list_blocks(live_set: &LiveSet, stacks: &[(StackId, Option<u32>)], has_steps: bool) -> Vec<BlocksOfStack> {
    let base_steps: BTreeMap<StackId, Option<u32>> = stacks.iter().copied().collect();
    let mut by_stack: BTreeMap<StackId, Vec<LeakedBlock>> = BTreeMap::new();
    for (addr, block) in live_set.blocks(has_steps) {
        let is_leaked = |base: &Option<u32>| !has_steps || base.is_none_or(|base| block.step > base);
        if base_steps.get(&block.stack).is_some_and(is_leaked) {
            let leaked = LeakedBlock { serial: block.serial, addr, bytes: block.bytes };
            by_stack.entry(block.stack).or_default().push(leaked);
        }
    }
    let limit = (MAX_BLOCKS_OF_LEAK / by_stack.len().max(1)).clamp(MIN_BLOCKS, MAX_BLOCKS);
    let list = |mut blocks: Vec<LeakedBlock>| {
        blocks.sort_unstable();
        let count = blocks.len().min(limit);
        let picked = (0..count).map(|at| blocks[at * blocks.len() / count]);
        BlocksOfStack {
            blocks: blocks.len() as u64,
            bytes: blocks.iter().fold(0, |sum, block| sum.saturating_add(block.bytes)),
            listed: picked.map(|block| (block.addr, block.bytes)).collect(),
        }
    };
    by_stack.into_values().map(list).collect()
}
