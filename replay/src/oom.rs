//! Why an allocation failed, in one sentence, and what would and would not have helped.
//!
//! What is known at that moment: what was asked for, the live blocks, PyTorch's reserved bytes, the driver memory of this
//! process, and the size of the device where the metadata has it. PyTorch has given back its own cache before it reports
//! out of memory, so free bytes that remain reserved lie in segments that hold live blocks.

use crate::analysis::{Analysis, OomRecord};
use crate::report::{Oom, Remedy, SiteShare};

/// All described out-of-memory events of a trace.
pub fn ooms(trace: usize, analysis: &Analysis) -> Vec<Oom> {
    analysis.ooms.iter().map(|record| oom(trace, analysis, record)).collect()
}

fn oom(trace: usize, analysis: &Analysis, record: &OomRecord) -> Oom {
    let symbols = &analysis.symbols;
    let ordinal = record.event.device;
    let requested = record.event.size;
    let reserved = record.event.aux[1];
    let capacity = analysis.meta.number(&format!("device.{ordinal}.total_bytes"));
    let free = capacity.map(|capacity| capacity.saturating_sub(record.device_bytes.max(reserved)));
    let gap = reserved.saturating_sub(record.live);
    let largest = record.gap.largest_free;
    let sites = record.sites.iter().map(|(site, held)| SiteShare {
        site: symbols.site(*site, None),
        bytes: held.bytes,
        blocks: held.blocks,
    });
    Oom {
        trace,
        device: u32::from(ordinal),
        time_ns: record.event.time_ns.saturating_sub(analysis.start_ns),
        step: analysis.rule.source().map(|_| u64::from(record.step)),
        requested_bytes: requested,
        site: symbols.site(symbols.facts(record.stack).site, Some(record.stack)),
        live_bytes: record.live,
        reserved_bytes: reserved,
        device_free_bytes: free,
        why: why(requested, capacity, free, gap, largest, record.live),
        largest_free_block_bytes: largest,
        remedies: remedies(analysis, requested, free, gap, record.live),
        sites: sites.collect(),
    }
}

fn why(
    requested: u64,
    capacity: Option<u64>,
    free: Option<u64>,
    gap: u64,
    largest: Option<u64>,
    live: u64,
) -> String {
    let size = crate::sections::size;
    let asked = format!("{} were asked for", size(requested));
    let piece = largest.map_or_else(
        || "no free piece of it was large enough".to_owned(),
        |bytes| format!("the largest free piece of it was {}", size(bytes)),
    );
    match (capacity, free) {
        (Some(capacity), _) if requested > capacity => {
            format!("{asked}, more than the whole device has ({})", size(capacity))
        }
        (_, Some(free)) if gap.saturating_add(free) >= requested && gap > 0 => format!(
            "{asked}; PyTorch held {} that no tensor used, but {piece}, and the driver had {} left",
            size(gap),
            size(free)
        ),
        (_, Some(free)) => format!(
            "{asked}; live tensors filled {} and only {} were free in all ({} inside PyTorch, {} at the driver)",
            size(live),
            size(gap.saturating_add(free)),
            size(gap),
            size(free)
        ),
        (_, None) if gap >= requested => {
            format!("{asked}; PyTorch held {} that no tensor used, but {piece}", size(gap))
        }
        (_, None) => format!(
            "{asked}; live tensors filled {} and PyTorch held {} more; the size of the device is not known",
            size(live),
            size(gap)
        ),
    }
}

fn remedies(analysis: &Analysis, requested: u64, free: Option<u64>, gap: u64, live: u64) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let mut add = |action: String, works: Option<bool>| remedies.push(Remedy { action, works });
    let short = free.map(|free| requested.saturating_sub(gap.saturating_add(free)));
    let uses_expandable =
        analysis.meta.text("allocator_conf").is_some_and(|conf| conf.contains("expandable_segments:True"));
    if !uses_expandable {
        // Whatever the allocator does, it cannot give what is not there.
        let works = short.filter(|short| *short > 0).map(|_| false);
        add("set PYTORCH_ALLOC_CONF=expandable_segments:True".to_owned(), works);
    }
    add(
        "call torch.cuda.empty_cache() before it: PyTorch does so itself before it gives up".to_owned(),
        Some(false),
    );
    match short {
        Some(short) if short > live => {
            add("ask for less: the device cannot hold it even when empty".to_owned(), None);
        }
        Some(short) if short > 0 => {
            add(format!("hold at least {} less at this moment", crate::sections::size(short)), None);
        }
        _ => {}
    }
    remedies
}
