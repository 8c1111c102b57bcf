//! Emits the allocator's actions as trace events.
//!
//! The events and their fields are those of PyTorch's own tracker, so that reports read the same
//! for either allocator. The `tracker` event and the trace header say that they come from here.

use std::ffi::c_int;

use gpumemtrace_format::event::{FLAG_FREED_AT_ONCE, NO_POOL, pack_pool_id};
use gpumemtrace_format::{ApiId, Detail, EventKind, TrackerState};
use gpumemtrace_recorder::{Draft, record_event};

use gpumemtrace_caching_allocator::{AllocatorTraceEntry, TraceAction};

/// Announces that segments, requested sizes, streams and pools follow in the trace.
pub(crate) fn emit_own_allocator() {
    let aux = [TrackerState::OwnAllocator as u64, 0];
    emit(&Draft { aux, ..Draft::new(EventKind::TRACKER, ApiId::default()) });
}

/// Emits one action of the caching allocator.
pub(crate) fn emit_entry(device: c_int, entry: &AllocatorTraceEntry) {
    let pool = pack_pool_id(entry.pool.0, entry.pool.1);
    let detail = Detail { requested_bytes: entry.requested_bytes, stream: entry.stream, pool };
    let totals = [entry.allocated_bytes, entry.reserved_bytes];
    let stream_and_pool = [entry.stream, pool];
    let (kind, size, aux, detail) = match entry.action {
        TraceAction::Alloc => (EventKind::BLOCK_ALLOC, entry.bytes, totals, Some(detail)),
        TraceAction::FreeRequested { .. } => (EventKind::BLOCK_FREE, entry.bytes, totals, Some(detail)),
        TraceAction::FreeCompleted => {
            (EventKind::BLOCK_FREE_COMPLETED, entry.requested_bytes, stream_and_pool, None)
        }
        TraceAction::SegmentAlloc => (EventKind::SEGMENT_ALLOC, entry.bytes, stream_and_pool, None),
        TraceAction::SegmentFree => (EventKind::SEGMENT_FREE, entry.bytes, stream_and_pool, None),
        TraceAction::SegmentMap => (EventKind::SEGMENT_MAP, entry.bytes, stream_and_pool, None),
        TraceAction::SegmentUnmap => (EventKind::SEGMENT_UNMAP, entry.bytes, stream_and_pool, None),
    };
    let is_immediate = entry.action == (TraceAction::FreeRequested { is_immediate: true });
    let flags = if is_immediate { FLAG_FREED_AT_ONCE } else { 0 };
    emit(&Draft { addr: entry.addr, size, aux, detail, flags, ..draft_for_device(kind, device) });
}

/// Emits an event of the uncached mode, where allocated and reserved bytes are the same.
pub(crate) fn emit_uncached(kind: EventKind, device: c_int, addr: u64, bytes: u64, live_bytes: u64) {
    emit(&Draft { addr, size: bytes, aux: [live_bytes, live_bytes], ..draft_for_device(kind, device) });
}

/// Emits a failed request. `held_bytes` is allocated and reserved bytes; `free_bytes` is what the
/// driver reported as free, if it did.
pub(crate) fn emit_out_of_memory(
    device: c_int,
    requested_bytes: u64,
    stream: u64,
    held_bytes: (u64, u64),
    free_bytes: Option<u64>,
) {
    let detail = Detail { requested_bytes, stream, pool: NO_POOL };
    emit(&Draft {
        addr: free_bytes.unwrap_or(0),
        size: requested_bytes,
        aux: [held_bytes.0, held_bytes.1],
        detail: free_bytes.map(|_| detail),
        ..draft_for_device(EventKind::BLOCK_OOM, device)
    });
}

fn draft_for_device(kind: EventKind, device: c_int) -> Draft {
    let draft = Draft::new(kind, ApiId::default());
    Draft { device: u8::try_from(device).unwrap_or(draft.device), ..draft }
}

fn emit(draft: &Draft) {
    // A panic must not unwind into PyTorch's frames.
    if std::panic::catch_unwind(|| record_event(draft)).is_err() {
        gpumemtrace_recorder::reset_hook_after_panic();
    }
}
