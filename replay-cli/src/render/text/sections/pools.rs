//! Pools of PyTorch's allocator and of the driver: what they hold, and what would fit into them.

use crate::render::wording::Vocabulary;
use crate::render::wording::fragmentation::{name_new_segment, name_pool};
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::{AsyncPool, AsyncPoolSample, Fragmentation, PoolMemory, PoolRow};

use crate::terminal::format::{format_count, format_duration, format_number, put_line, size_column};
use crate::terminal::layout::display_width;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most pools listed without `--top`.
const MAX_POOLS: usize = 8;
/// Most block sizes listed.
const MAX_SIZES: usize = 4;

/// A column head above sizes.
pub(super) fn size_head(text: &str) -> String {
    format!("{text:>width$}", width = display_width(&size_column(0)))
}

/// PyTorch's memory by the requests that it serves.
pub(super) fn render_pools(out: &mut String, pools: &[PoolRow], words: &Vocabulary, style: Style) {
    if pools.is_empty() {
        return;
    }
    let most = style.row_limit(MAX_POOLS);
    let heads = ["reserved", "allocated", "free"].map(size_head);
    let largest = format!("{:>width$}", "largest free", width = display_width(&heads[0]) + 2);
    put_line(out, format_args!("  {}{largest}  for", heads.join("  ")));
    for pool in pools.iter().take(most) {
        let expandable = if pool.is_expandable { ", expandable" } else { "" };
        put_line(
            out,
            format_args!(
                "  {}  {}  {}  {}  {HANG}{}{expandable} ({})",
                size_column(pool.reserved_bytes),
                size_column(pool.allocated_bytes),
                size_column(pool.free_bytes),
                size_column(pool.largest_free_bytes),
                name_pool(&pool.key),
                format_count(pool.segments, words.segment),
            ),
        );
    }
    if pools.len() > most {
        let rest = &pools[most..];
        let reserved = rest.iter().map(|pool| pool.reserved_bytes).sum();
        let others = format_count(rest.len() as u64, "other pool");
        put_line(out, format_args!("  {}  {HANG}in {others} (see --json)", size_column(reserved)));
    }
}

/// How many blocks of the most requested sizes fit into free memory.
pub(super) fn render_fit(out: &mut String, moment: &Fragmentation, words: &Vocabulary) {
    if moment.common_sizes.is_empty() {
        return;
    }
    let new = name_new_segment(words);
    put_line(out, format_args!("  Allocations of the most requested sizes that fit without {new}:"));
    for row in moment.common_sizes.iter().take(MAX_SIZES) {
        put_line(
            out,
            format_args!(
                "  {}  {:>11}  {HANG}{} of {} free ({})",
                size_column(row.block_bytes),
                format!("{} fit", format_number(row.fitting_blocks)),
                format_bytes(row.fitting_blocks.saturating_mul(row.block_bytes)),
                format_bytes(row.free_bytes),
                name_pool(&row.key),
            ),
        );
    }
}

/// A stream-ordered pool of the driver. Only the program's own queries show what it holds.
pub(super) fn render_async_pool(out: &mut String, pool: &AsyncPool) {
    let name = pool.pool.map_or_else(|| "default pool".to_owned(), |handle| format!("pool {handle:#x}"));
    let place = match (pool.memory, pool.device) {
        (PoolMemory::Host, _) => "Host memory".to_owned(),
        (PoolMemory::Managed, _) => "Managed memory".to_owned(),
        (PoolMemory::Device, Some(device)) => format!("GPU {device}"),
        (PoolMemory::Device, None) => "An unknown GPU".to_owned(),
    };
    put_line(
        out,
        format_args!(
            "  {place}, {name} of the driver (cudaMallocAsync): {} allocated at the peak, {} at the end",
            format_bytes(pool.peak_allocated_bytes),
            format_bytes(pool.allocated_bytes)
        ),
    );
    let (Some(worst), Some(last)) = (&pool.most_unused, &pool.last) else {
        // PyTorch uses pools of device memory only.
        let hint =
            if pool.memory == PoolMemory::Device { " (torch.cuda.memory_reserved() does)" } else { "" };
        put_line(out, format_args!("  Its reserved memory is unknown: the program never queried it{hint}."));
        return;
    };
    for (which, sample) in [("highest", worst), ("last", last)] {
        let AsyncPoolSample { time_ns, reserved_bytes, allocated_bytes, unused_bytes } = *sample;
        put_line(
            out,
            format_args!(
                "  {}  {HANG}unused reserved, {which} query ({} in): {} of {} reserved were allocated",
                size_column(unused_bytes),
                format_duration(time_ns),
                format_bytes(allocated_bytes),
                format_bytes(reserved_bytes)
            ),
        );
    }
    put_line(
        out,
        format_args!(
            "  Known at {} of the program; unknown in between.",
            format_number_of_queries(pool.samples)
        ),
    );
}

fn format_number_of_queries(number: u64) -> String {
    if number == 1 { "1 query".to_owned() } else { format!("{} queries", format_number(number)) }
}
