//! Which memory would be released if the blocks of some stacks were freed.
//!
//! A segment, or a page of an expandable one, is released if no block is in it. [`units_by_stacks`]
//! sums these units by the stacks whose blocks are in them.

use std::collections::BTreeMap;

use super::free_runs::find_runs;
use super::{AllocatorSnapshot, TorchRanges};
use crate::state::pool_key::PoolKey;
use crate::util::ids::StackId;

/// Bytes of segments and pages by the stacks of the blocks in them, which ascend. Units with a
/// pending free are left out, since another stream still uses them, and so are those of private
/// pools. `None` if the segments are unknown.
pub(crate) fn units_by_stacks(
    snapshot: &AllocatorSnapshot<'_>,
    torch_ranges: &TorchRanges,
) -> Option<BTreeMap<Vec<StackId>, u64>> {
    let runs = find_runs(snapshot, torch_ranges)?;
    let live = snapshot.blocks.iter().map(|(addr, block)| (*addr, block, false));
    let pending = snapshot.pending.iter().map(|(addr, block)| (*addr, block, true));
    let mut blocks: Vec<_> = live.chain(pending).collect();
    blocks.sort_unstable_by_key(|(addr, ..)| *addr);
    let mut units: BTreeMap<Vec<StackId>, u64> = BTreeMap::new();
    let mut next = 0;
    // The segments of a private pool stay as long as the pool.
    for run in &runs {
        let is_kept = run.pool.is_some_and(PoolKey::is_private);
        let mut begin = run.begin;
        for end in run.pages.iter().map(|page| &page.end) {
            let first = next;
            while blocks.get(next).is_some_and(|(addr, ..)| addr < end) {
                next += 1;
            }
            let inside = &blocks[first..next];
            if !is_kept && inside.iter().all(|(.., is_pending)| !is_pending) {
                let mut stacks: Vec<StackId> = inside.iter().map(|(_, block, _)| block.stack).collect();
                stacks.sort_unstable();
                stacks.dedup();
                let bytes = units.entry(stacks).or_default();
                *bytes = bytes.saturating_add(end.saturating_sub(begin));
            }
            // A block that extends beyond the page is in the next one too.
            if inside.last().is_some_and(|(addr, block, _)| addr.saturating_add(block.bytes) > *end) {
                next -= 1;
            }
            begin = *end;
        }
    }
    Some(units)
}
