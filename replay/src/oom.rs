//! Why an allocation failed, in one sentence, and what would and would not have helped.
//!
//! What is known at that moment: what was asked for, the live blocks, PyTorch's reserved bytes, the driver memory of this
//! process, and the size of the device where the metadata has it. PyTorch has given back its own cache before it reports
//! out of memory, so free bytes that remain reserved lie in segments that hold live blocks.

use crate::fragmentation::report::causes;
use crate::pass::{Analysis, OomRecord};
use crate::report::display::Vocabulary;
use crate::report::display::{format_bytes, format_site};
use crate::report::{Leak, Oom, Remedy, Site, SiteBytes, SiteShare};
use crate::util::block_totals::BlockTotals;

/// All described out-of-memory events of a trace.
pub(crate) fn ooms(trace: usize, analysis: &Analysis, leaks: &[Leak]) -> Vec<Oom> {
    analysis.ooms.iter().map(|record| oom(trace, analysis, record, leaks)).collect()
}

/// What each leak had come to by then; of a line no more than it held at that moment.
fn growth(trace: usize, analysis: &Analysis, record: &OomRecord, leaks: &[Leak]) -> Vec<SiteBytes> {
    let step = u64::from(record.step);
    let its = leaks.iter().filter(|leak| {
        leak.trace == trace && leak.device == u32::from(record.event.device) && leak.kind == "tensors"
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
    let mut growth: Vec<SiteBytes> = its
        .map(|leak| {
            // A graph is of many lines, and has the name of one.
            let is_of_line = leak.shape != "retained_graph";
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
    let largest = record.gap.largest_free;
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
        step: analysis.step_source.name().map(|_| u64::from(record.step)),
        requested_bytes: requested,
        site: symbols.site(symbols.stack_info(record.stack).site, Some(record.stack)),
        live_bytes: record.live,
        reserved_bytes: reserved,
        device_free_bytes: free,
        why: why(&analysis.vocabulary(), requested, capacity, free, gap, largest, record.live),
        largest_free_block_bytes: largest,
        remedies: remedies(analysis, record, (free, gap), &growth),
        sites: sites.collect(),
        unused: causes(analysis, &record.gap),
        growth,
        left_out: None,
    }
}

fn why(
    words: &Vocabulary,
    requested: u64,
    capacity: Option<u64>,
    free: Option<u64>,
    gap: u64,
    largest: Option<u64>,
    live: u64,
) -> String {
    let reserver = words.reserver;
    let asked = format!("{} were asked for", format_bytes(requested));
    let piece = largest.map_or_else(
        || "no free piece of it was large enough".to_owned(),
        |bytes| format!("the largest free piece of it was {}", format_bytes(bytes)),
    );
    match (capacity, free) {
        (Some(capacity), _) if requested > capacity => {
            format!("{asked}, more than the whole device has ({})", format_bytes(capacity))
        }
        (_, Some(free)) if gap.saturating_add(free) >= requested && gap > 0 => format!(
            "{asked}; {reserver} held {} that no tensor used, but {piece}, and the driver had {} left",
            format_bytes(gap),
            format_bytes(free)
        ),
        (_, Some(free)) => format!(
            "{asked}; live tensors filled {} and only {} were free in all ({} inside {reserver}, {} at the driver)",
            format_bytes(live),
            format_bytes(gap.saturating_add(free)),
            format_bytes(gap),
            format_bytes(free)
        ),
        (_, None) if gap >= requested => {
            format!("{asked}; {reserver} held {} that no tensor used, but {piece}", format_bytes(gap))
        }
        (_, None) => format!(
            "{asked}; live tensors filled {} and {reserver} held {} more; {}",
            format_bytes(live),
            format_bytes(gap),
            if words.is_metal {
                "the device shares the system's memory, and by which limit it was refused is not known"
            } else {
                "the size of the device is not known"
            }
        ),
    }
}

/// What could be done. A remedy works where the bytes say so wherever they lie, does not where they are too few, and else the
/// trace does not tell: what PyTorch would have made of them depends on what it would have done before.
fn remedies(
    analysis: &Analysis,
    record: &OomRecord,
    (free, gap): (Option<u64>, u64),
    growth: &[SiteBytes],
) -> Vec<Remedy> {
    let (requested, live) = (record.event.size, record.live);
    let mut remedies = Vec::new();
    let mut add = |action: String, works: Option<bool>| remedies.push(Remedy { action, works });
    let short = free.map(|free| requested.saturating_sub(gap.saturating_add(free)));
    for grown in growth {
        let works = short.and_then(|short| match grown.bytes {
            // As much again as was asked for: some of it was in one piece, or had never been taken.
            bytes if bytes >= short.saturating_add(requested.saturating_mul(2)) => Some(true),
            bytes if bytes < short => Some(false),
            _ => None,
        });
        add(
            format!(
                "do not keep what {} keeps ({} by then)",
                format_site(&grown.site),
                format_bytes(grown.bytes)
            ),
            works,
        );
    }
    let uses_expandable =
        analysis.meta.text("allocator_conf").is_some_and(|conf| conf.contains("expandable_segments:True"));
    let is_own = matches!(analysis.meta.text("pluggable"), Some("caching" | "uncached"));
    if is_own {
        let action =
            "use PyTorch's own allocator, with PYTORCH_ALLOC_CONF=expandable_segments:True".to_owned();
        add(action, short.filter(|short| *short > 0).map(|_| false));
    } else if analysis.vocabulary().is_metal {
        // The limit is PyTorch's own, and whether it was that one is not in the trace.
        add(
            "raise PYTORCH_MPS_HIGH_WATERMARK_RATIO (the system may then run out of memory)".to_owned(),
            None,
        );
    } else if !uses_expandable {
        // Whatever the allocator does, it cannot give what is not there.
        let works = short.filter(|short| *short > 0).map(|_| false);
        add("set PYTORCH_ALLOC_CONF=expandable_segments:True".to_owned(), works);
    }
    // What is stranded among small blocks is no graph's and no pool's.
    let in_other_pools = record
        .gap
        .groups
        .iter()
        .filter(|group| record.gap.request.is_some_and(|request| request.pool != group.pool.pool));
    let stranded = [
        (record.gap.stranded_stream.bytes, "allocate on one stream, or free before another stream goes on"),
        (
            crate::util::block_totals::saturating_sum(in_other_pools.map(|group| group.free)),
            "release the graphs or memory pools that keep the rest",
        ),
    ];
    for (bytes, action) in stranded.into_iter().filter(|(bytes, _)| *bytes > 0) {
        let works = free.filter(|free| bytes.saturating_add(*free) < requested).map(|_| false);
        add(format!("{action} ({} were kept so)", format_bytes(bytes)), works);
    }
    add(
        format!(
            "call {} before it: {} does so itself before it gives up",
            analysis.vocabulary().empty_cache,
            if analysis.vocabulary().is_metal { "PyTorch" } else { analysis.vocabulary().reserver }
        ),
        Some(false),
    );
    match short {
        Some(short) if short > live => {
            add("ask for less: the device cannot hold it even when empty".to_owned(), None);
        }
        Some(short) if short > 0 => {
            add(format!("hold at least {} less at this moment", format_bytes(short)), None);
        }
        _ => {}
    }
    remedies
}
