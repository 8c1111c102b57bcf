//! Which remedies would have helped against an out-of-memory error.
//!
//! A remedy works or fails only if the state at the error establishes it from PyTorch's rules
//! (`CUDACachingAllocator.cpp`, `malloc`); else it is untested. Settings of the allocator are
//! predicted with a model of it ([`crate::pass::oom_settings`]). Two rules decide about the rest:
//! * No setting creates memory. Under `expandable_segments` a pool still needs a page for each
//!   2 MiB of its live blocks and of the request. If the pages of all pools exceed what the device
//!   has for PyTorch, the request fails. This holds for errors without a prediction, too.
//! * PyTorch releases segments without blocks before it fails. If the blocks of a line were freed,
//!   segments that hold only such blocks would be released. If they and the free memory of the
//!   driver suffice for the segment of the request, it succeeds.

use crate::assemble::oom_growth::LinesAtOom;
use crate::pass::{Analysis, OomRecord};
use crate::report::{
    OomGrowthPattern, OomPredictions, PluggableMode, Remedy, RemedyKind, SettingVerdict, Site,
};
use crate::state::pool_key::SMALL_SEGMENT;
use crate::util::block_totals::saturating_sum;
use crate::util::ids::StackId;

/// PyTorch rounds requests up to this size in bytes (`kMinBlockSize`).
const MIN_BLOCK: u64 = 512;
/// The setting that most often helps.
const EXPANDABLE: &str = "expandable_segments:True";
/// Most settings that are listed, if several work.
const MAX_SETTINGS: usize = 2;

/// Free memory at an error, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryAtOom {
    /// The size of the device, if known.
    pub(super) capacity: Option<u64>,
    /// Memory of the device that the driver had not handed to this process, if known.
    pub(super) free: Option<u64>,
    /// What the driver lacked for the request, if known and not 0.
    pub(super) shortfall: Option<u64>,
    /// What PyTorch had reserved and not allocated.
    pub(super) gap: u64,
}

/// What could be tried, and whether it works.
pub(super) fn remedies(
    analysis: &Analysis,
    record: &OomRecord,
    memory: MemoryAtOom,
    lines: &LinesAtOom,
) -> Vec<Remedy> {
    let MemoryAtOom { free, gap, shortfall, .. } = memory;
    let requested = record.event.size;
    let mut remedies = Vec::new();
    let mut add = |kind, works| remedies.push(Remedy { kind, action: String::new(), works });
    // Memory outside recorded calls is not free either.
    let free = free.map(|free| free.saturating_sub(record.residual.unwrap_or(0)));
    let short = free.map(|free| requested.saturating_sub(gap.saturating_add(free)));
    for (line, stacks) in lines.growth.iter().zip(&lines.stacks) {
        if line.pattern != OomGrowthPattern::Repeated {
            continue;
        }
        let site = Box::new(Site { stack: Vec::new(), stack_order: None, ..line.site.clone() });
        let works = freeing_works(record, (free, short), line.held_bytes, stacks);
        add(RemedyKind::FixLeak { site, bytes: line.bytes }, works);
    }
    let no_setting_helps = no_setting_helps(record, memory).then_some(false);
    if matches!(analysis.pluggable(), Some(PluggableMode::Caching | PluggableMode::Uncached)) {
        add(RemedyKind::UseTorchAllocator, no_setting_helps);
    } else if analysis.is_metal() {
        // The trace does not show whether PyTorch's own limit applied.
        add(RemedyKind::RaiseMpsLimit, None);
    } else if !record.is_of_driver && analysis.other_accelerator().is_none() {
        for (kind, works) in settings_to_try(analysis, record, no_setting_helps) {
            add(kind, works);
        }
    }
    for (bytes, kind) in stranded_memory(record) {
        let works = free.filter(|free| bytes.saturating_add(*free) < requested).map(|_| false);
        add(kind, works);
    }
    // Without segments of its own, the cache is unknown.
    let has_no_cache = record.gap.largest_free.is_some() && record.gap.cache == 0;
    if !record.is_of_driver {
        add(RemedyKind::EmptyCache, has_no_cache.then_some(false));
    }
    match short {
        Some(short) if short > record.live => add(RemedyKind::RequestLess, None),
        Some(short) if short > 0 => add(RemedyKind::HoldLess { bytes: short }, None),
        _ => {}
    }
    if let Some(bytes) = shortfall {
        let units = record.units.as_ref().map(|units| saturating_sum(units.values().copied()));
        let is_possible = units.is_some_and(|units| units >= bytes);
        if short == Some(0) && is_possible && !record.is_of_driver {
            add(RemedyKind::FreeSegments { bytes }, None);
        }
        add(RemedyKind::LargerGpu { bytes }, None);
    }
    remedies
}

/// What would release memory that only other streams or pools can use, with its bytes.
fn stranded_memory(record: &OomRecord) -> impl Iterator<Item = (u64, RemedyKind)> {
    // Only graphs and MemPools can be deleted, and not that of the request.
    let other_pools = record.gap.groups.iter().filter(|group| {
        group.pool.is_private() && record.gap.request.is_some_and(|request| request.pool != group.pool.pool)
    });
    let on_streams = record.gap.stranded_stream.bytes;
    let in_pools = saturating_sum(other_pools.map(|group| group.free));
    let stranded = [
        (on_streams, RemedyKind::UseOneStream { bytes: on_streams }),
        (in_pools, RemedyKind::ReleasePools { bytes: in_pools }),
    ];
    stranded.into_iter().filter(|(bytes, _)| *bytes > 0)
}

/// The best settings that serve the request; without one, all that were tried, or one that remains
/// to be tried.
fn settings_to_try(
    analysis: &Analysis,
    record: &OomRecord,
    no_setting_helps: Option<bool>,
) -> Vec<(RemedyKind, Option<bool>)> {
    let predictions = analysis.predictions_of_oom(record.event.seq);
    let single = |setting: &str| {
        let is_over_limit = *predictions == OomPredictions::OverLimit && no_setting_helps.is_none();
        RemedyKind::AllocatorSetting { setting: setting.to_owned(), is_over_limit }
    };
    if let OomPredictions::Made(verdicts) = predictions {
        let helping = best_settings(verdicts);
        if !helping.is_empty() {
            return helping.into_iter().map(|setting| (single(setting), Some(true))).collect();
        }
        if !verdicts.is_empty() && verdicts.iter().all(|verdict| verdict.works == Some(false)) {
            let settings = verdicts.iter().map(|verdict| verdict.setting.clone()).collect();
            return vec![(RemedyKind::AllocatorSettings { settings }, Some(false))];
        }
    }
    let may_expand = may_use_expandable_segments(analysis, record);
    may_expand.then(|| (single(EXPANDABLE), no_setting_helps)).into_iter().collect()
}

/// The settings that work, those with the least reserved memory first. A setting is left out if one
/// with some or all of its options is better.
fn best_settings(verdicts: &[SettingVerdict]) -> Vec<&str> {
    let mut helping: Vec<_> = verdicts.iter().filter(|verdict| verdict.works == Some(true)).collect();
    helping.sort_by_key(|verdict| verdict.peak_reserved_bytes);
    let mut best: Vec<&str> = Vec::new();
    for verdict in helping {
        let has = |name: &str| options_of(&verdict.setting).any(|option| option == name);
        let adds_nothing = best.iter().any(|other| options_of(other).all(has));
        if best.len() < MAX_SETTINGS && !adds_nothing {
            best.push(&verdict.setting);
        }
    }
    best
}

/// The names of the options in a setting.
fn options_of(setting: &str) -> impl Iterator<Item = &str> {
    setting.split(',').filter_map(|option| option.split(':').next()).filter(|name| !name.is_empty())
}

/// Whether the request succeeds if all blocks of these stacks are freed before it.
fn freeing_works(
    record: &OomRecord,
    (free, short): (Option<u64>, Option<u64>),
    held: u64,
    stacks: &[StackId],
) -> Option<bool> {
    if short? > held {
        return Some(false);
    }
    let is_freed = |unit: &&Vec<StackId>| unit.iter().all(|stack| stacks.binary_search(stack).is_ok());
    let units = record.units.as_ref()?.iter().filter(|(unit, _)| is_freed(unit));
    let released = saturating_sum(units.map(|(_, bytes)| *bytes));
    (released.saturating_add(free?) >= record.needed_bytes()).then_some(true)
}

/// True if live blocks and the request need more pages than the device has for PyTorch.
fn no_setting_helps(record: &OomRecord, memory: MemoryAtOom) -> bool {
    let Some(free) = memory.free else { return false };
    let requested = record.event.size.checked_next_multiple_of(MIN_BLOCK).unwrap_or(u64::MAX);
    let pages = |bytes: u64| bytes.checked_next_multiple_of(SMALL_SEGMENT).unwrap_or(u64::MAX);
    let groups = &record.gap.groups;
    let mut pools: Vec<_> = groups.iter().map(|group| group.pool).chain(record.gap.request).collect();
    pools.sort_unstable();
    pools.dedup();
    let needed = if groups.is_empty() {
        record.live.saturating_add(requested)
    } else {
        let of_pool = |pool| {
            let own = groups.iter().filter(|group| group.pool == pool);
            let used = saturating_sum(own.map(|group| group.allocated.saturating_add(group.pending)));
            let more = if record.gap.request == Some(pool) { requested } else { 0 };
            pages(used.saturating_add(more))
        };
        let unknown_pool = if record.gap.request.is_none() { requested } else { 0 };
        saturating_sum(pools.into_iter().map(of_pool)).saturating_add(unknown_pool)
    };
    let reserved = record.event.aux[1];
    needed > reserved.saturating_add(free).saturating_sub(record.residual.unwrap_or(0))
}

/// True if the option is off and the allocator that PyTorch uses has it.
fn may_use_expandable_segments(analysis: &Analysis, record: &OomRecord) -> bool {
    let has = |text: &str| analysis.meta.allocator_conf().is_some_and(|conf| conf.contains(text));
    let is_used = record.gap.groups.iter().any(|group| group.is_expandable && group.reserved > 0);
    !has(EXPANDABLE) && !has("cudaMallocAsync") && !is_used
}
