//! Limits what a history adds to the memory of an analysis, counted in allocated bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::{AnalysisOptions, report};
use gpumemtrace_synthetic::dice::Dice;
use gpumemtrace_synthetic::{Synthetic, analyse_part};

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

struct CountingAllocator;

fn count_growth(bytes: usize) {
    let live = LIVE_BYTES.fetch_add(bytes, Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Relaxed);
}

// SAFETY: forwards every call to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_growth(layout.size());
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    // Large allocations grow by moving pages, so they never exist twice.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        count_growth(new_size);
        // SAFETY: the caller's own promise.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Blocks that the run leaks.
const BLOCKS: usize = 60_000;
/// Limit of the bytes for each block in each exact state. The run needs 7.
const BLOCK_BYTES: usize = 10;
/// Limit of the bytes by call site, category and pool over time.
const COMPOSITION_BYTES: usize = 3 << 20;
/// Limit of the rest of a history: blocks by birth and death, and series.
const OTHER_BYTES: usize = 1 << 20;

/// A leak with states that differ at the peak, at the most reserved bytes, at the largest gap and
/// at the end.
fn leaking_run() -> Synthetic {
    let mut run = Synthetic::new();
    run.stream = Some(0);
    let mut dice = Dice::new(7);
    let lines: Vec<NodeId> = (1..20).map(|line| run.frame(NodeId::NONE, "/work/a.py", "f", line)).collect();
    let mut kept = Vec::new();
    for index in 0..BLOCKS {
        let line = lines[index % lines.len()];
        kept.push((run.alloc(line, 512 * dice.within(1, 40)), line));
        let temporary = run.alloc(line, 512 * dice.within(1, 40));
        run.release(temporary, line);
    }
    for (addr, line) in kept.drain(..BLOCKS / 20) {
        run.release(addr, line);
    }
    run
}

#[test]
fn history_of_a_leak_adds_a_few_bytes_per_block() {
    let file = leaking_run().file(10_000);
    let begin = LIVE_BYTES.load(Relaxed);
    let kept_by = |keeps_history| {
        let options = AnalysisOptions { keeps_history, ..AnalysisOptions::default() };
        let analysis = analyse_part(&file, options);
        (LIVE_BYTES.load(Relaxed) - begin, analysis)
    };
    let (without, _) = kept_by(false);
    let (with, analysis) = kept_by(true);
    let mut analyses = [analysis];
    PEAK_BYTES.store(0, Relaxed);
    drop(report(&analyses, &[]));
    let report_peak = PEAK_BYTES.swap(0, Relaxed);
    // The tables of the analysis become those of the history.
    let history = analyses[0].take_history().expect("a history");
    let history_peak = PEAK_BYTES.load(Relaxed);
    let limit = report_peak + OTHER_BYTES;
    assert!(history_peak <= limit, "{history_peak} bytes while the history is taken, at most {limit}");
    let placed: usize = history.devices[0].states.iter().map(|state| state.blocks().len()).sum();
    assert!(placed >= 4 * (BLOCKS - BLOCKS / 20), "the four key moments, and more");
    let limit = without + placed * BLOCK_BYTES + COMPOSITION_BYTES + OTHER_BYTES;
    assert!(with <= limit, "{with} bytes with a history, {without} without, at most {limit}");
}
