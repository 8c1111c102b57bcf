//! Reports the peak of each device: its blocks by category, line and phase, and what changed
//! since the step before.
//!
//! [`report_peaks`] classifies each block of the peak once ([`category`]) and sums the result in
//! several ways; each sums to the peak's live bytes. It costs O(n log n) in blocks.
//! `tests/peaks.rs` checks the sums and the categories of a synthetic training.

pub(crate) mod by_phase;
pub(crate) mod category;
mod labels;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::device::DeviceState;
use crate::pass::Analysis;
use crate::peak::category::rules::{Category, CategoryRule, Confidence};
use crate::peak::category::{CategorizedBlock, categorize_blocks};
use crate::peak::labels::compare_labels;
use crate::report::{
    CategoryBytes, CategoryShare, MemoryLayer, PassBytes, Peak, PeakBlockRow, PhaseBytes, RiseOfSite,
    RuleShare, SincePreviousStep, SiteShare, TrainingPass,
};
use crate::state::live_set::LiveSet;
use crate::state::live_set::step_peaks::StepPeak;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::SiteId;
use crate::util::seeded_map::SeededMap;

/// A category has the confidence of its least certain rules once they decide one in so many of
/// its bytes.
const DOUBTFUL_PART: u64 = 10;

/// Reports the peak of every device. `trace` is the trace's index in the report.
pub(crate) fn report_peaks(trace: usize, analysis: &Analysis) -> Vec<Peak> {
    let report = |(ordinal, state)| report_peak(trace, analysis, ordinal, state);
    analysis.visible_devices().map(report).collect()
}

/// Adds to each peak of a report the list of its blocks. `analyses` are those of the report, in
/// its order.
pub fn add_peak_blocks(report: &mut crate::Report, analyses: &[Analysis]) {
    for peak in report.peak.iter_mut().flatten() {
        let Some(analysis) = analyses.get(peak.trace) else { continue };
        let state = analysis.visible_devices().find(|(ordinal, _)| u32::from(*ordinal) == peak.device);
        peak.blocks = state.map(|(ordinal, state)| list_blocks(analysis, ordinal, state));
    }
}

fn list_blocks(analysis: &Analysis, ordinal: u8, state: &DeviceState) -> Vec<PeakBlockRow> {
    let blocks = state.main().peak_blocks();
    let categorized = categorize_blocks(analysis, ordinal, state, &blocks);
    let row = |one: &CategorizedBlock<'_>| {
        let block = one.block.block;
        PeakBlockRow {
            addr: one.block.addr,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
            step: analysis.reported_step(block.step),
            allocated_at_event: block.serial,
            pass: one.allocated_in.pass(),
            category: one.verdict.category,
            confidence: one.verdict.confidence,
            rule: one.verdict.rule,
            site: analysis.symbols.stable_id(one.site),
        }
    };
    categorized.iter().map(row).collect()
}

fn report_peak(trace: usize, analysis: &Analysis, ordinal: u8, state: &DeviceState) -> Peak {
    let live_set = state.main();
    let blocks = live_set.peak_blocks();
    let categorized = categorize_blocks(analysis, ordinal, state, &blocks);
    let mut by_site: SeededMap<SiteId, Vec<&CategorizedBlock<'_>>> = SeededMap::default();
    for one in &categorized {
        by_site.entry(one.site).or_default().push(one);
    }
    let mut sites: Vec<(SiteId, BlockTotals)> = live_set
        .sites()
        .map(|(id, site)| (id, live_set.at_peak(site)))
        .filter(|(_, held)| held.bytes > 0)
        .collect();
    sites.sort_by_key(|(id, held)| (Reverse(held.bytes), *id));
    let phase_of_block = analysis.peak_phases.get(&ordinal).filter(|_| state.has_torch());
    let labels = analysis.peak_labels.get(&ordinal).filter(|_| state.has_torch());
    let phases = |blocks: &[&CategorizedBlock<'_>]| Some(sum_by_phase(analysis, phase_of_block?, blocks));
    let share = |(id, held): (SiteId, BlockTotals)| {
        let blocks = by_site.get(&id).map_or(&[][..], Vec::as_slice);
        SiteShare {
            site: analysis.symbols.site(id, live_set.main_stack_at_peak(id)),
            bytes: held.bytes,
            blocks: held.blocks,
            categories: Some(sum_by_category(blocks)),
            phases: phases(blocks),
        }
    };
    let has_steps = analysis.step_rule.source().is_some() && live_set.peak().live > 0;
    // With `--since`, steps before that moment are not reported.
    let step_before =
        live_set.step_before_peak().filter(|(before, _)| has_steps && before.step >= live_set.first_step);
    Peak {
        trace,
        device: u32::from(ordinal),
        layer: if state.has_torch() { MemoryLayer::Torch } else { MemoryLayer::Device },
        time_ns: live_set.peak().time_ns.saturating_sub(analysis.start_ns),
        step: analysis.reported_step(live_set.peak().step),
        live_bytes: live_set.peak().live,
        categories: share_of_categories(&categorized),
        labels: labels.and_then(|labels| compare_labels(analysis, live_set, labels, &categorized)),
        passes: sum_by_pass(&categorized),
        phases: phases(&categorized.iter().collect::<Vec<_>>()),
        sites: sites.into_iter().map(share).collect(),
        omitted: None,
        since_previous_step: step_before.map(|(before, blocks)| {
            let blocks_before = categorize_blocks(analysis, ordinal, state, &blocks);
            compare_with_step_before(analysis, live_set, before, (&categorized, &blocks_before))
        }),
        blocks: None,
    }
}

/// Categories with the rules that decided them, most bytes first.
fn share_of_categories(categorized: &[CategorizedBlock<'_>]) -> Vec<CategoryShare> {
    type RuleUsed = (CategoryRule, Option<Confidence>);
    let mut all: BTreeMap<Category, (BlockTotals, BTreeMap<RuleUsed, u64>)> = BTreeMap::new();
    for CategorizedBlock { block, verdict, .. } in categorized {
        let (held, rules) = all.entry(verdict.category).or_default();
        held.add(block.block.bytes);
        let bytes = rules.entry((verdict.rule, verdict.confidence)).or_default();
        *bytes = bytes.saturating_add(block.block.bytes);
    }
    let mut shares: Vec<(Category, CategoryShare)> = all
        .into_iter()
        .map(|(category, (held, rules))| {
            let confidence = overall_confidence(held.bytes, &rules);
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

/// The lowest confidence such that rules of that confidence or less decided a tenth of the bytes.
/// `None` if no rule has a confidence.
fn overall_confidence(
    bytes: u64,
    rules: &BTreeMap<(CategoryRule, Option<Confidence>), u64>,
) -> Option<Confidence> {
    let bytes_up_to = |limit: Confidence| {
        let decided = rules.iter().filter(|((_, own), _)| own.is_none_or(|own| own <= limit));
        saturating_sum(decided.map(|(_, bytes)| *bytes))
    };
    if rules.keys().all(|(_, confidence)| confidence.is_none()) {
        return None;
    }
    let ascending = [Confidence::Low, Confidence::Medium, Confidence::High];
    let is_enough = |part: u64| part > 0 && part >= bytes / DOUBTFUL_PART;
    ascending.into_iter().find(|confidence| is_enough(bytes_up_to(*confidence))).or(Some(Confidence::High))
}

fn sum_by_category(blocks: &[&CategorizedBlock<'_>]) -> Vec<CategoryBytes> {
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

fn sum_by_pass(categorized: &[CategorizedBlock<'_>]) -> Vec<PassBytes> {
    let mut all: BTreeMap<TrainingPass, u64> = BTreeMap::new();
    for one in categorized {
        let bytes = all.entry(one.allocated_in.pass()).or_default();
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    let mut all: Vec<PassBytes> = all.into_iter().map(|(pass, bytes)| PassBytes { pass, bytes }).collect();
    all.sort_by_key(|share| Reverse(share.bytes));
    all
}

/// `phase_of_block`: index of the phase by the number of the event that allocated the block.
fn sum_by_phase(
    analysis: &Analysis,
    phase_of_block: &SeededMap<u64, usize>,
    blocks: &[&CategorizedBlock<'_>],
) -> Vec<PhaseBytes> {
    let mut all: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    for one in blocks {
        let bytes = all.entry(phase_of_block.get(&one.block.block.serial).copied()).or_default();
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    let name = |phase: usize| {
        analysis.phases.get(phase).map(|phase| phase.name.clone()).filter(|name| !name.is_empty())
    };
    let mut all: Vec<(Option<usize>, u64)> = all.into_iter().collect();
    all.sort_by_key(|(phase, bytes)| (Reverse(*bytes), *phase));
    all.into_iter().map(|(phase, bytes)| PhaseBytes { phase: phase.and_then(name), bytes }).collect()
}

/// Bytes of one line and category, at both peaks.
#[derive(Clone, Copy, Default)]
struct BytesAtPeaks {
    peak: u64,
    step_before: u64,
}

/// Compares the blocks at the peak with those at the peak of the step before.
fn compare_with_step_before(
    analysis: &Analysis,
    live_set: &LiveSet,
    before: &StepPeak,
    (at_peak, at_step_before): (&[CategorizedBlock<'_>], &[CategorizedBlock<'_>]),
) -> SincePreviousStep {
    // Categories depend on the other blocks of a moment. A block in both moments has the same
    // category.
    let category_at_peak: SeededMap<u64, Category> =
        at_peak.iter().map(|one| (one.block.block.serial, one.verdict.category)).collect();
    let mut by_site: BTreeMap<(SiteId, Category), BytesAtPeaks> = BTreeMap::new();
    for one in at_peak {
        let bytes = &mut by_site.entry((one.site, one.verdict.category)).or_default().peak;
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    for one in at_step_before {
        let category = category_at_peak.get(&one.block.block.serial).copied().unwrap_or(one.verdict.category);
        let bytes = &mut by_site.entry((one.site, category)).or_default().step_before;
        *bytes = bytes.saturating_add(one.block.block.bytes);
    }
    let mut changes: Vec<RiseOfSite> = by_site
        .into_iter()
        .filter(|(_, bytes)| bytes.peak != bytes.step_before)
        .map(|((site, category), bytes)| RiseOfSite {
            site: analysis.symbols.site(site, live_set.main_stack_at_peak(site)),
            category,
            bytes: bytes.peak,
            before_bytes: bytes.step_before,
            rise_bytes: saturating_difference(bytes.peak, bytes.step_before),
        })
        .collect();
    changes.sort_by_key(|change| Reverse(change.rise_bytes));
    SincePreviousStep {
        step: u64::from(before.step),
        // `None` is the empty live set before the first event.
        time_ns: before.time_ns.map_or(0, |time_ns| time_ns.saturating_sub(analysis.start_ns)),
        live_bytes: before.live_bytes,
        rise_bytes: saturating_difference(live_set.peak().live, before.live_bytes),
        changes,
    }
}

fn saturating_difference(a: u64, b: u64) -> i64 {
    let difference = i128::from(a) - i128::from(b);
    difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}
