//! Samples of the device memory in use, as `cuMemGetInfo` reports it.
//!
//! Contexts, modules and fragmentation in the driver take memory that no recorded call shows.
//! `cuMemGetInfo` needs a current context and may invalidate a capture. The sampler therefore runs
//! on the program's own thread, right after a call that took memory. The context is right there,
//! and that call took far longer. The thread's capture mode is relaxed meanwhile, as PyTorch does
//! around its own allocations. Each device is sampled at most once per interval.

use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::event::{FLAG_CAPTURED, SAMPLE_SOURCE_RECORDER};
use gpumemtrace_format::{ApiId, Event, EventKind, NO_DEVICE};
use gpumemtrace_recorder::{Draft, uninterrupted};

use super::queries::{current_device, free_and_total_bytes};

const MAX_DEVICES: usize = 64;
/// Minimum interval between samples after calls that take an unreported amount of memory.
const AFTER_UNSIZED_CALL_NS: u64 = 20_000_000;
/// Minimum interval between samples after plain allocations.
const AFTER_ALLOC_NS: u64 = 100_000_000;

/// Time of the last sample of each device.
static LAST_SAMPLE_NS: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

/// Minimum age of the last sample before this kind of event takes a new one. `None`: it never does.
fn min_interval_ns(kind: EventKind) -> Option<u64> {
    match kind {
        EventKind::CONTEXT_CREATE
        | EventKind::PRIMARY_RETAIN
        | EventKind::CONTEXT_LIMIT
        | EventKind::MODULE_LOAD
        | EventKind::MODULE_UNLOAD
        | EventKind::GRAPH_INSTANTIATE => Some(AFTER_UNSIZED_CALL_NS),
        EventKind::DEVICE_ALLOC | EventKind::PHYS_CREATE | EventKind::ARRAY_ALLOC => Some(AFTER_ALLOC_NS),
        _ => None,
    }
}

/// The sample that is due after a successful call, if any.
#[inline]
pub(crate) fn sample_after(event: &Event) -> Option<Draft> {
    let interval_ns = min_interval_ns(event.kind)?;
    let last_sample = LAST_SAMPLE_NS.get(usize::from(event.device))?;
    let last_ns = last_sample.load(Ordering::Relaxed);
    if event.flags & FLAG_CAPTURED != 0 || event.time_ns.saturating_sub(last_ns) < interval_ns {
        return None;
    }
    // Only one of several threads takes the sample.
    last_sample.compare_exchange(last_ns, event.time_ns, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    let sample = take_sample();
    if sample.is_none() && event.kind == EventKind::PRIMARY_RETAIN {
        // A context that was just retained is not current yet. The next call takes the sample.
        last_sample.store(last_ns, Ordering::Relaxed);
    }
    sample
}

#[cold]
fn take_sample() -> Option<Draft> {
    let began_at_seq = gpumemtrace_recorder::next_seq();
    // Unlike the other queries, this one asks the device.
    let (free_bytes, total_bytes) = uninterrupted(free_and_total_bytes)?;
    let device = current_device();
    if device == NO_DEVICE {
        return None;
    }
    Some(Draft { addr: began_at_seq, ..sample_draft(device, free_bytes, total_bytes) })
}

fn sample_draft(device: u8, free_bytes: u64, total_bytes: u64) -> Draft {
    Draft {
        device,
        size: total_bytes.saturating_sub(free_bytes),
        aux: [total_bytes, SAMPLE_SOURCE_RECORDER],
        ..Draft::new(EventKind::MEMORY_SAMPLE, ApiId::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_take_memory_are_sampled() {
        assert!(min_interval_ns(EventKind::DEVICE_ALLOC).is_some());
        assert!(min_interval_ns(EventKind::DEVICE_FREE).is_none());
        assert!(min_interval_ns(EventKind::ASYNC_ALLOC).is_none(), "one per tensor would be too many");
        assert!(min_interval_ns(EventKind::MEMORY_SAMPLE).is_none());
    }

    #[test]
    fn sample_size_is_total_minus_free() {
        let sample = sample_draft(2, 30, 100);
        assert_eq!((sample.device, sample.size, sample.aux), (2, 70, [100, SAMPLE_SOURCE_RECORDER]));
    }
}
