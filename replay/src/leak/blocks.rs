//! Which blocks are those of a leak: for whom asks who holds them.
//!
//! Definition: of the lines of a finding in tensors, the blocks that are live and came after the step at whose end the growth had not
//! begun, in a step that has ended; where no steps are told, all that are live. What came before is as healthy as the line was then;
//! what the step that goes on has allocated is in use, and no leak's yet.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::callsite::symbols::SiteId;
use crate::pass::Analysis;
use crate::report::LeakKind;
use crate::state::live_set::LiveSet;
use crate::timeline::steps::StepRule;

/// Most blocks of one site that are listed; of more, so many, evenly from oldest to youngest.
const MAX_BLOCKS: usize = 4096;
/// About as many of all sites of a leak together, and so many of each at least.
const MAX_BLOCKS_OF_LEAK: usize = 50_000;
const MIN_BLOCKS: usize = 4;

/// The blocks of a leak.
#[derive(Clone, Debug, Serialize)]
pub struct BlocksOfLeak {
    /// On what.
    pub device: u32,
    /// The line.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// The line.
    pub function: Option<String>,
    /// By where they were allocated.
    pub sites: Vec<BlocksOfSite>,
}

/// The blocks that one line allocated.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BlocksOfSite {
    /// All of them.
    pub blocks: u64,
    /// All of them.
    pub bytes: u64,
    /// Address and bytes of those that are listed, oldest first.
    pub listed: Vec<(u64, u64)>,
}

/// The blocks of all leaks in tensors, as of the end of the trace.
pub fn blocks_of_leaks(analysis: &Analysis) -> Vec<BlocksOfLeak> {
    let (leaks, _) = super::leaks(0, analysis);
    let has_steps = !matches!(analysis.step_rule, StepRule::Time { .. });
    let mut found = Vec::new();
    for leak in leaks.iter().filter(|leak| leak.kind == LeakKind::Tensors) {
        let Some((_, device)) =
            analysis.devices.iter().find(|(ordinal, _)| u32::from(*ordinal) == leak.device)
        else {
            continue;
        };
        found.push(BlocksOfLeak {
            device: leak.device,
            file: leak.site.file.clone(),
            line: leak.site.line,
            function: leak.site.function.clone(),
            sites: of_sites(device.main(), &leak.sites, has_steps),
        });
    }
    found
}

/// In which order it came, its address and its bytes.
type BlockByAge = (u64, u64, u64);

fn of_sites(live_set: &LiveSet, sites: &[(SiteId, Option<u32>)], has_steps: bool) -> Vec<BlocksOfSite> {
    let from: BTreeMap<SiteId, Option<u32>> = sites.iter().copied().collect();
    let mut by_site: BTreeMap<SiteId, Vec<BlockByAge>> = BTreeMap::new();
    for (addr, block, site) in live_set.blocks(has_steps) {
        let counts = |from: &Option<u32>| !has_steps || from.is_none_or(|from| block.step > from);
        if from.get(&site).is_some_and(counts) {
            by_site.entry(site).or_default().push((block.born, addr, block.bytes));
        }
    }
    let most = (MAX_BLOCKS_OF_LEAK / by_site.len().max(1)).clamp(MIN_BLOCKS, MAX_BLOCKS);
    let of = |mut blocks: Vec<BlockByAge>| {
        blocks.sort_unstable();
        let kept = blocks.len().min(most);
        let listed =
            (0..kept).map(|at| blocks[at * blocks.len() / kept]).map(|(_, addr, bytes)| (addr, bytes));
        BlocksOfSite {
            blocks: blocks.len() as u64,
            bytes: blocks.iter().fold(0, |all, (_, _, bytes)| all.saturating_add(*bytes)),
            listed: listed.collect(),
        }
    };
    by_site.into_values().map(of).collect()
}
