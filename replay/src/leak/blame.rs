//! Under which line a finding stands.
//!
//! The innermost user line of a block may be anybody's: a line of the model makes the activations of training, which are freed,
//! and the output that a hook keeps. So of the user lines that made [`SHARE`] of a finding's growth it stands under the one
//! through which the fewest healthy stacks lead, those that allocated at the same place and did not grow; of several the
//! deepest. That is the innermost line, the *leaf*, where all it makes stays, or where what it frees comes by the same lines;
//! else it is a line that calls it.

use crate::callsite::code_origin::is_module_code;
use crate::callsite::symbols::{SiteId, StackId, StackSymbols};
use crate::leak::candidates::Candidate;
use crate::state::live_set::LiveSet;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Share of the growth that a finding's line must hold.
pub(crate) const SHARE: f64 = 0.9;

/// A stack of a finding and its user lines.
pub(crate) struct BlamePath {
    pub(crate) member: SiteId,
    pub(crate) stack: StackId,
    pub(crate) grown: BlockTotals,
    /// User lines, outermost first, and whether the line calls a module of PyTorch there.
    pub(crate) lines: Vec<(SiteId, bool)>,
}

/// Where a finding stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlamedLine {
    pub(crate) line: SiteId,
    /// Of the stacks that grew the one that grew most.
    pub(crate) stack: Option<StackId>,
}

/// The user lines of a stack, outermost first.
fn lines(symbols: &StackSymbols, stack: StackId) -> Vec<(SiteId, bool)> {
    let mut lines: Vec<(SiteId, bool)> = Vec::new();
    let mut called_is_module = false;
    // Innermost first: what a frame calls is seen before it.
    for node in symbols.python_path(symbols.stack_info(stack).python) {
        if let Some(site) = symbols.own_user_site(node) {
            lines.push((site, called_is_module));
        }
        called_is_module = symbols.file_of(node).is_some_and(is_module_code);
    }
    lines.reverse();
    lines
}

/// The stacks of a finding that grew, with their user lines.
pub(crate) fn paths(live_set: &LiveSet, symbols: &StackSymbols, member: &Candidate) -> Vec<BlamePath> {
    let path = |(stack, grown): (StackId, BlockTotals)| BlamePath {
        member: member.site,
        stack,
        grown,
        lines: lines(symbols, stack),
    };
    live_set.stacks_that_grew(member.site, member.from(), member.to).map(path).collect()
}

/// Lines that most of the growth was allocated under, with the least depth at which they occur.
pub(crate) fn common_lines(paths: &[BlamePath]) -> impl Iterator<Item = (SiteId, usize)> {
    let total = saturating_sum(paths.iter().map(|path| path.grown.bytes));
    // line -> (bytes under it, least depth at which it occurs)
    let mut lines: SeededMap<SiteId, (u64, usize)> = SeededMap::default();
    for path in paths {
        let mut seen = SeededSet::default();
        for (depth, (site, _)) in path.lines.iter().enumerate().filter(|(_, (site, _))| seen.insert(*site)) {
            let line = lines.entry(*site).or_insert((0, depth));
            line.0 = line.0.saturating_add(path.grown.bytes);
            line.1 = line.1.min(depth);
        }
    }
    let enough = lines.into_iter().filter(move |(_, (bytes, _))| *bytes as f64 >= SHARE * total as f64);
    enough.map(|(site, (_, depth))| (site, depth))
}

/// The deepest of the lines that made most of the growth of some findings, of those through which the fewest healthy stacks lead.
pub(crate) fn own_line<'a>(
    (live_set, symbols): (&LiveSet, &StackSymbols),
    members: impl Iterator<Item = &'a Candidate>,
    paths: &[BlamePath],
) -> Option<SiteId> {
    let grown: SeededSet<StackId> = paths.iter().map(|path| path.stack).collect();
    let mut healthy: SeededMap<SiteId, u32> = SeededMap::default();
    let others = members.flat_map(|one| live_set.stacks_of(one.site)).filter(|stack| !grown.contains(stack));
    for stack in others {
        let through: SeededSet<SiteId> = lines(symbols, stack).into_iter().map(|(site, _)| site).collect();
        for site in through {
            *healthy.entry(site).or_default() += 1;
        }
    }
    let count = |site: &SiteId| healthy.get(site).copied().unwrap_or(0);
    let best =
        common_lines(paths).min_by_key(|(site, depth)| (count(site), std::cmp::Reverse(*depth), *site));
    best.map(|(site, _)| site)
}

/// The line of a finding.
pub(crate) fn blame(live_set: &LiveSet, symbols: &StackSymbols, finding: &Candidate) -> BlamedLine {
    let stack = live_set.main_stack_of_growth(finding.site, finding.from(), finding.to);
    let paths = paths(live_set, symbols, finding);
    let line = own_line((live_set, symbols), std::iter::once(finding), &paths);
    BlamedLine { line: line.unwrap_or(finding.site), stack }
}
