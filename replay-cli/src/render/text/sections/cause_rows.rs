//! Rows about reserved and unused memory: by what segments serve, by the sizes asked for, over the run, and of the driver's pools.

use std::fmt::Write as _;

use crate::render::wording::Vocabulary;
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::AsyncPool;
use gpumemtrace_replay::report::Fragmentation;
use gpumemtrace_replay::report::FragmentationOverTime;
use gpumemtrace_replay::report::PoolInfo;
use gpumemtrace_replay::report::PoolRow;

use crate::render::text::sites::short_site;
use crate::terminal::format::{
    format_count, format_duration, format_number, format_percent, put_line, size_column,
};
use crate::terminal::layout::display_width;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most pools listed.
const MAX_POOLS: usize = 8;
/// Most sizes listed.
const MAX_SIZES: usize = 4;
/// Most lines listed.
const MAX_KEEPERS: usize = 8;

/// `large blocks`, `small blocks, stream 0x7f..., pool 0:1`.
fn format_pool(serves: &PoolInfo) -> String {
    let mut place = format!("{} blocks", serves.blocks.name());
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

/// PyTorch's memory by what it serves.
pub(in crate::render::text) fn render_pools(
    out: &mut String,
    pools: &[PoolRow],
    words: &Vocabulary,
    style: Style,
) {
    if pools.is_empty() {
        return;
    }
    let most = style.row_limit(MAX_POOLS);
    let title = |text: &str| format!("{text:>width$}", width = display_width(&size_column(0)));
    put_line(
        out,
        format_args!(
            "  {}  {}  {}  {}",
            title("reserved"),
            title("in tensors"),
            title("free"),
            title("largest")
        ),
    );
    for pool in pools.iter().take(most) {
        let kind = if pool.is_expandable { ", expandable" } else { "" };
        put_line(
            out,
            format_args!(
                "  {}  {}  {}  {}  {HANG}{}{kind}, {}",
                size_column(pool.reserved_bytes),
                size_column(pool.allocated_bytes),
                size_column(pool.free_bytes),
                size_column(pool.largest_free_bytes),
                format_pool(&pool.key),
                format_count(pool.segments, words.segment),
            ),
        );
    }
    if pools.len() > most {
        let rest = &pools[most..];
        let reserved = rest.iter().map(|pool| pool.reserved_bytes).sum();
        put_line(
            out,
            format_args!(
                "  {}  {HANG}in {} more (--json names them)",
                size_column(reserved),
                format_count(rest.len() as u64, "pool")
            ),
        );
    }
}

/// The sizes that the run asks for most: would they have found room?
pub(in crate::render::text) fn render_usable(out: &mut String, moment: &Fragmentation, words: &Vocabulary) {
    if moment.common_sizes.is_empty() {
        return;
    }
    put_line(
        out,
        format_args!(
            "  Of the sizes that the run asks for most, so many would find room without {}:",
            words.source
        ),
    );
    for row in moment.common_sizes.iter().take(MAX_SIZES) {
        put_line(
            out,
            format_args!(
                "  {}  {:>14}  {HANG}{} of {} free ({})",
                size_column(row.block_bytes),
                format!("{} at once", format_number(row.fitting_blocks)),
                format_bytes(row.fitting_blocks.saturating_mul(row.block_bytes)),
                format_bytes(row.free_bytes),
                format_pool(&row.key),
            ),
        );
    }
}

/// The gap over the whole run, and whose blocks kept it.
pub(in crate::render::text) fn render_gap_over_time(
    out: &mut String,
    course: &FragmentationOverTime,
    style: Style,
) {
    if course.points.is_empty() {
        return;
    }
    out.push('\n');
    let most = course.points.iter().max_by_key(|look| look.gap_bytes);
    let most = most.map_or((0, 0), |look| (look.gap_bytes, look.time_ns));
    let sum: u128 = course.points.iter().map(|look| u128::from(look.gap_bytes)).sum();
    let mean = (sum / course.points.len() as u128) as u64;
    put_line(
        out,
        format_args!(
            "  Device {}, over the run ({}): {} reserved and unused on average, {} at most ({} in)",
            course.device,
            format_count(course.observations, "look"),
            format_bytes(mean),
            format_bytes(most.0),
            format_duration(most.1)
        ),
    );
    if course.pinned_by.is_empty() {
        return;
    }
    put_line(out, format_args!("  Lines whose tensors kept free memory from use:"));
    let title = |text: &str| format!("{text:>width$}", width = display_width(&size_column(0)));
    put_line(out, format_args!("  {}  {}  {:>11}", title("on average"), title("at most"), "of the time"));
    for keeper in course.pinned_by.iter().take(style.row_limit(MAX_KEEPERS)) {
        put_line(
            out,
            format_args!(
                "  {}  {}  {:>11}  {HANG}{}",
                size_column(keeper.mean_bytes),
                size_column(keeper.most_bytes),
                format_percent(keeper.share_of_time),
                short_site(&keeper.site)
            ),
        );
    }
}

/// A pool of the driver.
pub(in crate::render::text) fn render_async_pool(out: &mut String, pool: &AsyncPool) {
    let name = pool.pool.map_or_else(|| "own pool".to_owned(), |handle| format!("pool {handle:#x}"));
    put_line(
        out,
        format_args!(
            "  Device {}, the driver's {name} (cudaMallocAsync): {} allocated at the peak, {} at the end",
            pool.device,
            format_bytes(pool.peak_allocated_bytes),
            format_bytes(pool.allocated_bytes)
        ),
    );
    match (&pool.most_unused, &pool.last) {
        (Some(worst), Some(last)) => {
            for (what, answer) in [("most", worst), ("when asked last", last)] {
                put_line(
                    out,
                    format_args!(
                        "  {}  {HANG}reserved and unused, {what} ({} in): {} of {} were in blocks",
                        size_column(answer.unused_bytes),
                        format_duration(answer.time_ns),
                        format_bytes(answer.allocated_bytes),
                        format_bytes(answer.reserved_bytes)
                    ),
                );
            }
            put_line(
                out,
                format_args!(
                    "  Known for {} at which the program asked; between them it is unknown.",
                    format_count(pool.samples, "moment")
                ),
            );
        }
        _ => put_line(
            out,
            format_args!(
                "  What it held beyond that is unknown: nobody asked the driver (torch.cuda.memory_reserved() does)."
            ),
        ),
    }
}
