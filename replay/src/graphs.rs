//! Which leaks are one autograd graph that is kept, and which line keeps it.
//!
//! Whoever keeps an output keeps every tensor that its backward would need: many blocks, of many lines of the model, that
//! grow in the very same steps. They are one finding, under the deepest user line that made [`SHARE`] of their growth, if
//! * four sites or more grow in lockstep below it and none of them is nearly all of it, or
//! * the line itself calls PyTorch's modules, and at least two stacks below such calls keep three blocks or more each time.
//!   So a model that is one line of user code, or none, is a graph as well.
//!
//! Constraint: the same lines also hold what has nothing to do with the leak (parameters, a library's workspace). Consequence:
//! stacks are weighed by what they grew since the finding's base, never by what they hold.

use crate::book::Book;
use crate::keyed::{KeyedMap, KeyedSet};
use crate::leaks::Finding;
use crate::origin::is_module_code;
use crate::symbols::{SiteId, StackId, Symbols};
use crate::tally::{Held, sum};

/// Share of the growth that the line of a graph must hold, and that none of several sites may.
const SHARE: f64 = 0.9;
/// Fewest lockstep sites that make a graph wherever their blocks come from.
const MIN_SITES: usize = 4;
/// Fewest stacks below a call of a module.
const MIN_MODULE_STACKS: usize = 2;
/// Fewest blocks each time. An output and another are no graph yet.
const MIN_BLOCKS: u64 = 3;

/// A retained graph.
pub(crate) struct Graph {
    /// The line that keeps it.
    pub(crate) line: SiteId,
    /// Of the stacks through that line the one that grew most.
    pub(crate) stack: StackId,
    /// What it is made of.
    pub(crate) members: Vec<Finding>,
    /// Where the blocks come from: the members' sites, or the functions of the library below the line if it is the only one.
    pub(crate) sources: Vec<(SiteId, StackId)>,
}

/// A stack of a finding and its user lines.
struct Path {
    member: SiteId,
    stack: StackId,
    grown: Held,
    /// User lines, outermost first, and whether the line calls a module of PyTorch there.
    lines: Vec<(SiteId, bool)>,
}

/// Takes a retained graph out of the findings, if there is one; gives back the others.
pub(crate) fn split(book: &Book, symbols: &Symbols, findings: Vec<Finding>) -> (Option<Graph>, Vec<Finding>) {
    let mut keys: Vec<_> = findings.iter().map(lockstep).collect();
    keys.sort_unstable();
    // Many sites first: one of them alone may look like a graph, but says less.
    let mut groups: Vec<_> = keys.chunk_by(|a, b| a == b).map(|group| (group.len(), group[0])).collect();
    groups.sort_unstable_by_key(|(members, _)| std::cmp::Reverse(*members));
    for (_, key) in groups {
        let members: Vec<&Finding> = findings.iter().filter(|finding| lockstep(finding) == key).collect();
        let whole = graph_of(book, symbols, &members);
        let found = whole.or_else(|| members.iter().find_map(|one| graph_of(book, symbols, &[one])));
        let Some((line, stack, inside)) = found else { continue };
        let (members, rest): (Vec<Finding>, Vec<Finding>) =
            findings.into_iter().partition(|finding| inside.contains(&finding.site));
        let sources = sources(book, symbols, &members);
        return (Some(Graph { line, stack, members, sources }), rest);
    }
    (None, findings)
}

/// What findings have in common that grow in the very same steps.
fn lockstep(finding: &Finding) -> (usize, Option<usize>, usize, u32) {
    let growth = finding.growth();
    (growth.first, growth.period, growth.growth_steps, finding.stride)
}

/// The line under which these findings are one graph, its main stack, and which of them are.
fn graph_of(
    book: &Book,
    symbols: &Symbols,
    members: &[&Finding],
) -> Option<(SiteId, StackId, KeyedSet<SiteId>)> {
    let total = sum(members.iter().map(|finding| finding.held.bytes));
    let dominates = |finding: &&Finding| finding.held.bytes as f64 >= SHARE * total as f64;
    if members.len() > 1 && members.iter().any(dominates) {
        return None;
    }
    let paths: Vec<Path> = members.iter().flat_map(|member| paths(book, symbols, member)).collect();
    let line = meeting_line(&paths)?;
    let passes = |path: &&Path| path.lines.iter().any(|(site, _)| *site == line);
    let mut inside: KeyedSet<SiteId> = members.iter().map(|member| member.site).collect();
    for path in paths.iter().filter(|path| !passes(path)) {
        inside.remove(&path.member);
    }
    let within = || paths.iter().filter(|path| inside.contains(&path.member));
    let calls_module = |path: &&Path| path.lines.iter().any(|(site, calls)| *site == line && *calls);
    let steps = members[0].growth().growth_steps.max(1) as u64;
    let blocks = sum(within().map(|path| path.grown.blocks));
    let is_module_graph =
        within().filter(calls_module).count() >= MIN_MODULE_STACKS && blocks >= MIN_BLOCKS * steps;
    let (_, stack) =
        within().map(|path| ((path.grown.bytes, std::cmp::Reverse(path.stack)), path.stack)).max()?;
    (inside.len() >= MIN_SITES || is_module_graph).then_some((line, stack, inside))
}

/// The stacks of a finding that grew, with their user lines.
fn paths(book: &Book, symbols: &Symbols, member: &Finding) -> Vec<Path> {
    let path = |(stack, grown): (StackId, Held)| {
        let mut lines: Vec<(SiteId, bool)> = Vec::new();
        let mut called_is_module = false;
        // Innermost first: what a frame calls is seen before it.
        for node in symbols.python_path(symbols.facts(stack).python) {
            if let Some(site) = symbols.own_user_site(node) {
                lines.push((site, called_is_module));
            }
            called_is_module = symbols.file_of(node).is_some_and(is_module_code);
        }
        lines.reverse();
        Path { member: member.site, stack, grown, lines }
    };
    book.stacks_that_grew(member.site, member.from(), member.to).map(path).collect()
}

/// The deepest user line that most of the growth was allocated under.
fn meeting_line(paths: &[Path]) -> Option<SiteId> {
    let total = sum(paths.iter().map(|path| path.grown.bytes));
    // line -> (bytes under it, least depth at which it occurs)
    let mut lines: KeyedMap<SiteId, (u64, usize)> = KeyedMap::default();
    for path in paths {
        let mut seen = KeyedSet::default();
        for (depth, (site, _)) in path.lines.iter().enumerate().filter(|(_, (site, _))| seen.insert(*site)) {
            let line = lines.entry(*site).or_insert((0, depth));
            line.0 = line.0.saturating_add(path.grown.bytes);
            line.1 = line.1.min(depth);
        }
    }
    let enough = lines.iter().filter(|(_, (bytes, _))| *bytes as f64 >= SHARE * total as f64);
    enough.max_by_key(|(site, (_, depth))| (*depth, std::cmp::Reverse(**site))).map(|(site, _)| *site)
}

/// Where the blocks of a graph come from, most bytes first.
fn sources(book: &Book, symbols: &Symbols, members: &[Finding]) -> Vec<(SiteId, StackId)> {
    let grown = |member: &Finding| book.stacks_that_grew(member.site, member.from(), member.to);
    if let [only] = members {
        let mut stacks: Vec<(StackId, Held)> = grown(only).collect();
        stacks.sort_by_key(|(stack, held)| (std::cmp::Reverse(held.bytes), *stack));
        let mut seen = KeyedSet::default();
        let functions = stacks.into_iter().map(|(stack, _)| (symbols.innermost(stack), stack));
        return functions.filter(|(function, _)| seen.insert(*function)).collect();
    }
    let main = |member: &Finding| {
        Some((member.site, book.main_stack_of_growth(member.site, member.from(), member.to)?))
    };
    members.iter().filter_map(main).collect()
}
