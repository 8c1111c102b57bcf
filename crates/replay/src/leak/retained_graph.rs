//! Merges candidates that are one retained autograd graph into one finding.
//!
//! A reference to an output retains every tensor that its backward pass would need: many blocks,
//! from many lines of the model, that grow in the same steps. Such candidates are one graph,
//! reported under the line of [`choose_blamed_line`], if
//! * at least [`MIN_SITES`] sites grow in lockstep below that line, and none has [`SHARE`] of the
//!   bytes, or
//! * the line calls PyTorch's modules, and [`MIN_MODULE_STACKS`] stacks below such calls retain
//!   [`MIN_BLOCKS`] blocks per growth step or more. This covers a model in one line of user code.
//!
//! The same lines also hold unrelated memory (parameters, library workspaces). Stacks are
//! therefore weighed by their growth since the base, never by what they hold.
//! `tests/leaks/cases.rs` has both forms, and outputs of one line that are not a graph.

use crate::callsite::symbols::StackSymbols;
use crate::leak::blame::{BlamedLine, GrownStack, SHARE, choose_blamed_line, grown_stacks};
use crate::leak::candidate::{Candidate, LockstepKey};
use crate::state::live_set::LiveSet;
use crate::util::block_totals::saturating_sum;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::SeededSet;

/// Sites in lockstep that make a graph, wherever their blocks come from. At 2, two leaks in the
/// same steps would be one graph
/// (`leaks/cases.rs::two_leaks_are_two_findings_with_most_bytes_first`).
const MIN_SITES: usize = 4;
/// Stacks below calls of a module that make a graph of one line.
const MIN_MODULE_STACKS: usize = 2;
/// Blocks per growth step that make a graph of one line. Two outputs that are kept are not a graph
/// (`leaks/cases.rs::kept_outputs_of_one_line_are_not_a_graph`).
const MIN_BLOCKS: u64 = 3;

/// An autograd graph that is retained.
pub(crate) struct RetainedGraph {
    /// The line that retains it, and the stack below it that grew most.
    pub(crate) place: BlamedLine,
    pub(crate) members: Vec<Candidate>,
    /// Where the blocks come from: the sites of the members with their main stacks. For a single
    /// member, the innermost functions below the line, most bytes first.
    pub(crate) sources: Vec<(SiteId, StackId)>,
}

/// The part of a lockstep group that is one graph.
struct LockstepGraph {
    place: BlamedLine,
    members: SeededSet<SiteId>,
}

/// Takes the candidates of one retained graph out of `candidates`. `None` if there is no graph.
pub(crate) fn take_graph(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    candidates: &mut Vec<Candidate>,
) -> Option<RetainedGraph> {
    let mut keys: Vec<LockstepKey> = candidates.iter().map(Candidate::lockstep_key).collect();
    keys.sort_unstable();
    // The largest group first: one of its members alone may look like a graph and names fewer
    // sites.
    let mut groups: Vec<_> = keys.chunk_by(|a, b| a == b).map(|group| (group.len(), group[0])).collect();
    groups.sort_unstable_by_key(|(members, _)| std::cmp::Reverse(*members));
    for (_, key) in groups {
        let group: Vec<&Candidate> =
            candidates.iter().filter(|candidate| candidate.lockstep_key() == key).collect();
        let graph = find_graph(live_set, symbols, &group)
            .or_else(|| group.iter().find_map(|candidate| find_graph(live_set, symbols, &[candidate])));
        let Some(LockstepGraph { place, members }) = graph else { continue };
        let (members, rest): (Vec<Candidate>, Vec<Candidate>) = std::mem::take(candidates)
            .into_iter()
            .partition(|candidate| candidate.lockstep_key() == key && members.contains(&candidate.site));
        *candidates = rest;
        let sources = find_sources(symbols, &members);
        return Some(RetainedGraph { place, members, sources });
    }
    None
}

/// The graph among candidates that grow in the same steps.
fn find_graph(live_set: &LiveSet, symbols: &StackSymbols, group: &[&Candidate]) -> Option<LockstepGraph> {
    let total = saturating_sum(group.iter().map(|candidate| candidate.leaked.bytes));
    let dominates = |candidate: &&Candidate| candidate.leaked.bytes as f64 >= SHARE * total as f64;
    if group.len() > 1 && group.iter().any(dominates) {
        return None;
    }
    let grown: Vec<GrownStack> =
        group.iter().flat_map(|candidate| grown_stacks(symbols, candidate)).collect();
    let place = choose_blamed_line((live_set, symbols), group.iter().copied(), &grown)?;
    let line = place.common;
    let is_below_line = |stack: &&GrownStack| stack.lines.iter().any(|user| user.site == line);
    let mut members: SeededSet<SiteId> = group.iter().map(|candidate| candidate.site).collect();
    for stack in grown.iter().filter(|stack| !is_below_line(stack)) {
        members.remove(&stack.member);
    }
    let in_graph = || grown.iter().filter(|stack| members.contains(&stack.member));
    let calls_module =
        |stack: &&GrownStack| stack.lines.iter().any(|user| user.site == line && user.calls_module);
    let growth_steps = group[0].growth().rising_steps.max(1) as u64;
    let blocks = saturating_sum(in_graph().map(|stack| stack.growth.blocks));
    let is_module_graph =
        in_graph().filter(calls_module).count() >= MIN_MODULE_STACKS && blocks >= MIN_BLOCKS * growth_steps;
    let (_, stack) =
        in_graph().map(|stack| ((stack.growth.bytes, std::cmp::Reverse(stack.stack)), stack.stack)).max()?;
    (members.len() >= MIN_SITES || is_module_graph)
        .then_some(LockstepGraph { place: BlamedLine { stack: Some(stack), ..place }, members })
}

fn find_sources(symbols: &StackSymbols, members: &[Candidate]) -> Vec<(SiteId, StackId)> {
    if let [only] = members {
        let mut listed = SeededSet::default();
        let functions = only.grown.iter().map(|(stack, _)| (symbols.innermost(*stack), *stack));
        return functions.filter(|(function, _)| listed.insert(*function)).collect();
    }
    let main_stack = |member: &Candidate| Some((member.site, member.grown.first()?.0));
    members.iter().filter_map(main_stack).collect()
}
