//! Receives the trace entries of PyTorch's allocator.
//!
//! An entry comes under the allocator's lock and without the GIL; its layout depends on the
//! version. The tracker reads each field by its offset and touches nothing else ([`entry`]). It
//! checks the first entries against driver calls and the reports of `profiler_hook`. If they
//! disagree, the layout is wrong: the tracker goes off for good, and the reports go on ([`state`]).
//!
//! The allocator emits the entries of one call on one thread, without a gap: `alloc`, then the
//! report of the block; `free_requested`, possibly `free_completed`, then the report; `oom`, then
//! its report. The tracker therefore stashes an entry per thread ([`StashedEntry`]) until the
//! report merges it, and both become one event. A later `free_completed` is an event of its own,
//! as is every entry about segments.

mod entry;
mod state;

use std::cell::Cell;

use gpumemtrace_format::event::FLAG_FREED_AT_ONCE;
use gpumemtrace_format::{ApiId, Counter, EventKind, TrackerState};
use gpumemtrace_recorder::{Draft, record_event};

use crate::panic_guard::catch_panic;
use entry::{
    ALLOC, ANNOTATE, FREE_COMPLETED, FREE_REQUESTED, OOM, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP,
    SEGMENT_UNMAP, SNAPSHOT, TraceEntry,
};
pub(super) use state::{
    TrackerPhase, WITHOUT_TRACKER, begin_search, expect_entries, give_up_silently, phase, search_again_later,
    set_attached, switch_off,
};
use state::{change_phase, layout};

/// The entry of a thread that waits for the report of the same block. Functions access it once per
/// call: finding a thread's copy may call into the loader.
struct StashedEntry {
    /// False if the other fields are stale.
    is_waiting: Cell<bool>,
    /// True if a `free_completed` followed the `free_requested`.
    is_completed: Cell<bool>,
    entry: Cell<TraceEntry>,
    /// Bytes that this thread last requested from the driver, until the tracker is settled.
    driver_bytes: Cell<u64>,
}

impl StashedEntry {
    /// Takes the waiting entry, and whether its free has completed.
    #[inline]
    fn take(&self) -> Option<(TraceEntry, bool)> {
        self.is_waiting.replace(false).then(|| (self.entry.get(), self.is_completed.get()))
    }
}

gpumemtrace_recorder::per_thread! {
    fn with_stash(&StashedEntry) = StashedEntry {
        is_waiting: Cell::new(false),
        is_completed: Cell::new(false),
        entry: Cell::new(TraceEntry::EMPTY),
        driver_bytes: Cell::new(0),
    }, "gpumemtrace_pending"
}

/// Notes the size of a driver allocation that the calling thread is about to request.
pub(super) fn note_driver_bytes(bytes: u64) {
    with_stash(|stash| stash.driver_bytes.set(bytes));
}

/// PyTorch calls this for every entry. The first argument is the (empty) state of a
/// `std::function`.
pub(super) unsafe extern "C" fn on_entry(_state: *const [usize; 2], entry: *const u64) {
    catch_panic(|| {
        let phase = phase();
        if phase == TrackerPhase::Off {
            return None;
        }
        let layout = layout()?;
        // SAFETY: PyTorch passes a `const TraceEntry&` of the version that the layout is for.
        handle_entry(phase, unsafe { TraceEntry::read(entry, layout) }, layout.actions);
        Some(())
    });
}

#[inline]
fn handle_entry(phase: TrackerPhase, entry: TraceEntry, actions: u32) {
    if phase != TrackerPhase::On && !entry.is_plausible(actions, with_stash(|stash| stash.driver_bytes.get()))
    {
        return disable_on_mismatch();
    }
    let kind = match entry.action {
        action if action >= actions => return count_mismatch(),
        ALLOC | FREE_REQUESTED | OOM => return stash_entry(phase, entry),
        FREE_COMPLETED if completes_stashed_free(&entry) => return,
        FREE_COMPLETED => EventKind::BLOCK_FREE_COMPLETED,
        SEGMENT_ALLOC => EventKind::SEGMENT_ALLOC,
        SEGMENT_FREE => EventKind::SEGMENT_FREE,
        SEGMENT_MAP => EventKind::SEGMENT_MAP,
        SEGMENT_UNMAP => EventKind::SEGMENT_UNMAP,
        SNAPSHOT => EventKind::TORCH_SNAPSHOT,
        ANNOTATE => EventKind::TORCH_ANNOTATE,
        _ => return count_mismatch(),
    };
    record_event(&Draft {
        device: entry.device,
        addr: entry.addr,
        size: entry.size,
        aux: [entry.stream, entry.pool],
        ..Draft::new(kind, ApiId::default())
    });
}

/// Stashes an entry for the report that follows.
#[inline]
fn stash_entry(phase: TrackerPhase, entry: TraceEntry) {
    let had_no_report = with_stash(|stash| {
        stash.entry.set(entry);
        stash.is_completed.set(false);
        stash.is_waiting.replace(true)
    });
    if had_no_report {
        if phase != TrackerPhase::On {
            return disable_on_mismatch();
        }
        count_mismatch();
    }
}

/// Marks the stashed free as completed. False if `completed` is about another block.
#[inline]
fn completes_stashed_free(completed: &TraceEntry) -> bool {
    with_stash(|stash| {
        let requested = stash.entry.get();
        let is_same =
            stash.is_waiting.get() && requested.action == FREE_REQUESTED && requested.addr == completed.addr;
        if is_same {
            stash.is_completed.set(true);
        }
        is_same
    })
}

/// Merges the stashed entry into the report of its block. The report stays as it is if there is no
/// entry or if that is about another block.
#[inline]
pub(super) fn merge_into(report: &mut Draft) {
    let phase = phase();
    if !matches!(phase, TrackerPhase::Attaching | TrackerPhase::Checking | TrackerPhase::On) {
        return;
    }
    let stashed = with_stash(StashedEntry::take);
    let Some((entry, is_completed)) = stashed.filter(|(entry, _)| matches_report(entry, report)) else {
        return match phase {
            TrackerPhase::On => count_mismatch(),
            TrackerPhase::Checking => disable_on_mismatch(),
            // The thread uses a device to which the tracker is not attached yet.
            _ => {}
        };
    };
    report.detail = Some(entry.detail());
    report.flags = if is_completed { FLAG_FREED_AT_ONCE } else { 0 };
    if report.kind == EventKind::BLOCK_OOM {
        report.addr = entry.addr;
    }
    if phase == TrackerPhase::Checking {
        change_phase(TrackerPhase::Checking, TrackerPhase::On);
    }
}

/// True if entry and report are about the same operation on the same block.
fn matches_report(entry: &TraceEntry, report: &Draft) -> bool {
    let is_same = match report.kind {
        EventKind::BLOCK_ALLOC => entry.action == ALLOC && entry.addr == report.addr,
        EventKind::BLOCK_FREE => entry.action == FREE_REQUESTED && entry.addr == report.addr,
        _ => entry.action == OOM,
    };
    is_same && entry.device == report.device && entry.size <= report.size
}

fn count_mismatch() {
    gpumemtrace_recorder::increment_counter(Counter::TrackerMismatches);
}

/// Switches the tracker off, unless an entry has been confirmed before.
#[cold]
fn disable_on_mismatch() {
    if change_phase(TrackerPhase::Checking, TrackerPhase::Off)
        || change_phase(TrackerPhase::Attaching, TrackerPhase::Off)
    {
        switch_off(
            TrackerState::Disagreed,
            Some(&format!(
                "the entries of PyTorch's allocator tracker do not match its blocks{WITHOUT_TRACKER}"
            )),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: u32, addr: u64, size: u64) -> TraceEntry {
        TraceEntry { action, device: 1, addr, size, stream: 9, pool: 0 }
    }

    fn report(kind: EventKind, addr: u64, size: u64) -> Draft {
        Draft { device: 1, addr, size, ..Draft::new(kind, ApiId::default()) }
    }

    #[test]
    fn report_matches_only_the_entry_of_its_own_block() {
        assert!(matches_report(&entry(ALLOC, 512, 500), &report(EventKind::BLOCK_ALLOC, 512, 512)));
        assert!(matches_report(&entry(FREE_REQUESTED, 512, 500), &report(EventKind::BLOCK_FREE, 512, 512)));
        assert!(matches_report(&entry(OOM, 77, 500), &report(EventKind::BLOCK_OOM, 0, 500)));
        let alloc = report(EventKind::BLOCK_ALLOC, 512, 512);
        assert!(!matches_report(&entry(ALLOC, 1024, 500), &alloc), "another address");
        assert!(!matches_report(&entry(ALLOC, 512, 513), &alloc), "larger than the block");
        assert!(!matches_report(&entry(FREE_REQUESTED, 512, 1), &alloc), "another operation");
    }

    #[test]
    fn free_completed_marks_the_stashed_free_of_the_same_block() {
        assert!(!completes_stashed_free(&entry(FREE_COMPLETED, 512, 4)));
        stash_entry(TrackerPhase::On, entry(FREE_REQUESTED, 512, 4));
        assert!(!completes_stashed_free(&entry(FREE_COMPLETED, 1024, 4)));
        assert!(completes_stashed_free(&entry(FREE_COMPLETED, 512, 4)));
        assert_eq!(with_stash(StashedEntry::take), Some((entry(FREE_REQUESTED, 512, 4), true)));
        assert_eq!(with_stash(StashedEntry::take), None);
    }
}
