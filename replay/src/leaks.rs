//! Which lines leave something behind at every step.
//!
//! Each site of a device (of PyTorch's blocks where there are any, else of driver memory) is judged by [`crate::growth`] on
//! its live blocks at step ends, and on its live bytes if the blocks do not grow (one tensor that gets ever larger). Sites
//! that grow in the very same steps and whose stacks meet in one user line are one finding, a retained graph, under that line
//! (see `crate::graphs`); everything else is a finding of its own.

use serde_json::json;

use crate::analysis::Analysis;
use crate::book::{Book, SiteBook};
use crate::device::DeviceState;
use crate::graphs::{self, Graph};
use crate::growth::{Growth, judge};
use crate::report::{FreedSiblings, Leak, Quantity};
use crate::steps::Rule;
use crate::symbols::SiteId;
use crate::tally::{Held, sum};

/// Most findings.
const MAX_FINDINGS: usize = 200;
/// Most members named in one finding.
const MAX_MEMBERS: usize = 100;
/// Steps in which parameters, gradients and optimizer state appear: their growth is nobody's share.
const WARM_UP: usize = 3;
/// Highest confidence in what grows without a period: a cache that is still filling does so too.
const MAX_IRREGULAR_CONFIDENCE: f64 = 0.9;

/// A site that grows.
pub(crate) struct Finding {
    /// Whose.
    pub(crate) site: SiteId,
    blocks: Option<Growth>,
    bytes: Option<Growth>,
    /// Steps from one value of the series to the next.
    pub(crate) stride: u32,
    /// Survivors; of a tensor that grows, what it grew by and the blocks there are.
    pub(crate) held: Held,
    /// The last step that ended.
    pub(crate) to: u32,
    /// Growth of its bytes from the end of this step on, when warm-up is over.
    after_warm_up: (u32, u64),
    born: u64,
    freed: u64,
    freed_late: u64,
    free_site: Option<SiteId>,
}

impl Finding {
    /// The growth that made it one.
    pub(crate) fn growth(&self) -> &Growth {
        // One of the two is there: a finding is made from it.
        self.blocks.as_ref().or(self.bytes.as_ref()).unwrap_or(&NONE)
    }

    /// The step at whose end it had not begun; `None` if it began with the first.
    pub(crate) fn from(&self) -> Option<u32> {
        let growth = self.growth();
        (growth.first > 0).then_some(growth.base as u32 * self.stride)
    }

    fn first_step(&self) -> u64 {
        self.growth().first as u64 * u64::from(self.stride)
    }
}

static NONE: Growth = Growth {
    base: 0,
    rise: 0,
    undone: 0,
    growth_steps: 0,
    first: 0,
    period: None,
    per_value: 0.0,
    regularity: 0.0,
    tau: 0.0,
    slope: 0.0,
    accelerates: false,
};

/// All findings, worst first.
pub fn leaks(trace: usize, analysis: &Analysis) -> Vec<Leak> {
    let mut leaks: Vec<Leak> = Vec::new();
    for (ordinal, device) in &analysis.devices {
        leaks.extend(device_leaks(trace, analysis, *ordinal, device));
    }
    leaks.sort_by_key(|leak| std::cmp::Reverse(leak.bytes));
    leaks.truncate(MAX_FINDINGS);
    leaks
}

fn device_leaks(trace: usize, analysis: &Analysis, ordinal: u8, device: &DeviceState) -> Vec<Leak> {
    let book = device.main();
    let mut findings: Vec<Finding> =
        book.sites().filter_map(|(site, sites)| finding(book, site, sites)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.held.bytes));
    let context = Context { trace, analysis, ordinal, device };
    let mut leaks = Vec::new();
    while !findings.is_empty() {
        let (graph, rest) = graphs::split(book, &analysis.symbols, findings);
        findings = rest;
        match graph {
            Some(graph) => leaks.push(context.graph(&graph)),
            None => {
                leaks.extend(findings.drain(..).map(|finding| context.leak(&finding)));
            }
        }
    }
    leaks
}

fn finding(book: &Book, site: SiteId, sites: &SiteBook) -> Option<Finding> {
    let steps = book.steps_ended();
    if sites.series().is_empty() {
        return None;
    }
    let (stride, values) = sites.series().values(steps);
    let fates = book.fates(sites);
    let no_late_frees = fates.freed_late == 0;
    let blocks: Vec<u64> = values.iter().map(|held| held.blocks).collect();
    let bytes: Vec<u64> = values.iter().map(|held| held.bytes).collect();
    let growth_blocks = judge(&blocks, no_late_frees);
    let mut growth_bytes = judge(&bytes, no_late_frees || growth_blocks.is_some());
    if growth_blocks.is_none() {
        // A single growing tensor is a copy and a free at each step: only a long and certain series will do.
        growth_bytes = growth_bytes.filter(|growth| values.len() - growth.base >= 12);
    }
    let first = growth_blocks.as_ref().or(growth_bytes.as_ref())?;
    let before = if first.first == 0 { Held::default() } else { values[first.base] };
    let last = values.last().copied().unwrap_or_default();
    let held = Held {
        bytes: last.bytes.saturating_sub(before.bytes),
        blocks: if growth_blocks.is_some() { last.blocks.saturating_sub(before.blocks) } else { last.blocks },
    };
    if held.bytes == 0 {
        return None;
    }
    let settled = first.first.max(WARM_UP).min(values.len().saturating_sub(2));
    let grown = last.bytes.saturating_sub(values[settled].bytes);
    Some(Finding {
        after_warm_up: (settled as u32 * stride, grown),
        site,
        blocks: growth_blocks,
        bytes: growth_bytes,
        stride,
        held,
        to: steps.saturating_sub(1),
        born: fates.born,
        freed: fates.freed,
        freed_late: fates.freed_late,
        free_site: book.main_free_site(sites),
    })
}

struct Context<'a> {
    trace: usize,
    analysis: &'a Analysis,
    ordinal: u8,
    device: &'a DeviceState,
}

impl Context<'_> {
    fn has_steps(&self) -> bool {
        !matches!(self.analysis.rule, Rule::Time { .. })
    }

    fn leak(&self, finding: &Finding) -> Leak {
        let symbols = &self.analysis.symbols;
        let growth = finding.growth();
        let shape = if growth.accelerates { "accelerating" } else { "linear" };
        let stack = self.device.main().main_stack_of_growth(finding.site, finding.from(), finding.to);
        let mut leak = self.base(finding.held, shape, std::slice::from_ref(finding));
        leak.site = symbols.site(finding.site, stack);
        leak
    }

    fn graph(&self, graph: &Graph) -> Leak {
        let symbols = &self.analysis.symbols;
        let mut held = Held::default();
        for member in &graph.members {
            held.bytes = held.bytes.saturating_add(member.held.bytes);
            held.blocks += member.held.blocks;
        }
        let mut leak = self.base(held, "retained_graph", &graph.members);
        leak.site = symbols.site(graph.line, Some(graph.stack));
        let named = graph.sources.iter().take(MAX_MEMBERS);
        leak.members = named.map(|(site, stack)| symbols.site(*site, Some(*stack))).collect();
        leak
    }

    fn base(&self, held: Held, shape: &'static str, members: &[Finding]) -> Leak {
        let analysis = self.analysis;
        let main = &members[0];
        let growth = main.growth();
        let rate = |of: fn(&Finding) -> &Option<Growth>| {
            members
                .iter()
                .map(|member| of(member).as_ref().map_or(0.0, |g| g.per_value) / f64::from(member.stride))
                .sum::<f64>()
        };
        // Blocks may grow regularly while their sizes vary: then bytes per step is their mean.
        let bytes_rate = members
            .iter()
            .map(|member| match (&member.bytes, &member.blocks) {
                (Some(bytes), _) => bytes.per_value / f64::from(member.stride),
                (None, Some(blocks)) if blocks.rise > 0 => {
                    member.held.bytes as f64 / blocks.rise as f64 * blocks.per_value
                        / f64::from(member.stride)
                }
                _ => 0.0,
            })
            .sum::<f64>();
        let blocks_rate = rate(|member| &member.blocks);
        let steps = self.device.main().steps_ended();
        let has_steps = self.has_steps();
        let per_step = |rate: f64| has_steps.then_some(Quantity(rate));
        let period = growth.period.filter(|_| has_steps).and_then(|period| match (period, main.stride) {
            (period, 1) => Some(period as u64),
            (1, _) if blocks_rate >= 1.0 => Some(1),
            _ => None,
        });
        let first_step = members.iter().map(Finding::first_step).min().unwrap_or(0);
        let total = self.device.main().series();
        let (settled, _) = main.after_warm_up;
        let grown = total.at(steps.saturating_sub(1)).bytes.saturating_sub(total.at(settled).bytes);
        let own = sum(members.iter().map(|member| member.after_warm_up.1));
        let share = (grown > 0).then(|| (own as f64 / grown as f64).min(1.0));
        let capacity = analysis.meta.number(&format!("device.{}.total_bytes", self.ordinal));
        let [reserved, ..] = self.device.at_peak_reserved;
        let used = reserved.max(self.device.peak_device);
        let steps_to_oom = capacity
            .filter(|_| has_steps && bytes_rate > 0.0)
            .map(|capacity| (capacity.saturating_sub(used) as f64 / bytes_rate) as u64);
        let (born, freed) = members.iter().fold((0, 0), |(b, f), member| (b + member.born, f + member.freed));
        let free_site = members.iter().max_by_key(|member| member.freed).and_then(|member| member.free_site);
        let freed_late = sum(members.iter().map(|member| member.freed_late));
        let certainty = if growth.period.is_some() { growth.regularity } else { growth.tau };
        let repeated = 1.0 - 0.5f64.powi(growth.growth_steps.min(60) as i32 - 1);
        let kept = 1.0 - growth.undone as f64 / growth.rise.max(1) as f64;
        let most = if growth.period.is_some() { 0.999 } else { MAX_IRREGULAR_CONFIDENCE };
        let confidence = (certainty * repeated * kept * 1000.0).round() / 1000.0;
        let symbols = &analysis.symbols;
        Leak {
            trace: self.trace,
            site: symbols.site(main.site, None),
            device: u32::from(self.ordinal),
            shape,
            confidence: confidence.clamp(0.0, most),
            blocks: held.blocks,
            bytes: held.bytes,
            blocks_per_step: per_step(blocks_rate),
            bytes_per_step: per_step(bytes_rate),
            period_steps: period,
            first_step: has_steps.then_some(first_step),
            last_step: has_steps.then_some(u64::from(main.to)),
            grows_by: if main.blocks.is_some() { "blocks" } else { "size" },
            is_regular: growth.period.is_some(),
            share_of_growth: share,
            steps_to_oom,
            freed_siblings: FreedSiblings {
                share: if born == 0 { 0.0 } else { freed as f64 / born as f64 },
                site: free_site.map(|site| symbols.site(site, None)),
            },
            members: Vec::new(),
            evidence: json!({
                "judged_at_step": has_steps.then_some(steps),
                "growth_steps": growth.growth_steps,
                "regularity": growth.regularity,
                "kendall_tau": growth.tau,
                "theil_sen_slope": growth.slope / f64::from(main.stride),
                "slope_of": if main.blocks.is_some() { "blocks" } else { "bytes" },
                "largest_undone_rise": growth.undone,
                "blocks_allocated": born,
                "blocks_freed": freed,
                "blocks_freed_in_a_later_step": freed_late,
                "layer": if self.device.has_torch() { "torch" } else { "device" },
            }),
        }
    }
}
