//! Why a request failed, and which remedies would have helped.
//!
//! At that moment the trace shows the request, the live blocks, PyTorch's reserved bytes, the
//! driver memory of this process, and the size of the device if the metadata has it. PyTorch
//! returns its own cache before it reports out of memory, so free bytes that remain reserved lie in
//! segments with live blocks.

use crate::assemble::fragmentation::causes;
use crate::pass::{Analysis, OomRecord};
use crate::report::{
    Leak, LeakKind, LeakShape, Oom, OomCause, PluggableMode, Remedy, RemedyKind, Site, SiteBytes, SiteShare,
};
use crate::util::block_totals::{BlockTotals, saturating_sum};

/// All described out-of-memory errors of a trace.
pub(crate) fn ooms(trace: usize, analysis: &Analysis, leaks: &[Leak]) -> Vec<Oom> {
    analysis.ooms.iter().map(|record| oom(trace, analysis, record, leaks)).collect()
}

/// The size of each leak at that moment, at most what its call site held then.
fn growth(trace: usize, analysis: &Analysis, record: &OomRecord, leaks: &[Leak]) -> Vec<SiteBytes> {
    let step = u64::from(record.step);
    let leaks = leaks.iter().filter(|leak| {
        leak.trace == trace && leak.device == u32::from(record.event.device) && leak.kind == LeakKind::Tensors
    });
    let by_then = |leak: &Leak| match (leak.first_step, leak.last_step, leak.bytes_per_step) {
        (_, Some(last), _) if last <= step => leak.bytes,
        (Some(first), _, Some(rate)) => (rate.0 * step.saturating_sub(first) as f64) as u64,
        _ => leak.bytes,
    };
    let held_by = |leak: &Leak| {
        let line_of = |site: &Site| (site.file.clone(), site.line, site.function.clone(), site.is_backward);
        let of_line = |(site, held): &(_, BlockTotals)| {
            (line_of(&analysis.symbols.site(*site, None)) == line_of(&leak.site)).then_some(held.bytes)
        };
        record.sites.iter().find_map(of_line)
    };
    let mut growth: Vec<SiteBytes> = leaks
        .map(|leak| {
            // A retained graph has many call sites and is named after one.
            let is_of_line = leak.shape != LeakShape::RetainedGraph;
            let most = held_by(leak).filter(|_| is_of_line).unwrap_or(record.live);
            SiteBytes { site: leak.site.clone(), bytes: by_then(leak).min(most) }
        })
        .collect();
    growth.retain(|one| one.bytes > 0);
    growth.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    growth
}

fn oom(trace: usize, analysis: &Analysis, record: &OomRecord, leaks: &[Leak]) -> Oom {
    let symbols = &analysis.symbols;
    let ordinal = record.event.device;
    let requested = record.event.size;
    let reserved = record.event.aux[1];
    let capacity = analysis.capacity(ordinal);
    let free = capacity.map(|capacity| capacity.saturating_sub(record.device_bytes.max(reserved)));
    let gap = reserved.saturating_sub(record.live);
    let growth = growth(trace, analysis, record, leaks);
    let sites = record.sites.iter().map(|(site, held)| SiteShare {
        site: symbols.site(*site, None),
        bytes: held.bytes,
        blocks: held.blocks,
        categories: None,
        phases: None,
    });
    Oom {
        trace,
        device: u32::from(ordinal),
        time_ns: record.event.time_ns.saturating_sub(analysis.start_ns),
        step: analysis.reported_step(record.step),
        requested_bytes: requested,
        site: symbols.site(symbols.stack_info(record.stack).site, Some(record.stack)),
        live_bytes: record.live,
        reserved_bytes: reserved,
        device_free_bytes: free,
        device_total_bytes: capacity,
        cause: cause(requested, (capacity, free), gap),
        why: String::new(),
        largest_free_block_bytes: record.gap.largest_free,
        remedies: remedies(analysis, record, (free, gap), &growth),
        sites: sites.collect(),
        unused_causes: causes(analysis, &record.gap),
        growth,
        omitted: None,
    }
}

/// `gap` is what PyTorch had reserved and not allocated.
fn cause(requested: u64, (capacity, free): (Option<u64>, Option<u64>), gap: u64) -> OomCause {
    match (capacity, free) {
        (Some(capacity), _) if requested > capacity => OomCause::ExceedsDevice,
        (_, Some(free)) if gap.saturating_add(free) >= requested && gap > 0 => OomCause::NoFittingBlock,
        (_, Some(_)) => OomCause::DeviceFull,
        (_, None) if gap >= requested => OomCause::NoFittingBlock,
        (_, None) => OomCause::Unknown,
    }
}

/// A remedy works if its bytes suffice wherever they lie, and fails if they are too few. In between
/// the trace cannot tell, because PyTorch would have placed earlier blocks differently.
fn remedies(
    analysis: &Analysis,
    record: &OomRecord,
    (free, gap): (Option<u64>, u64),
    growth: &[SiteBytes],
) -> Vec<Remedy> {
    let (requested, live) = (record.event.size, record.live);
    let mut remedies = Vec::new();
    let mut add = |kind, works| remedies.push(Remedy { kind, action: String::new(), works });
    let short = free.map(|free| requested.saturating_sub(gap.saturating_add(free)));
    // No allocator can hand out memory that is not there.
    let fails_if_short = short.filter(|short| *short > 0).map(|_| false);
    for leak in growth {
        let works = short.and_then(|short| match leak.bytes {
            // With twice the request on top, some of it was contiguous or had never been taken.
            bytes if bytes >= short.saturating_add(requested.saturating_mul(2)) => Some(true),
            bytes if bytes < short => Some(false),
            _ => None,
        });
        let site = Box::new(Site { stack: Vec::new(), stack_order: None, ..leak.site.clone() });
        add(RemedyKind::FixLeak { site, bytes: leak.bytes }, works);
    }
    let uses_expandable =
        analysis.meta.text("allocator_conf").is_some_and(|conf| conf.contains("expandable_segments:True"));
    if matches!(analysis.pluggable(), Some(PluggableMode::Caching | PluggableMode::Uncached)) {
        add(RemedyKind::UseTorchAllocator, fails_if_short);
    } else if analysis.is_metal() {
        // The trace does not show whether PyTorch's own limit applied.
        add(RemedyKind::RaiseMpsLimit, None);
    } else if !uses_expandable {
        add(RemedyKind::ExpandableSegments, fails_if_short);
    }
    // Memory that is stranded in the pool of small blocks belongs to no graph and no MemPool.
    let other_pools = record
        .gap
        .groups
        .iter()
        .filter(|group| record.gap.request.is_some_and(|request| request.pool != group.pool.pool));
    let on_streams = record.gap.stranded_stream.bytes;
    let in_pools = saturating_sum(other_pools.map(|group| group.free));
    let stranded = [
        (on_streams, RemedyKind::UseOneStream { bytes: on_streams }),
        (in_pools, RemedyKind::ReleasePools { bytes: in_pools }),
    ];
    for (bytes, kind) in stranded.into_iter().filter(|(bytes, _)| *bytes > 0) {
        let works = free.filter(|free| bytes.saturating_add(*free) < requested).map(|_| false);
        add(kind, works);
    }
    add(RemedyKind::EmptyCache, Some(false));
    match short {
        Some(short) if short > live => add(RemedyKind::RequestLess, None),
        Some(short) if short > 0 => add(RemedyKind::HoldLess { bytes: short }, None),
        _ => {}
    }
    remedies
}
