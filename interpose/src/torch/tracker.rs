//! What PyTorch's allocator tells its trackers, entry by entry.
//!
//! Constraint: an entry comes under the allocator's lock, without the GIL, and its fields lie where the version's headers say.
//! Consequence: each field is read by its offset, nothing else is touched; and the first entries are held against what the
//! driver was asked for and what the base hook sees. If they disagree, the entries are not what we take them for: tracking
//! goes off for good, the base hook goes on.
//!
//! Entries of one call, on one thread, without a gap: `alloc`, then the report of the block; `free_requested`, perhaps
//! `free_completed`, then the report; `oom`, then its report. So the part of the tracker waits in the thread's [`Pending`]
//! for the report, and both are one event. A `free_completed` that comes later, and everything about segments, is an event
//! of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use gpumemtrace_format::event::{FREED_AT_ONCE, NO_POOL, pool_number};
use gpumemtrace_format::{ApiId, Counter, Detail, EventKind, TrackerState};
use gpumemtrace_recorder::{Draft, record_event};

use super::layouts::Layout;
use crate::guard::quietly;

const ALLOC: u32 = 0;
const FREE_REQUESTED: u32 = 1;
const FREE_COMPLETED: u32 = 2;
const SEGMENT_ALLOC: u32 = 3;
const SEGMENT_FREE: u32 = 4;
const SEGMENT_MAP: u32 = 5;
const SEGMENT_UNMAP: u32 = 6;
const SNAPSHOT: u32 = 7;
const OOM: u32 = 8;
const ANNOTATE: u32 = 9;
/// What is said when the base hook goes on alone.
pub(super) const WITHOUT: &str = ": what tensors asked for, their streams and pools, and PyTorch's segments are not \
                                  recorded. Every block and every driver call is.";
/// More than any machine has.
const MAX_DEVICES: u8 = 64;
/// PyTorch cuts blocks at multiples of this.
const BLOCK_ALIGNMENT: u64 = 512;

/// How far we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    /// No allocator was met yet.
    Waiting,
    /// A thread is looking for it.
    Trying,
    /// The tracker is being attached, device by device: entries may come, and blocks without one too.
    Attaching,
    /// Attached; no entry has been confirmed yet.
    Checking,
    /// Attached and confirmed.
    On,
    /// Never, or no more.
    Off,
}

impl Phase {
    /// True when nothing is left to find out.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::On | Self::Off)
    }
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Waiting as u8);
static LAYOUT: AtomicPtr<Layout> = AtomicPtr::new(std::ptr::null_mut());

/// An entry that waits for the report of the same block. Asked for once a call: finding it is a call into the loader.
struct Pending {
    /// False: the entry is an old one.
    waits: Cell<bool>,
    /// Whether its free was completed at once.
    completed: Cell<bool>,
    entry: Cell<Entry>,
    /// The driver memory that this thread asked for last, while that is of interest.
    driver_bytes: Cell<u64>,
}

impl Pending {
    /// The entry, which then waits no more.
    #[inline]
    fn take(&self) -> Option<(Entry, bool)> {
        self.waits.replace(false).then(|| (self.entry.get(), self.completed.get()))
    }
}

gpumemtrace_recorder::per_thread! {
    fn with_pending(&Pending) = Pending {
        waits: Cell::new(false),
        completed: Cell::new(false),
        entry: Cell::new(Entry::NOTHING),
        driver_bytes: Cell::new(0),
    }, "gpumemtrace_pending"
}

/// Where we are.
#[inline]
pub(super) fn phase() -> Phase {
    match PHASE.load(Ordering::Acquire) {
        0 => Phase::Waiting,
        1 => Phase::Trying,
        2 => Phase::Attaching,
        3 => Phase::Checking,
        4 => Phase::On,
        _ => Phase::Off,
    }
}

fn change(from: Phase, to: Phase) -> bool {
    PHASE.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// True for the one thread that may look for the allocator.
pub(super) fn begin_trying() -> bool {
    change(Phase::Waiting, Phase::Trying)
}

/// It is not there yet.
pub(super) fn wait_again() {
    change(Phase::Trying, Phase::Waiting);
}

/// There is no place for a tracker.
pub(super) fn never() {
    change(Phase::Trying, Phase::Off);
}

/// There is or will be no tracker: noted in the trace, and said if it is not the program's own choice.
pub(super) fn switch_off(state: TrackerState, line: Option<&str>) {
    PHASE.store(Phase::Off as u8, Ordering::Release);
    note(state);
    if let Some(line) = line {
        gpumemtrace_recorder::print_diagnostic(&[line]);
    }
}

/// Entries may come from now on, with this layout.
pub(super) fn expect_entries(layout: &'static Layout) {
    LAYOUT.store(std::ptr::from_ref(layout).cast_mut(), Ordering::Release);
    PHASE.store(Phase::Attaching as u8, Ordering::Release);
    note(TrackerState::Attached);
}

/// It is attached to every device.
pub(super) fn attached() {
    change(Phase::Attaching, Phase::Checking);
}

fn note(state: TrackerState) {
    record_event(&Draft { aux: [state as u64, 0], ..Draft::new(EventKind::TRACKER, ApiId::default()) });
}

/// The calling thread is about to ask the driver for this much.
pub(super) fn note_driver_bytes(bytes: u64) {
    with_pending(|pending| pending.driver_bytes.set(bytes));
}

/// One `TraceEntry`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    action: u32,
    device: u8,
    addr: u64,
    size: u64,
    stream: u64,
    pool: u64,
}

impl Entry {
    const NOTHING: Self = Self { action: 0, device: 0, addr: 0, size: 0, stream: 0, pool: 0 };

    /// # Safety
    /// `entry` is a `TraceEntry` of the version that `layout` describes.
    #[inline]
    unsafe fn read(entry: *const u64, layout: &Layout) -> Self {
        // SAFETY: the caller's promise; all fields are plain numbers at their natural alignment.
        let word = |offset: usize| unsafe { entry.byte_add(offset).read() };
        Self {
            // SAFETY: as above.
            action: unsafe { entry.byte_add(layout.action).cast::<u32>().read() },
            // SAFETY: as above; where the field is wider, this is its low byte.
            device: unsafe { entry.byte_add(layout.device).cast::<u8>().read() },
            addr: word(layout.addr),
            size: word(layout.size),
            stream: word(layout.stream),
            pool: layout.pool.map_or(NO_POOL, |pool| pool_number(word(pool), word(pool + 8))),
        }
    }

    fn detail(&self) -> Detail {
        Detail { requested_bytes: self.size, stream: self.stream, pool: self.pool }
    }
}

/// PyTorch calls this for every entry. The first argument is the (empty) state of a `std::function`.
pub(super) unsafe extern "C" fn on_entry(_state: *const [usize; 2], entry: *const u64) {
    quietly(|| {
        let phase = phase();
        if phase == Phase::Off {
            return None;
        }
        // SAFETY: set before the tracker was attached, to a table that is never freed.
        let layout = unsafe { LAYOUT.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: PyTorch passes a `const TraceEntry&` of the version that the table is for.
        take(phase, unsafe { Entry::read(entry, layout) }, layout.actions);
        Some(())
    });
}

#[inline]
fn take(phase: Phase, entry: Entry, actions: u32) {
    if phase != Phase::On && !is_plausible(&entry, actions) {
        return disagree();
    }
    let kind = match entry.action {
        action if action >= actions => return mismatch(),
        ALLOC | FREE_REQUESTED | OOM => return put_aside(phase, entry),
        FREE_COMPLETED if completes_pending(&entry) => return,
        FREE_COMPLETED => EventKind::BLOCK_FREE_COMPLETED,
        SEGMENT_ALLOC => EventKind::SEGMENT_ALLOC,
        SEGMENT_FREE => EventKind::SEGMENT_FREE,
        SEGMENT_MAP => EventKind::SEGMENT_MAP,
        SEGMENT_UNMAP => EventKind::SEGMENT_UNMAP,
        SNAPSHOT => EventKind::TORCH_SNAPSHOT,
        ANNOTATE => EventKind::TORCH_ANNOTATE,
        _ => return mismatch(),
    };
    record_event(&Draft {
        device: entry.device,
        addr: entry.addr,
        size: entry.size,
        aux: [entry.stream, entry.pool],
        ..Draft::new(kind, ApiId::default())
    });
}

/// Whether an entry can be one at all, held against what this thread asked the driver for where it is a segment.
fn is_plausible(entry: &Entry, actions: u32) -> bool {
    let asked = with_pending(|pending| pending.driver_bytes.get());
    let is_segment_right = match entry.action {
        // An allocator that the program plugged into a pool may round up what it passes on.
        SEGMENT_ALLOC => asked == 0 || entry.size <= asked,
        SEGMENT_MAP => asked == 0 || entry.size.is_multiple_of(asked),
        _ => true,
    };
    let is_block = entry.action <= SEGMENT_UNMAP;
    let is_place =
        !is_block || entry.addr.is_multiple_of(BLOCK_ALIGNMENT) && entry.addr != 0 && entry.size > 0;
    entry.action < actions && entry.device < MAX_DEVICES && is_place && is_segment_right
}

#[inline]
fn put_aside(phase: Phase, entry: Entry) {
    let report_missing = with_pending(|pending| {
        pending.entry.set(entry);
        pending.completed.set(false);
        pending.waits.replace(true)
    });
    if report_missing {
        if phase != Phase::On {
            return disagree();
        }
        mismatch();
    }
}

/// True if the block is the one whose free is being reported.
#[inline]
fn completes_pending(completed: &Entry) -> bool {
    with_pending(|pending| {
        let requested = pending.entry.get();
        let is_same =
            pending.waits.get() && requested.action == FREE_REQUESTED && requested.addr == completed.addr;
        if is_same {
            pending.completed.set(true);
        }
        is_same
    })
}

/// Joins what the tracker said of a block to its report. A report without an entry, or of something else, keeps what it has.
#[inline]
pub(super) fn join(draft: &mut Draft) {
    let phase = phase();
    if !matches!(phase, Phase::Attaching | Phase::Checking | Phase::On) {
        return;
    }
    let waiting = with_pending(Pending::take);
    let Some((entry, completed)) = waiting.filter(|(entry, _)| is_of(entry, draft)) else {
        return match phase {
            Phase::On => mismatch(),
            Phase::Checking => disagree(),
            // A thread on a device that has no tracker yet.
            _ => {}
        };
    };
    draft.detail = Some(entry.detail());
    draft.flags = if completed { FREED_AT_ONCE } else { 0 };
    if draft.kind == EventKind::BLOCK_OOM {
        draft.addr = entry.addr;
    }
    if phase == Phase::Checking {
        change(Phase::Checking, Phase::On);
    }
}

/// Whether entry and report speak of the same thing.
fn is_of(entry: &Entry, report: &Draft) -> bool {
    let is_same = match report.kind {
        EventKind::BLOCK_ALLOC => entry.action == ALLOC && entry.addr == report.addr,
        EventKind::BLOCK_FREE => entry.action == FREE_REQUESTED && entry.addr == report.addr,
        _ => entry.action == OOM,
    };
    is_same && entry.device == report.device && entry.size <= report.size
}

fn mismatch() {
    gpumemtrace_recorder::increment_counter(Counter::TrackerMismatches);
}

#[cold]
fn disagree() {
    if change(Phase::Checking, Phase::Off) || change(Phase::Attaching, Phase::Off) {
        switch_off(
            TrackerState::Disagreed,
            Some(&format!("PyTorch's allocator tracker does not tell what its allocator does{WITHOUT}")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: u32, addr: u64, size: u64) -> Entry {
        Entry { action, device: 1, addr, size, stream: 9, pool: 0 }
    }

    fn report(kind: EventKind, addr: u64, size: u64) -> Draft {
        Draft { device: 1, addr, size, ..Draft::new(kind, ApiId::default()) }
    }

    #[test]
    fn fields_are_read_where_the_table_says() {
        let layout = Layout {
            release: "0.0",
            action: 0,
            device: 4,
            addr: 8,
            stream: 32,
            size: 40,
            pool: Some(48),
            actions: 9,
        };
        // Eight words: action and device, address, two of a shared_ptr, stream, size, pool.
        let words: [u64; 8] = [3 | 1 << 32, 0x1000, 11, 12, 9, 77, 2, 5];
        // SAFETY: the words are as long as the layout.
        let read = unsafe { Entry::read(words.as_ptr(), &layout) };
        assert_eq!(
            read,
            Entry { action: 3, device: 1, addr: 0x1000, size: 77, stream: 9, pool: 2 << 32 | 5 }
        );
        assert_eq!(pool_number(1 << 32, 0), NO_POOL);
    }

    #[test]
    fn a_report_takes_the_entry_of_its_own_block_only() {
        assert!(is_of(&entry(ALLOC, 512, 500), &report(EventKind::BLOCK_ALLOC, 512, 512)));
        assert!(is_of(&entry(FREE_REQUESTED, 512, 500), &report(EventKind::BLOCK_FREE, 512, 512)));
        assert!(is_of(&entry(OOM, 77, 500), &report(EventKind::BLOCK_OOM, 0, 500)));
        assert!(
            !is_of(&entry(ALLOC, 1024, 500), &report(EventKind::BLOCK_ALLOC, 512, 512)),
            "another address"
        );
        assert!(
            !is_of(&entry(ALLOC, 512, 513), &report(EventKind::BLOCK_ALLOC, 512, 512)),
            "more than the block"
        );
        assert!(
            !is_of(&entry(FREE_REQUESTED, 512, 1), &report(EventKind::BLOCK_ALLOC, 512, 512)),
            "another act"
        );
    }

    #[test]
    fn first_entries_are_held_against_the_driver_call() {
        note_driver_bytes(2 << 20);
        assert!(is_plausible(&entry(SEGMENT_ALLOC, 0x20_0000, 2 << 20), 9));
        assert!(is_plausible(&entry(SEGMENT_MAP, 0x20_0000, 20 << 20), 9));
        assert!(!is_plausible(&entry(SEGMENT_ALLOC, 0x20_0000, 20 << 20), 9), "another size");
        assert!(!is_plausible(&entry(ALLOC, 0x20_0001, 4), 9), "no address of a block");
        assert!(!is_plausible(&entry(9, 0x20_0000, 4), 9), "no such action");
        note_driver_bytes(0);
    }

    #[test]
    fn a_free_completes_the_one_that_waits_for_its_report() {
        assert!(!completes_pending(&entry(FREE_COMPLETED, 512, 4)));
        put_aside(Phase::On, entry(FREE_REQUESTED, 512, 4));
        assert!(!completes_pending(&entry(FREE_COMPLETED, 1024, 4)));
        assert!(completes_pending(&entry(FREE_COMPLETED, 512, 4)));
        assert_eq!(with_pending(Pending::take), Some((entry(FREE_REQUESTED, 512, 4), true)));
        assert_eq!(with_pending(Pending::take), None);
    }
}
