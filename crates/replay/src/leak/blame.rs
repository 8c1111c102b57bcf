//! Chooses the line that a finding is reported under.
//!
//! The innermost user line of a leaked block (the *leaf*) is often innocent. One line of a model
//! makes the activations of training, which are freed, and the output that a hook keeps. A stack
//! is *healthy* if it allocated at the same site as the finding and did not grow. Among the user
//! lines below which [`SHARE`] of the growth was allocated, the one on the fewest healthy stacks
//! is blamed, and of several the deepest. If all blocks of the leaf stay, that is the leaf; else
//! it is usually one of its callers.
//!
//! If the growth comes from several lines of one function that the blamed line calls, and one of
//! them has more than half of it, that line is blamed: the line that calls `main()` says nothing.
//! A call of a module is never followed, because a graph is retained where the model is called.
//!
//! The cost is O(stacks x depth) per finding. `tests/leaks/accuracy.rs` plants leaks in a
//! function that healthy callers share.

use std::collections::BTreeMap;

use crate::callsite::code_origin::is_module_code;
use crate::callsite::symbols::StackSymbols;
use crate::leak::candidate::Candidate;
use crate::state::live_set::LiveSet;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::{SeededMap, SeededSet};

/// Share of a finding's growth that must have been allocated below the blamed line. At 1.0,
/// `leaks/cases.rs::lasting_blocks_of_a_line_do_not_hide_its_graph` fails.
pub(crate) const SHARE: f64 = 0.9;

/// A stack that grew, with its user lines.
pub(crate) struct GrownStack {
    /// The site of the candidate that the stack belongs to.
    pub(crate) member: SiteId,
    pub(crate) stack: StackId,
    pub(crate) growth: BlockTotals,
    /// User lines, outermost first.
    pub(crate) lines: Vec<UserLine>,
}

/// A line of user code on a stack.
pub(crate) struct UserLine {
    pub(crate) site: SiteId,
    /// The next frame is in one of PyTorch's modules.
    pub(crate) calls_module: bool,
}

/// The line that a finding is reported under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlamedLine {
    pub(crate) line: SiteId,
    /// The line below which most of the growth was allocated: `line`, or a caller of its function.
    pub(crate) common: SiteId,
    /// The stack that grew most.
    pub(crate) stack: Option<StackId>,
}

/// The user lines of a stack, outermost first.
pub(crate) fn user_lines(symbols: &StackSymbols, stack: StackId) -> Vec<UserLine> {
    let mut lines: Vec<UserLine> = Vec::new();
    let mut calls_module = false;
    // The innermost frame is the first, so the callee of each frame comes before it.
    for node in symbols.python_frames(symbols.stack_info(stack).python) {
        if let Some(site) = symbols.own_user_site(node) {
            lines.push(UserLine { site, calls_module });
        }
        calls_module = symbols.file_of(node).is_some_and(is_module_code);
    }
    lines.reverse();
    lines
}

/// The stacks of a candidate that grew.
pub(crate) fn grown_stacks(symbols: &StackSymbols, candidate: &Candidate) -> Vec<GrownStack> {
    let with_lines = |&(stack, growth): &(StackId, BlockTotals)| GrownStack {
        member: candidate.site,
        stack,
        growth,
        lines: user_lines(symbols, stack),
    };
    candidate.grown.iter().map(with_lines).collect()
}

/// A line below which most of the growth was allocated.
struct CommonLine {
    site: SiteId,
    /// Smallest depth at which it occurs; 0 is outermost.
    depth: usize,
}

fn common_lines(stacks: &[GrownStack]) -> impl Iterator<Item = CommonLine> {
    let total = saturating_sum(stacks.iter().map(|stack| stack.growth.bytes));
    // Bytes allocated below a line, and the line.
    let mut lines: SeededMap<SiteId, (u64, CommonLine)> = SeededMap::default();
    for stack in stacks {
        let mut counted = SeededSet::default();
        for (depth, UserLine { site, .. }) in stack.lines.iter().enumerate() {
            if !counted.insert(*site) {
                continue;
            }
            let (bytes, line) = lines.entry(*site).or_insert((0, CommonLine { site: *site, depth }));
            *bytes = bytes.saturating_add(stack.growth.bytes);
            line.depth = line.depth.min(depth);
        }
    }
    let has_most = move |bytes: u64| bytes as f64 >= SHARE * total as f64;
    lines.into_values().filter(move |(bytes, _)| has_most(*bytes)).map(|(_, line)| line)
}

/// The deepest user line below which most of the bytes were requested. `None` if no user line is
/// common to most of them.
pub(crate) fn deepest_common_line(
    symbols: &StackSymbols,
    requested: &[(StackId, BlockTotals)],
) -> Option<SiteId> {
    let with_lines = |(stack, growth): &(StackId, BlockTotals)| GrownStack {
        member: symbols.stack_info(*stack).site,
        stack: *stack,
        growth: *growth,
        lines: user_lines(symbols, *stack),
    };
    let stacks: Vec<GrownStack> = requested.iter().map(with_lines).collect();
    common_lines(&stacks).max_by_key(|line| (line.depth, line.site)).map(|line| line.site)
}

/// The line to blame for all of `candidates`, which grew by `grown`, without the stack that grew
/// most. `None` if no user line is common to most of the growth.
pub(crate) fn choose_blamed_line<'a>(
    (live_set, symbols): (&LiveSet, &StackSymbols),
    candidates: impl Iterator<Item = &'a Candidate>,
    grown: &[GrownStack],
) -> Option<BlamedLine> {
    let grown_ids: SeededSet<StackId> = grown.iter().map(|stack| stack.stack).collect();
    let healthy_stacks = candidates
        .flat_map(|candidate| live_set.stacks_of(candidate.site))
        .filter(|stack| !grown_ids.contains(stack));
    let mut healthy_by_line: SeededMap<SiteId, u32> = SeededMap::default();
    for stack in healthy_stacks {
        let lines: SeededSet<SiteId> = user_lines(symbols, stack).into_iter().map(|line| line.site).collect();
        for site in lines {
            *healthy_by_line.entry(site).or_default() += 1;
        }
    }
    let count_healthy = |site: &SiteId| healthy_by_line.get(site).copied().unwrap_or(0);
    let common = common_lines(grown)
        .min_by_key(|line| (count_healthy(&line.site), std::cmp::Reverse(line.depth), line.site))?
        .site;
    let (mut line, mut followed) = (common, SeededSet::default());
    while followed.insert(line)
        && let Some(inner) = main_line_of_called_function(symbols, grown, line)
        && count_healthy(&inner) <= count_healthy(&line)
    {
        line = inner;
    }
    Some(BlamedLine { line, common, stack: None })
}

/// The line with more than half of all growth, in the function that `line` calls for [`SHARE`] of
/// it. `None` if it calls several functions, or a module.
fn main_line_of_called_function(
    symbols: &StackSymbols,
    grown: &[GrownStack],
    line: SiteId,
) -> Option<SiteId> {
    let total = saturating_sum(grown.iter().map(|stack| stack.growth.bytes));
    let mut by_line: BTreeMap<SiteId, u64> = BTreeMap::new();
    for stack in grown {
        let Some(at) = stack.lines.iter().rposition(|user| user.site == line) else { continue };
        if stack.lines[at].calls_module {
            return None;
        }
        let Some(inner) = stack.lines.get(at + 1) else { continue };
        let bytes = by_line.entry(inner.site).or_default();
        *bytes = bytes.saturating_add(stack.growth.bytes);
    }
    let (&main, &most) = by_line.iter().max_by_key(|(site, bytes)| (**bytes, std::cmp::Reverse(**site)))?;
    let function = symbols.function_of_site(main)?;
    let of_function = by_line.iter().filter(|(site, _)| symbols.function_of_site(**site) == Some(function));
    let bytes = saturating_sum(of_function.map(|(_, bytes)| *bytes));
    (bytes as f64 >= SHARE * total as f64 && most > total / 2).then_some(main)
}

/// The line that a single candidate is reported under: its own site if no other is to blame.
pub(crate) fn blame_candidate(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    candidate: &Candidate,
) -> BlamedLine {
    let grown = grown_stacks(symbols, candidate);
    let own = BlamedLine { line: candidate.site, common: candidate.site, stack: None };
    let blamed = choose_blamed_line((live_set, symbols), std::iter::once(candidate), &grown);
    BlamedLine { stack: grown.first().map(|stack| stack.stack), ..blamed.unwrap_or(own) }
}
