//! The lines that grew towards an out-of-memory error.
//!
//! [`crate::pass::oom_growth`] measures the growth of each stack. Here stacks become lines of user
//! code. The line of a stack is the one on its path that the fewest *healthy* stacks pass through,
//! and of several the innermost. A stack is healthy if it allocated at the same call site and did
//! not grow. Below a call of a module, [`GRAPH_SITES`] call sites that grew together are one
//! autograd graph, or the activations of one pass: the line that calls the module has them all.
//! Blocks of modules that are built, moved or loaded, and the state of an optimizer, are no growth
//! if they came in one step.

use std::collections::{BTreeMap, BTreeSet};

use crate::callsite::call_context::CallContext;
use crate::callsite::symbols::StackSymbols;
use crate::leak::blame::{UserLine, user_lines};
use crate::pass::Analysis;
use crate::pass::oom_events::OomRecord;
use crate::pass::oom_growth::StackAtOom;
use crate::report::{OomGrowth, OomGrowthPattern, SiteBytes};
use crate::state::holder_scans::HolderScans;
use crate::state::live_set::LiveSet;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};

/// Call sites below a module call from which on they are one graph.
const GRAPH_SITES: usize = 4;
/// A single call site with this share of the bytes below a module call is no graph.
const MAIN_SITE_SHARE: f64 = 0.9;
/// Share of a line's growth from which on replaced blocks matter.
const REPLACED_SHARE: f64 = 0.1;
/// Limit of the rows of each list.
const MAX_LINES: usize = 20;

/// The lines of an error: those that grew, and those that did not.
pub(crate) struct LinesAtOom {
    /// Those of each step last, else most growth first.
    pub(crate) growth: Vec<OomGrowth>,
    /// The stacks of each row of `growth`, in ascending order.
    pub(crate) stacks: Vec<Vec<StackId>>,
    /// Call sites with older blocks, most bytes first.
    pub(crate) unchanged: Vec<SiteBytes>,
}

/// A stack with its lines of user code, outermost first.
struct LinedStack<'a> {
    facts: &'a StackAtOom,
    leaf: SiteId,
    lines: Vec<UserLine>,
}

impl LinedStack<'_> {
    fn module_call(&self) -> Option<&[UserLine]> {
        module_call(&self.lines)
    }
}

/// The lines up to the outermost call of a module.
fn module_call(lines: &[UserLine]) -> Option<&[UserLine]> {
    let call = lines.iter().position(|line| line.calls_module)?;
    Some(&lines[..=call])
}

/// The blocks of a line.
#[derive(Default)]
struct LineGrowth<'a> {
    stacks: Vec<&'a LinedStack<'a>>,
}

/// The lines with live blocks at an error: those that grew, those of each step last, and the
/// others.
pub(crate) fn growth_towards_oom(analysis: &Analysis, oom: &OomRecord) -> LinesAtOom {
    let none = LinesAtOom { growth: Vec::new(), stacks: Vec::new(), unchanged: Vec::new() };
    let Some((_, device)) = analysis.devices.iter().find(|(ordinal, _)| *ordinal == oom.event.device) else {
        return none;
    };
    let (symbols, live_set) = (&analysis.symbols, device.main());
    let (mut grown, mut of_each_step, mut unchanged) = (Vec::new(), Vec::new(), Vec::new());
    for facts in &oom.growth {
        let leaf = symbols.stack_info(facts.stack).site;
        let lined = || LinedStack { facts, leaf, lines: user_lines(symbols, facts.stack) };
        let is_growth = facts.grown.bytes > 0 && facts.is_recent && !is_set_up(symbols, facts);
        if is_growth && facts.is_of_each_step {
            of_each_step.push(lined());
        } else if is_growth {
            grown.push(lined());
        }
        let before =
            if is_growth { facts.held.bytes.saturating_sub(facts.grown.bytes) } else { facts.held.bytes };
        if before > 0 {
            unchanged.push((lined(), before));
        }
    }
    let rows = |stacks: &[LinedStack<'_>], is_each_step| {
        let by_line = group_by_line(live_set, symbols, stacks);
        let mut rows: Vec<(OomGrowth, Vec<StackId>)> = by_line
            .iter()
            .map(|(line, growth)| {
                (growth.report((analysis, live_set), oom, *line, is_each_step), growth.stack_ids())
            })
            .collect();
        rows.sort_by(|(a, _), (b, _)| {
            b.bytes.cmp(&a.bytes).then_with(|| a.site.place().cmp(&b.site.place()))
        });
        rows
    };
    let mut all = rows(&grown, false);
    all.extend(rows(&of_each_step, true));
    all.truncate(MAX_LINES);
    let (growth, stacks) = all.into_iter().unzip();
    LinesAtOom { growth, stacks, unchanged: report_unchanged(symbols, &unchanged) }
}

/// True for blocks of a module that was built, moved, copied or loaded once, and for the state that
/// an optimizer allocates in its first step.
fn is_set_up(symbols: &StackSymbols, facts: &StackAtOom) -> bool {
    let info = symbols.stack_info(facts.stack);
    let is_module = matches!(info.context, CallContext::Module | CallContext::Initial | CallContext::Loading);
    facts.steps <= 1 && (is_module || info.optimizer != 0)
}

/// The stacks by the line that they are reported under.
fn group_by_line<'a>(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    stacks: &'a [LinedStack<'a>],
) -> BTreeMap<SiteId, LineGrowth<'a>> {
    let graphs = find_graph_calls(stacks);
    let healthy = count_healthy_stacks(live_set, symbols, stacks);
    let mut by_line: BTreeMap<SiteId, LineGrowth<'a>> = BTreeMap::new();
    for stack in stacks {
        let is_graph = stack.module_call().is_some_and(|lines| graphs.contains(&line_sites(lines)));
        let lines = if is_graph { stack.module_call().unwrap_or(&stack.lines) } else { &stack.lines };
        let count = |site: SiteId| healthy.get(&(stack.leaf, site)).copied().unwrap_or(0);
        let line = lines.iter().rev().map(|line| line.site).min_by_key(|site| count(*site));
        by_line.entry(line.unwrap_or(stack.leaf)).or_default().stacks.push(stack);
    }
    by_line
}

fn line_sites(lines: &[UserLine]) -> Vec<SiteId> {
    lines.iter().map(|line| line.site).collect()
}

/// The calls of modules below which many call sites grew, as paths of lines.
fn find_graph_calls(stacks: &[LinedStack<'_>]) -> BTreeSet<Vec<SiteId>> {
    let mut by_call: BTreeMap<Vec<SiteId>, BTreeMap<SiteId, u64>> = BTreeMap::new();
    for stack in stacks {
        let Some(lines) = stack.module_call() else { continue };
        let bytes = by_call.entry(line_sites(lines)).or_default().entry(stack.leaf).or_default();
        *bytes = bytes.saturating_add(stack.facts.grown.bytes);
    }
    let is_graph = |sites: &BTreeMap<SiteId, u64>| {
        let total = sites.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let most = sites.values().copied().max().unwrap_or(0);
        sites.len() >= GRAPH_SITES && (most as f64) < MAIN_SITE_SHARE * total as f64
    };
    by_call.into_iter().filter(|(_, sites)| is_graph(sites)).map(|(call, _)| call).collect()
}

/// Number of healthy stacks by call site and line.
fn count_healthy_stacks(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    grown: &[LinedStack<'_>],
) -> BTreeMap<(SiteId, SiteId), u32> {
    let grown_ids: BTreeSet<StackId> = grown.iter().map(|stack| stack.facts.stack).collect();
    let leaves: BTreeSet<SiteId> = grown.iter().map(|stack| stack.leaf).collect();
    let mut stacks: BTreeSet<(SiteId, StackId)> = BTreeSet::new();
    for leaf in &leaves {
        stacks.extend(live_set.stacks_of(*leaf).map(|stack| (*leaf, stack)));
    }
    let before = live_set.rebased().into_iter().flat_map(|state| &state.stacks);
    stacks
        .extend(before.filter(|(_, site, _)| leaves.contains(site)).map(|(stack, site, _)| (*site, *stack)));
    let mut healthy: BTreeMap<(SiteId, SiteId), u32> = BTreeMap::new();
    for (leaf, stack) in stacks.into_iter().filter(|(_, stack)| !grown_ids.contains(stack)) {
        let lines: BTreeSet<SiteId> = user_lines(symbols, stack).into_iter().map(|line| line.site).collect();
        for line in lines {
            *healthy.entry((leaf, line)).or_default() += 1;
        }
    }
    healthy
}

impl LineGrowth<'_> {
    fn stack_ids(&self) -> Vec<StackId> {
        let mut ids: Vec<StackId> = self.stacks.iter().map(|stack| stack.facts.stack).collect();
        ids.sort_unstable();
        ids
    }

    fn report(
        &self,
        (analysis, live_set): (&Analysis, &LiveSet),
        oom: &OomRecord,
        line: SiteId,
        is_each_step: bool,
    ) -> OomGrowth {
        let (mut grown, mut held, mut replaced) = (BlockTotals::default(), 0u64, Some(0u64));
        let (mut steps, mut first_step, mut counts) = (0, u32::MAX, Vec::new());
        for LinedStack { facts, .. } in &self.stacks {
            grown.bytes = grown.bytes.saturating_add(facts.grown.bytes);
            grown.blocks = grown.blocks.saturating_add(facts.grown.blocks);
            held = held.saturating_add(facts.held.bytes);
            replaced = replaced.zip(facts.replaced_bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
            steps = steps.max(facts.steps);
            first_step = first_step.min(facts.first_step);
            counts.push(facts.grown.blocks);
        }
        counts.sort_unstable();
        let within_step = counts.get(counts.len() / 4).copied().unwrap_or(0);
        let moments =
            if steps > 1 { u64::from(steps) } else { self.rounds(analysis, live_set, oom, within_step) };
        let frees_older_blocks =
            replaced.map(|bytes| bytes as f64 >= REPLACED_SHARE * grown.bytes as f64 && bytes > 0);
        let pattern = match (is_each_step, frees_older_blocks, moments) {
            (true, ..) => OomGrowthPattern::EachStep,
            (_, Some(true), _) => OomGrowthPattern::Replaced,
            (.., 2..) => OomGrowthPattern::Repeated,
            _ => OomGrowthPattern::Once,
        };
        let main =
            self.stacks.iter().max_by_key(|one| (one.facts.grown.bytes, std::cmp::Reverse(one.facts.stack)));
        let scans = analysis.analyses.find::<HolderScans>();
        let holders =
            scans.and_then(|scans| scans.holders_of_stacks(oom.event.device, self.stack_ids().into_iter()));
        let (holders, holder_coverage) = holders.map_or((None, None), |(all, seen)| (Some(all), Some(seen)));
        OomGrowth {
            site: analysis.symbols.site(line, main.map(|one| one.facts.stack)),
            bytes: grown.bytes,
            blocks: grown.blocks,
            held_bytes: held,
            pattern,
            moments,
            first_step: analysis.reported_step(first_step),
            frees_older_blocks,
            holders,
            holder_coverage,
        }
    }

    /// How often the line allocated within one step: `count`, unless all blocks may be of the one
    /// call of a module that the error interrupted.
    fn rounds(&self, analysis: &Analysis, live_set: &LiveSet, oom: &OomRecord, count: u64) -> u64 {
        let symbols = &analysis.symbols;
        let failed = user_lines(symbols, oom.stack);
        let Some(call) = module_call(&failed).map(line_sites) else { return count };
        let is_inside = |stack: &&LinedStack<'_>| stack.module_call().map(line_sites).as_ref() == Some(&call);
        let is_interrupted = self.stacks.iter().all(is_inside);
        if is_interrupted && !was_called_before(symbols, live_set, &call) { count.min(1) } else { count }
    }
}

/// True if a line of the function that calls a module allocated again and again outside the call.
fn was_called_before(symbols: &StackSymbols, live_set: &LiveSet, call: &[SiteId]) -> bool {
    let caller = &call[..call.len() - 1];
    live_set.sites().any(|(site, stats)| {
        let stacks: Vec<StackId> = live_set.stacks_of(site).collect();
        let is_beside = |stack: &StackId| {
            let lines = user_lines(symbols, *stack);
            lines.len() > caller.len()
                && line_sites(&lines).starts_with(caller)
                && module_call(&lines).is_none_or(|own| line_sites(own) != call)
        };
        stats.allocated() >= 2 * stacks.len() as u64 && stacks.iter().any(is_beside)
    })
}

/// The blocks that did not grow, by call site.
fn report_unchanged(symbols: &StackSymbols, stacks: &[(LinedStack<'_>, u64)]) -> Vec<SiteBytes> {
    let mut by_site: BTreeMap<SiteId, u64> = BTreeMap::new();
    for (stack, bytes) in stacks {
        let sum = by_site.entry(stack.leaf).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    let mut rows: Vec<SiteBytes> = by_site
        .into_iter()
        .map(|(site, bytes)| SiteBytes { site: symbols.site(site, None), bytes })
        .collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.place().cmp(&b.site.place())));
    rows.truncate(MAX_LINES);
    rows
}
