//! Which leaks are one autograd graph that is kept, and which line keeps it.
//!
//! Whoever keeps an output keeps every tensor that its backward would need: many blocks, of many lines of the model, that
//! grow in the very same steps. They are one finding, under the line that made [`SHARE`] of their growth (`crate::leak::blame`), if
//! * four sites or more grow in lockstep below it and none of them is nearly all of it, or
//! * the line itself calls PyTorch's modules, and at least two stacks below such calls keep three blocks or more each time.
//!   So a model that is one line of user code, or none, is a graph as well.
//!
//! Constraint: the same lines also hold what has nothing to do with the leak (parameters, a library's workspace). Consequence:
//! stacks are weighed by what they grew since the finding's base, never by what they hold.

use crate::callsite::symbols::{SiteId, StackId, StackSymbols};
use crate::leak::blame::{BlamePath, SHARE, own_line, paths};
use crate::leak::candidates::Candidate;
use crate::state::live_set::LiveSet;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::seeded_map::SeededSet;

/// Fewest lockstep sites that make a graph wherever their blocks come from.
const MIN_SITES: usize = 4;
/// Fewest stacks below a call of a module.
const MIN_MODULE_STACKS: usize = 2;
/// Fewest blocks each time. An output and another are no graph yet.
const MIN_BLOCKS: u64 = 3;

/// A retained graph.
pub(crate) struct RetainedGraph {
    /// The line that keeps it.
    pub(crate) line: SiteId,
    /// Of the stacks through that line the one that grew most.
    pub(crate) stack: StackId,
    /// What it is made of.
    pub(crate) members: Vec<Candidate>,
    /// Where the blocks come from: the members' sites, or the functions of the library below the line if it is the only one.
    pub(crate) sources: Vec<(SiteId, StackId)>,
}

/// Takes a retained graph out of the findings, if there is one; gives back the others.
pub(crate) fn split(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    findings: Vec<Candidate>,
) -> (Option<RetainedGraph>, Vec<Candidate>) {
    let mut keys: Vec<_> = findings.iter().map(Candidate::lockstep).collect();
    keys.sort_unstable();
    // Many sites first: one of them alone may look like a graph, but says less.
    let mut groups: Vec<_> = keys.chunk_by(|a, b| a == b).map(|group| (group.len(), group[0])).collect();
    groups.sort_unstable_by_key(|(members, _)| std::cmp::Reverse(*members));
    for (_, key) in groups {
        let members: Vec<&Candidate> = findings.iter().filter(|finding| finding.lockstep() == key).collect();
        let whole = graph_of(live_set, symbols, &members);
        let found = whole.or_else(|| members.iter().find_map(|one| graph_of(live_set, symbols, &[one])));
        let Some((line, stack, inside)) = found else { continue };
        let (members, rest): (Vec<Candidate>, Vec<Candidate>) =
            findings.into_iter().partition(|finding| inside.contains(&finding.site));
        let sources = sources(live_set, symbols, &members);
        return (Some(RetainedGraph { line, stack, members, sources }), rest);
    }
    (None, findings)
}

/// The line under which these findings are one graph, its main stack, and which of them are.
fn graph_of(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    members: &[&Candidate],
) -> Option<(SiteId, StackId, SeededSet<SiteId>)> {
    let total = saturating_sum(members.iter().map(|finding| finding.held.bytes));
    let dominates = |finding: &&Candidate| finding.held.bytes as f64 >= SHARE * total as f64;
    if members.len() > 1 && members.iter().any(dominates) {
        return None;
    }
    let paths: Vec<BlamePath> = members.iter().flat_map(|member| paths(live_set, symbols, member)).collect();
    let line = own_line((live_set, symbols), members.iter().copied(), &paths)?;
    let passes = |path: &&BlamePath| path.lines.iter().any(|(site, _)| *site == line);
    let mut inside: SeededSet<SiteId> = members.iter().map(|member| member.site).collect();
    for path in paths.iter().filter(|path| !passes(path)) {
        inside.remove(&path.member);
    }
    let within = || paths.iter().filter(|path| inside.contains(&path.member));
    let calls_module = |path: &&BlamePath| path.lines.iter().any(|(site, calls)| *site == line && *calls);
    let steps = members[0].growth().rising_steps.max(1) as u64;
    let blocks = saturating_sum(within().map(|path| path.grown.blocks));
    let is_module_graph =
        within().filter(calls_module).count() >= MIN_MODULE_STACKS && blocks >= MIN_BLOCKS * steps;
    let (_, stack) =
        within().map(|path| ((path.grown.bytes, std::cmp::Reverse(path.stack)), path.stack)).max()?;
    (inside.len() >= MIN_SITES || is_module_graph).then_some((line, stack, inside))
}

/// Where the blocks of a graph come from, most bytes first.
fn sources(live_set: &LiveSet, symbols: &StackSymbols, members: &[Candidate]) -> Vec<(SiteId, StackId)> {
    let grown = |member: &Candidate| live_set.stacks_that_grew(member.site, member.from(), member.to);
    if let [only] = members {
        let mut stacks: Vec<(StackId, BlockTotals)> = grown(only).collect();
        stacks.sort_by_key(|(stack, held)| (std::cmp::Reverse(held.bytes), *stack));
        let mut seen = SeededSet::default();
        let functions = stacks.into_iter().map(|(stack, _)| (symbols.innermost(stack), stack));
        return functions.filter(|(function, _)| seen.insert(*function)).collect();
    }
    let main = |member: &Candidate| {
        Some((member.site, live_set.main_stack_of_growth(member.site, member.from(), member.to)?))
    };
    members.iter().filter_map(main).collect()
}
