//! From the blocks of a peak to the report on it: by category, by line, and against the step before.

pub(crate) mod by_phase;
pub(crate) mod category;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::callsite::symbols::SiteId;
use crate::pass::Analysis;
use crate::peak::category::rules::{Category, CategoryRule, Confidence};
use crate::peak::category::{CategorizedBlock, categorize_blocks};
use crate::report::{
    CategoryBytes, CategoryShare, MemoryLayer, PassBytes, Peak, PeakBlockRow, PhaseBytes, RiseOfSite,
    RuleShare, SincePreviousStep, SiteShare, TrainingPass,
};
use crate::state::device::DeviceState;
use crate::state::live_set::LiveSet;
use crate::state::live_set::step_peaks::StepPeak;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::seeded_map::SeededMap;

/// Of the bytes of a category, this part must be surer than what is said of all of it: one in so many.
const DOUBTFUL_PART: u64 = 10;

/// The peaks of the devices of a trace.
pub(crate) fn peaks(trace: usize, analysis: &Analysis) -> Vec<Peak> {
    analysis.visible_devices().map(|(ordinal, state)| peak(trace, analysis, ordinal, state)).collect()
}

/// Adds to each peak every block of it.
pub fn add_peak_blocks(report: &mut crate::Report, analyses: &[Analysis]) {
    for peak in report.peak.iter_mut().flatten() {
        let Some(analysis) = analyses.get(peak.trace) else { continue };
        let state = analysis.visible_devices().find(|(ordinal, _)| u32::from(*ordinal) == peak.device);
        peak.blocks = state.map(|(ordinal, state)| blocks(analysis, ordinal, state));
    }
}

fn blocks(analysis: &Analysis, ordinal: u8, state: &DeviceState) -> Vec<PeakBlockRow> {
    let judged = categorize_blocks(analysis, ordinal, state, &state.main().peak_blocks());
    let block = |one: &CategorizedBlock| {
        let block = one.block.block;
        PeakBlockRow {
            addr: one.block.addr,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
            step: analysis.reported_step(block.step),
            allocated_at_event: block.born,
            pass: one.born.pass(),
            category: one.verdict.category,
            confidence: one.verdict.confidence,
            rule: one.verdict.rule,
            site: analysis.symbols.stable_id(one.site),
        }
    };
    judged.iter().map(block).collect()
}

fn peak(trace: usize, analysis: &Analysis, ordinal: u8, state: &DeviceState) -> Peak {
    let live_set = state.main();
    let judged = categorize_blocks(analysis, ordinal, state, &live_set.peak_blocks());
    let mut of_sites: SeededMap<SiteId, Vec<&CategorizedBlock>> = SeededMap::default();
    for one in &judged {
        of_sites.entry(one.site).or_default().push(one);
    }
    let mut sites: Vec<(SiteId, BlockTotals)> = live_set
        .sites()
        .map(|(id, site)| (id, live_set.at_peak(site)))
        .filter(|(_, held)| held.bytes > 0)
        .collect();
    sites.sort_by_key(|(id, held)| (Reverse(held.bytes), *id));
    let of_phases = analysis.peak_phases.get(&ordinal).filter(|_| state.has_torch());
    let phases = |blocks: &[&CategorizedBlock]| Some(by_phase(analysis, of_phases?, blocks));
    let share = |(id, held): (SiteId, BlockTotals)| {
        let blocks = of_sites.get(&id).map_or(&[][..], Vec::as_slice);
        SiteShare {
            site: analysis.symbols.site(id, live_set.main_stack_at_peak(id)),
            bytes: held.bytes,
            blocks: held.blocks,
            categories: Some(by_category(blocks)),
            phases: phases(blocks),
        }
    };
    let has_steps = analysis.step_rule.source().is_some() && live_set.peak().live > 0;
    // What came before the part that was asked for is not told.
    let step_before =
        live_set.step_before_peak().filter(|(before, _)| has_steps && before.step >= live_set.first_step);
    Peak {
        trace,
        device: u32::from(ordinal),
        layer: if state.has_torch() { MemoryLayer::Torch } else { MemoryLayer::Device },
        time_ns: live_set.peak().time_ns.saturating_sub(analysis.start_ns),
        step: analysis.reported_step(live_set.peak().step),
        live_bytes: live_set.peak().live,
        categories: shares(&judged),
        passes: by_pass(&judged),
        phases: phases(&judged.iter().collect::<Vec<_>>()),
        sites: sites.into_iter().map(share).collect(),
        omitted: None,
        since_previous_step: step_before.map(|(before, blocks)| {
            let was = categorize_blocks(analysis, ordinal, state, &blocks);
            since(analysis, live_set, before, (&judged, &was))
        }),
        blocks: None,
    }
}

/// Categories with what told them, most bytes first.
fn shares(judged: &[CategorizedBlock]) -> Vec<CategoryShare> {
    type RuleUsed = (CategoryRule, Option<Confidence>);
    let mut all: BTreeMap<Category, (BlockTotals, BTreeMap<RuleUsed, u64>)> = BTreeMap::new();
    for CategorizedBlock { block, verdict, .. } in judged {
        let (held, rules) = all.entry(verdict.category).or_default();
        held.add(block.block.bytes);
        let bytes = rules.entry((verdict.rule, verdict.confidence)).or_default();
        *bytes = bytes.saturating_add(block.block.bytes);
    }
    let mut shares: Vec<(Category, CategoryShare)> = all
        .into_iter()
        .map(|(category, (held, rules))| {
            let confidence = overall(held.bytes, &rules);
            let mut rules: Vec<RuleShare> = rules
                .into_iter()
                .map(|((rule, confidence), bytes)| RuleShare { rule, confidence, bytes })
                .collect();
            rules.sort_by_key(|share| Reverse(share.bytes));
            let BlockTotals { bytes, blocks } = held;
            (category, CategoryShare { category, bytes, blocks, confidence, rules })
        })
        .collect();
    shares.sort_by_key(|(category, share)| (Reverse(share.bytes), *category));
    shares.into_iter().map(|(_, share)| share).collect()
}

/// The lowest confidence of those that told a tenth of the bytes or more, together with lower ones.
fn overall(bytes: u64, rules: &BTreeMap<(CategoryRule, Option<Confidence>), u64>) -> Option<Confidence> {
    let at_most = |most: Confidence| {
        let told = rules.iter().filter(|((_, sure), _)| sure.is_none_or(|sure| sure <= most));
        saturating_sum(told.map(|(_, bytes)| *bytes))
    };
    if rules.keys().all(|(_, sure)| sure.is_none()) {
        return None;
    }
    let all = [Confidence::Low, Confidence::Medium, Confidence::High];
    let is_enough = |part: u64| part > 0 && part >= bytes / DOUBTFUL_PART;
    all.into_iter().find(|sure| is_enough(at_most(*sure))).or(Some(Confidence::High))
}

fn by_category(blocks: &[&CategorizedBlock]) -> Vec<CategoryBytes> {
    let mut all: BTreeMap<Category, BlockTotals> = BTreeMap::new();
    for one in blocks {
        all.entry(one.verdict.category).or_default().add(one.block.block.bytes);
    }
    let mut all: Vec<(Category, BlockTotals)> = all.into_iter().collect();
    all.sort_by_key(|(category, held)| (Reverse(held.bytes), *category));
    let bytes = |(category, held): (Category, BlockTotals)| CategoryBytes {
        category,
        bytes: held.bytes,
        blocks: held.blocks,
    };
    all.into_iter().map(bytes).collect()
}

fn by_pass(judged: &[CategorizedBlock]) -> Vec<PassBytes> {
    let mut all: BTreeMap<TrainingPass, u64> = BTreeMap::new();
    for one in judged {
        let bytes = all.entry(one.born.pass()).or_default();
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    let mut all: Vec<PassBytes> = all.into_iter().map(|(pass, bytes)| PassBytes { pass, bytes }).collect();
    all.sort_by_key(|share| Reverse(share.bytes));
    all
}

fn by_phase(
    analysis: &Analysis,
    of: &SeededMap<u64, usize>,
    blocks: &[&CategorizedBlock],
) -> Vec<PhaseBytes> {
    let mut all: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    for one in blocks {
        let bytes = all.entry(of.get(&one.block.block.born).copied()).or_default();
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    let name = |phase: usize| {
        analysis.phases.get(phase).map(|phase| phase.name.clone()).filter(|name| !name.is_empty())
    };
    let mut all: Vec<(Option<usize>, u64)> = all.into_iter().collect();
    all.sort_by_key(|(phase, bytes)| (Reverse(*bytes), *phase));
    all.into_iter().map(|(phase, bytes)| PhaseBytes { phase: phase.and_then(name), bytes }).collect()
}

/// What was held of a line and a category: at the peak, and at that of the step before.
type PeakAndStepBefore = (u64, u64);

fn since(
    analysis: &Analysis,
    live_set: &LiveSet,
    before: &StepPeak,
    (now, was): (&[CategorizedBlock], &[CategorizedBlock]),
) -> SincePreviousStep {
    // A block that was there both times is for the same both times, whatever its neighbours told.
    let known: SeededMap<u64, Category> =
        now.iter().map(|one| (one.block.block.born, one.verdict.category)).collect();
    let mut pairs: BTreeMap<(SiteId, Category), PeakAndStepBefore> = BTreeMap::new();
    for one in now {
        let (bytes, _) = pairs.entry((one.site, one.verdict.category)).or_default();
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    for one in was {
        let category = known.get(&one.block.block.born).copied().unwrap_or(one.verdict.category);
        let (_, bytes) = pairs.entry((one.site, category)).or_default();
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    let mut changes: Vec<RiseOfSite> = pairs
        .into_iter()
        .filter(|(_, (bytes, before))| bytes != before)
        .map(|((site, category), (bytes, before_bytes))| RiseOfSite {
            site: analysis.symbols.site(site, live_set.main_stack_at_peak(site)),
            category,
            bytes,
            before_bytes,
            rise_bytes: difference(bytes, before_bytes),
        })
        .collect();
    changes.sort_by_key(|change| Reverse(change.rise_bytes));
    SincePreviousStep {
        step: u64::from(before.step),
        // Before anything had happened.
        time_ns: before.time_ns.map_or(0, |time_ns| time_ns.saturating_sub(analysis.start_ns)),
        live_bytes: before.live_bytes,
        rise_bytes: difference(live_set.peak().live, before.live_bytes),
        changes,
    }
}

fn difference(a: u64, b: u64) -> i64 {
    let difference = i128::from(a) - i128::from(b);
    difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}
