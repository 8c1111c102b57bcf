//! Turns events about Metal's objects into trace events.
//!
//! Reports on memory, leaks and fragmentation use segments and blocks, whichever backend they come
//! from. Metal's events therefore use the kinds that mean the same: a heap is device memory and a
//! segment; an object inside it is a block; a buffer or texture with memory of its own is device
//! memory; an object over foreign memory is an import. Only purgeable state has a kind of its own.
//!
//! A block's running totals come from counters that other threads may change meanwhile, so they
//! are not in the order of the events. The metadata says `metal`, and analyses that know it count
//! for themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_format::{ApiId, Counter, EventKind, FLAG_ESTIMATED, NO_DEVICE};
use gpumemtrace_metal::{EventSink, Loss, MetalEvent, MetalEventKind};
use gpumemtrace_recorder::{Draft, begin_call, increment_counter, record_event};

use super::FIRST_METHOD_ID;
use crate::panic_guard::catch_panic;

/// Result of a failed call. Metal gives no reason; this is CUDA's "out of memory".
const FAILED: u16 = 2;

/// True once the program has created a heap.
static HAS_HEAPS: AtomicBool = AtomicBool::new(false);

/// Methods that are not swizzled, and objects that will have no end in the trace.
static UNCOVERED: AtomicU64 = AtomicU64::new(0);

/// True once the program has created a heap.
pub(crate) fn has_heaps() -> bool {
    HAS_HEAPS.load(Ordering::Acquire)
}

/// Number of methods that are not swizzled, and of objects that will have no end in the trace.
pub(crate) fn uncovered() -> u64 {
    UNCOVERED.load(Ordering::Relaxed)
}

/// Passes the events to the recorder.
pub(super) struct RecorderSink;

impl EventSink for RecorderSink {
    fn record(&self, event: &MetalEvent) {
        catch_panic(|| {
            record(event);
            Some(())
        });
    }

    fn lost(&self, loss: Loss) {
        match loss {
            Loss::Panic => increment_counter(Counter::InternalErrors),
            // Classes may be swizzled before the recording begins, so this is no recorder counter.
            Loss::MethodNotSwizzled | Loss::ObjectNotTracked => {
                UNCOVERED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn record(metal: &MetalEvent) {
    let draft = |kind| Draft {
        device: metal.device.unwrap_or(NO_DEVICE),
        addr: metal.addr,
        size: metal.bytes,
        flags: if metal.is_estimated { FLAG_ESTIMATED } else { 0 },
        ..Draft::new(kind, ApiId((FIRST_METHOD_ID + metal.method) as u8))
    };
    // Blocks and segments are not driver calls and name no function.
    let without_api = |kind, aux| Draft { aux, api: ApiId::default(), ..draft(kind) };
    if metal.has_failed {
        let is_import = metal.kind == MetalEventKind::Imported;
        let kind = if is_import { EventKind::EXTERNAL_IMPORT } else { EventKind::DEVICE_ALLOC };
        if let Some(call) = begin_call(&draft(kind)) {
            call.complete(FAILED, |_| {});
        }
        return;
    }
    match metal.kind {
        MetalEventKind::HeapCreated => {
            HAS_HEAPS.store(true, Ordering::Release);
            record_event(&draft(EventKind::DEVICE_ALLOC));
            record_event(&without_api(EventKind::SEGMENT_ALLOC, [0, NO_POOL]));
        }
        MetalEventKind::HeapDestroyed => {
            record_event(&without_api(EventKind::SEGMENT_FREE, [0, NO_POOL]));
            record_event(&Draft { size: 0, ..draft(EventKind::DEVICE_FREE) });
        }
        MetalEventKind::BlockCreated => record_event(&without_api(EventKind::BLOCK_ALLOC, metal.totals)),
        MetalEventKind::BlockDestroyed => record_event(&without_api(EventKind::BLOCK_FREE, metal.totals)),
        MetalEventKind::DirectCreated => record_event(&draft(EventKind::DEVICE_ALLOC)),
        MetalEventKind::DirectDestroyed => record_event(&Draft { size: 0, ..draft(EventKind::DEVICE_FREE) }),
        MetalEventKind::Imported => {
            let aux = [metal.addr, metal.numbers[0]];
            record_event(&Draft { addr: 0, aux, ..draft(EventKind::EXTERNAL_IMPORT) });
        }
        MetalEventKind::ImportDestroyed => {
            let aux = [metal.addr, 0];
            record_event(&Draft { addr: 0, size: 0, aux, ..draft(EventKind::EXTERNAL_DESTROY) });
        }
        MetalEventKind::PurgeableSet => {
            record_event(&Draft { aux: metal.numbers, ..draft(EventKind::PURGEABLE) });
        }
    }
}
