//! `--fragmentation`: reserved bytes that no tensor uses, and who keeps them.

use std::fmt::Write as _;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{AsyncPool, Cause, Fragmentation, GapOverTime, PoolRow, Serves};
use gpumemtrace_replay::sections::size;

use super::sites::{Sites, short};
use super::{count, duration, percent, put, thousands};
use crate::output::Style;

/// Most culprits listed.
const MAX_CULPRITS: usize = 8;
/// Most pools listed.
const MAX_POOLS: usize = 8;
/// Most sizes listed.
const MAX_SIZES: usize = 4;

pub(super) fn write(out: &mut String, report: &Report, trace: usize, style: Style, _sites: &mut Sites) {
    let moments: Vec<_> =
        report.fragmentation.iter().flatten().filter(|moment| moment.trace == trace).collect();
    put(out, format_args!("{}", style.bold("Reserved by PyTorch and used by no tensor")));
    let driver_pools: Vec<_> =
        report.async_pools.iter().flatten().filter(|pool| pool.trace == trace).collect();
    if moments.is_empty() && driver_pools.is_empty() {
        put(out, format_args!("  PyTorch's allocator was not seen in this trace."));
    }
    for pool in driver_pools {
        async_pool(out, pool);
    }
    for moment in moments {
        out.push('\n');
        one(out, moment, style);
    }
    for course in report.gap_over_time.iter().flatten().filter(|course| course.trace == trace) {
        over_time(out, course);
    }
}

/// One moment.
pub(super) fn one(out: &mut String, moment: &Fragmentation, style: Style) {
    let when = match moment.at.why {
        "peak_reserved" => "when most was reserved",
        "oom" => "when memory ran out",
        "at" => "at the moment asked for",
        _ => "at the end",
    };
    let share = moment.gap_bytes as f64 / moment.reserved_bytes.max(1) as f64;
    put(
        out,
        format_args!(
            "  Device {}, {when} ({} in): {} of {} reserved ({})",
            moment.device,
            duration(moment.at.time_ns),
            style.bold(&size(moment.gap_bytes)),
            size(moment.reserved_bytes),
            percent(share)
        ),
    );
    for cause in &moment.causes {
        let words = in_words(cause);
        let colon = if cause.culprits.is_empty() { "" } else { ", by their lines:" };
        put(out, format_args!("  {:>11}  {words}{colon}", size(cause.bytes)));
        for culprit in cause.culprits.iter().take(MAX_CULPRITS) {
            put(out, format_args!("               {:>11}  {}", size(culprit.bytes), short(&culprit.site)));
        }
        if cause.culprits.len() > MAX_CULPRITS {
            let rest: u64 = cause.culprits[MAX_CULPRITS..].iter().map(|culprit| culprit.bytes).sum();
            put(out, format_args!("               {:>11}  other lines", size(rest)));
        }
    }
    pools(out, &moment.pools);
    usable(out, moment);
}

/// `large blocks`, `small blocks, stream 0x7f..., pool 0:1`.
fn place(serves: &Serves) -> String {
    let mut place = format!("{} blocks", serves.blocks);
    if serves.stream != 0 {
        let _ = write!(place, ", stream {:#x}", serves.stream);
    }
    match serves.pool {
        Some([0, 0]) | None => {}
        Some([first, second]) => {
            let _ = write!(place, ", pool {first}:{second}");
        }
    }
    place
}

fn pools(out: &mut String, pools: &[PoolRow]) {
    if pools.is_empty() {
        return;
    }
    put(out, format_args!("  {:>11}  {:>11}  {:>11}  {:>11}", "reserved", "in tensors", "free", "largest"));
    for pool in pools.iter().take(MAX_POOLS) {
        let kind = if pool.expandable { ", expandable" } else { "" };
        put(
            out,
            format_args!(
                "  {:>11}  {:>11}  {:>11}  {:>11}  {}{kind}, {}",
                size(pool.reserved_bytes),
                size(pool.allocated_bytes),
                size(pool.free_bytes),
                size(pool.largest_free_bytes),
                place(&pool.serves),
                count(pool.segments, "segment"),
            ),
        );
    }
    if pools.len() > MAX_POOLS {
        let rest = &pools[MAX_POOLS..];
        let reserved = rest.iter().map(|pool| pool.reserved_bytes).sum();
        put(
            out,
            format_args!(
                "  {:>11}  in {} more (--json names them)",
                size(reserved),
                count(rest.len() as u64, "pool")
            ),
        );
    }
}

/// The sizes that the run asks for most: would they have found room?
fn usable(out: &mut String, moment: &Fragmentation) {
    if moment.usable.is_empty() {
        return;
    }
    put(
        out,
        format_args!(
            "  Of the sizes that the run asks for most, so many would find room without the driver:"
        ),
    );
    for row in moment.usable.iter().take(MAX_SIZES) {
        put(
            out,
            format_args!(
                "  {:>11}  {:>14}  {} of {} free ({})",
                size(row.block_bytes),
                format!("{} at once", thousands(row.fit)),
                size(row.fit.saturating_mul(row.block_bytes)),
                size(row.free_bytes),
                place(&row.serves),
            ),
        );
    }
}

fn over_time(out: &mut String, course: &GapOverTime) {
    if course.points.is_empty() {
        return;
    }
    out.push('\n');
    let most = course.points.iter().max_by_key(|look| look.gap_bytes);
    let most = most.map_or((0, 0), |look| (look.gap_bytes, look.time_ns));
    let sum: u128 = course.points.iter().map(|look| u128::from(look.gap_bytes)).sum();
    let mean = (sum / course.points.len() as u128) as u64;
    put(
        out,
        format_args!(
            "  Device {}, over the run ({}): {} reserved and unused on average, {} at most ({} in)",
            course.device,
            count(course.looks, "look"),
            size(mean),
            size(most.0),
            duration(most.1)
        ),
    );
    if course.kept_by.is_empty() {
        return;
    }
    put(out, format_args!("  Lines whose tensors kept free memory from use:"));
    put(out, format_args!("  {:>11}  {:>11}  {:>11}", "on average", "at most", "of the time"));
    for keeper in course.kept_by.iter().take(MAX_CULPRITS) {
        put(
            out,
            format_args!(
                "  {:>11}  {:>11}  {:>11}  {}",
                size(keeper.mean_bytes),
                size(keeper.most_bytes),
                percent(keeper.share_of_time),
                short(&keeper.site)
            ),
        );
    }
}

fn async_pool(out: &mut String, pool: &AsyncPool) {
    let name = pool.pool.map_or_else(|| "own pool".to_owned(), |handle| format!("pool {handle:#x}"));
    put(
        out,
        format_args!(
            "  Device {}, the driver's {name} (cudaMallocAsync): {} allocated at the peak, {} at the end",
            pool.device,
            size(pool.peak_allocated_bytes),
            size(pool.allocated_bytes)
        ),
    );
    match (&pool.worst, &pool.last) {
        (Some(worst), Some(last)) => {
            for (what, answer) in [("most", worst), ("when asked last", last)] {
                put(
                    out,
                    format_args!(
                        "  {:>11}  reserved and unused, {what} ({} in): {} of {} were in blocks",
                        size(answer.unused_bytes),
                        duration(answer.time_ns),
                        size(answer.allocated_bytes),
                        size(answer.reserved_bytes)
                    ),
                );
            }
            put(
                out,
                format_args!(
                    "  Known for {} at which the program asked; between them it is unknown.",
                    count(pool.answers, "moment")
                ),
            );
        }
        _ => put(
            out,
            format_args!(
                "  What it held beyond that is unknown: nobody asked the driver (torch.cuda.memory_reserved() does)."
            ),
        ),
    }
}

/// What a cause means to whoever has never heard its name.
pub(super) fn in_words(cause: &Cause) -> &str {
    match cause.cause {
        "pinned" => "free, but cannot be given back: in segments that live blocks keep",
        "cache" => "in segments without a live block: torch.cuda.empty_cache() would give it back",
        "rounding" => "lost to rounding",
        "pending_free" => "given back, but another stream still uses it",
        "stranded_stream" => "free, but kept for another stream: in segments that live blocks keep",
        "stranded_pool" => "free, but kept for another pool (small blocks, a graph, a MemPool)",
        "unexplained" => "unexplained: the segments of PyTorch's allocator are not known",
        other => other,
    }
}
