//! What the allocator does, as events of the trace.
//!
//! Constraint: reports on a program must read the same whether PyTorch's allocator or ours served it. Consequence: the events
//! are those that PyTorch's tracker gives, with the same fields; that they come from us, `tracker` and the header say.

use std::ffi::c_int;

use gpumemtrace_format::event::{FREED_AT_ONCE, NO_POOL, pool_number};
use gpumemtrace_format::{ApiId, Detail, EventKind, TrackerState};
use gpumemtrace_recorder::{Draft, record_event};

use crate::cache::{Entry, Step};

/// From here on, segments, requests, streams and pools are in the trace.
pub(crate) fn first_hand() {
    let aux = [TrackerState::OwnAllocator as u64, 0];
    put(&Draft { aux, ..Draft::new(EventKind::TRACKER, ApiId::default()) });
}

/// A step of the caching allocator.
pub(crate) fn entry(device: c_int, entry: &Entry) {
    let pool = pool_number(entry.pool.0, entry.pool.1);
    let detail = Detail { requested_bytes: entry.requested_bytes, stream: entry.stream, pool };
    let totals = [entry.allocated_bytes, entry.reserved_bytes];
    let place = [entry.stream, pool];
    let (kind, size, aux, detail) = match entry.step {
        Step::Alloc => (EventKind::BLOCK_ALLOC, entry.bytes, totals, Some(detail)),
        Step::Free { .. } => (EventKind::BLOCK_FREE, entry.bytes, totals, Some(detail)),
        Step::FreeCompleted => (EventKind::BLOCK_FREE_COMPLETED, entry.requested_bytes, place, None),
        Step::SegmentAlloc => (EventKind::SEGMENT_ALLOC, entry.bytes, place, None),
        Step::SegmentFree => (EventKind::SEGMENT_FREE, entry.bytes, place, None),
    };
    let flags = if entry.step == (Step::Free { at_once: true }) { FREED_AT_ONCE } else { 0 };
    put(&Draft { addr: entry.addr, size, aux, detail, flags, ..of_device(kind, device) });
}

/// A block that is a piece of the driver's memory by itself; nothing is cached, so what is handed out is all that is held.
pub(crate) fn uncached(kind: EventKind, device: c_int, addr: u64, bytes: u64, live_bytes: u64) {
    put(&Draft { addr, size: bytes, aux: [live_bytes, live_bytes], ..of_device(kind, device) });
}

/// A request of which nothing came. `free_bytes` is what the driver said was free, if it did.
pub(crate) fn out_of_memory(
    device: c_int,
    requested_bytes: u64,
    stream: u64,
    held: (u64, u64),
    free_bytes: Option<u64>,
) {
    let detail = Detail { requested_bytes, stream, pool: NO_POOL };
    put(&Draft {
        addr: free_bytes.unwrap_or(0),
        size: requested_bytes,
        aux: [held.0, held.1],
        detail: free_bytes.map(|_| detail),
        ..of_device(EventKind::BLOCK_OOM, device)
    });
}

fn of_device(kind: EventKind, device: c_int) -> Draft {
    let draft = Draft::new(kind, ApiId::default());
    Draft { device: u8::try_from(device).unwrap_or(draft.device), ..draft }
}

fn put(draft: &Draft) {
    // A panic must not reach PyTorch's frames.
    if std::panic::catch_unwind(|| record_event(draft)).is_err() {
        gpumemtrace_recorder::reset_hook_after_panic();
    }
}
