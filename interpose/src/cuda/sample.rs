//! What the driver says is in use, beside what its calls hand out: contexts, code, and fragmentation show in no call.
//!
//! Constraint: the question needs a current context, and may be unwelcome while a stream is captured. Consequence: it is asked
//! on the program's own thread, right after a call that took memory (a far longer call, in the same context), now and then
//! only, and with the thread's capture mode relaxed for the moment, as PyTorch does around its own allocations.

use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::event::{FLAG_CAPTURED, SAMPLE_SOURCE_RECORDER};
use gpumemtrace_format::{ApiId, Event, EventKind, NO_DEVICE};
use gpumemtrace_recorder::Draft;

use super::questions::memory_in_use;

const DEVICES: usize = 64;
/// Between two samples of a device: after calls that take what no call tells, and after plain allocations.
const AFTER_MARK_NS: u64 = 20_000_000;
const AFTER_ALLOC_NS: u64 = 100_000_000;

/// When each device was last asked for.
static LAST_NS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// How long ago the last sample must be for an event of this kind to be followed by one.
fn least_distance_ns(kind: EventKind) -> Option<u64> {
    match kind {
        EventKind::CONTEXT_CREATE
        | EventKind::PRIMARY_RETAIN
        | EventKind::CONTEXT_LIMIT
        | EventKind::MODULE_LOAD
        | EventKind::MODULE_UNLOAD
        | EventKind::GRAPH_INSTANTIATE => Some(AFTER_MARK_NS),
        EventKind::DEVICE_ALLOC | EventKind::PHYS_CREATE | EventKind::ARRAY_ALLOC => Some(AFTER_ALLOC_NS),
        _ => None,
    }
}

/// The sample that is due after a successful call.
#[inline]
pub(crate) fn after(event: &Event) -> Option<Draft> {
    let distance_ns = least_distance_ns(event.kind)?;
    let last_ns = LAST_NS.get(usize::from(event.device))?;
    let before_ns = last_ns.load(Ordering::Relaxed);
    if event.flags & FLAG_CAPTURED != 0 || event.time_ns.saturating_sub(before_ns) < distance_ns {
        return None;
    }
    // One thread is enough.
    last_ns.compare_exchange(before_ns, event.time_ns, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    ask()
}

#[cold]
fn ask() -> Option<Draft> {
    let (device, free_bytes, total_bytes) = memory_in_use()?;
    if device == NO_DEVICE {
        return None;
    }
    Some(draft(ApiId::default(), device, free_bytes, total_bytes, SAMPLE_SOURCE_RECORDER))
}

fn draft(api: ApiId, device: u8, free_bytes: u64, total_bytes: u64, witness: u64) -> Draft {
    Draft {
        device,
        size: total_bytes.saturating_sub(free_bytes),
        aux: [total_bytes, witness],
        ..Draft::new(EventKind::MEMORY_SAMPLE, api)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_take_memory_are_followed_by_a_question() {
        assert!(least_distance_ns(EventKind::DEVICE_ALLOC).is_some());
        assert!(least_distance_ns(EventKind::DEVICE_FREE).is_none());
        assert!(least_distance_ns(EventKind::ASYNC_ALLOC).is_none(), "these may be a tensor each");
        assert!(least_distance_ns(EventKind::MEMORY_SAMPLE).is_none());
    }

    #[test]
    fn what_is_in_use_is_what_is_not_free() {
        let sample = draft(ApiId::default(), 2, 30, 100, SAMPLE_SOURCE_RECORDER);
        assert_eq!((sample.device, sample.size, sample.aux), (2, 70, [100, SAMPLE_SOURCE_RECORDER]));
    }
}
