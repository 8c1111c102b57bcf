//! The state of the tracker: from the search for the allocator to a confirmed tracker, or off.

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use gpumemtrace_format::{ApiId, EventKind, TrackerState};
use gpumemtrace_recorder::{Draft, record_event};

use crate::torch::layouts::TraceEntryLayout;

/// Ends each message about a missing tracker.
pub(in crate::torch) const WITHOUT_TRACKER: &str = ": requested sizes, streams, pools and segments of PyTorch are not \
                                                    recorded. Blocks and driver calls are.";

/// How far the tracker is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(in crate::torch) enum TrackerPhase {
    /// No allocator has been found yet.
    Waiting,
    /// One thread is searching for it.
    Searching,
    /// The tracker is being attached, device by device: blocks may come with or without an entry.
    Attaching,
    /// Attached; no entry has been confirmed yet.
    Checking,
    /// Attached, and an entry has matched a report.
    On,
    /// Final: there is no tracker.
    Off,
}

impl TrackerPhase {
    /// True if the phase is final.
    pub(in crate::torch) fn is_settled(self) -> bool {
        matches!(self, Self::On | Self::Off)
    }
}

static PHASE: AtomicU8 = AtomicU8::new(TrackerPhase::Waiting as u8);
/// Layout of the entries; set before the tracker is attached.
static LAYOUT: AtomicPtr<TraceEntryLayout> = AtomicPtr::new(std::ptr::null_mut());

#[inline]
pub(in crate::torch) fn phase() -> TrackerPhase {
    match PHASE.load(Ordering::Acquire) {
        0 => TrackerPhase::Waiting,
        1 => TrackerPhase::Searching,
        2 => TrackerPhase::Attaching,
        3 => TrackerPhase::Checking,
        4 => TrackerPhase::On,
        _ => TrackerPhase::Off,
    }
}

/// The layout of entries; `None` before the tracker is attached.
#[inline]
pub(super) fn layout() -> Option<&'static TraceEntryLayout> {
    // SAFETY: null, or an entry of a static table.
    unsafe { LAYOUT.load(Ordering::Acquire).as_ref() }
}

/// Changes the phase; false if it was not `from`.
pub(super) fn change_phase(from: TrackerPhase, to: TrackerPhase) -> bool {
    PHASE.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Begins the search. True for exactly one thread at a time.
pub(in crate::torch) fn begin_search() -> bool {
    change_phase(TrackerPhase::Waiting, TrackerPhase::Searching)
}

/// Ends the search without a result; it may be repeated.
pub(in crate::torch) fn search_again_later() {
    change_phase(TrackerPhase::Searching, TrackerPhase::Waiting);
}

/// Ends the search for good, without a note in the trace.
pub(in crate::torch) fn give_up_silently() {
    change_phase(TrackerPhase::Searching, TrackerPhase::Off);
}

/// Switches the tracker off for good, records `state` and prints `line`, if any.
pub(in crate::torch) fn switch_off(state: TrackerState, line: Option<&str>) {
    PHASE.store(TrackerPhase::Off as u8, Ordering::Release);
    record_state(state);
    if let Some(line) = line {
        gpumemtrace_recorder::print_diagnostic(&[line]);
    }
}

/// Prepares for entries of this layout. Must precede the attachment.
pub(in crate::torch) fn expect_entries(layout: &'static TraceEntryLayout) {
    LAYOUT.store(std::ptr::from_ref(layout).cast_mut(), Ordering::Release);
    PHASE.store(TrackerPhase::Attaching as u8, Ordering::Release);
    record_state(TrackerState::Attached);
}

/// Notes that the tracker is attached to every device.
pub(in crate::torch) fn set_attached() {
    change_phase(TrackerPhase::Attaching, TrackerPhase::Checking);
}

fn record_state(state: TrackerState) {
    record_event(&Draft { aux: [state as u64, 0], ..Draft::new(EventKind::TRACKER, ApiId::default()) });
}
