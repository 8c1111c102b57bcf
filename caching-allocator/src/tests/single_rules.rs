//! Single rules, each with the few requests that show it.

use super::RunSetup;
use super::checked_device::CheckedDevice;
use crate::{
    AllocatorTraceEntry, CacheBackend, CachingAllocator, DriverError, EventId, OUT_OF_MEMORY, Rules,
    Settings, TorchVersion,
};

fn cache_with(text: &str, minor: u32) -> CachingAllocator<CheckedDevice> {
    let RunSetup { settings, rules, .. } = RunSetup::new(text, minor);
    CachingAllocator::new(CheckedDevice::default(), settings, rules)
}

#[test]
fn memory_limit_fails_requests_and_counts_an_oom() {
    let mut cache = cache_with("", 9);
    cache.set_limit(Some(24 << 20));
    let first = cache.alloc(20 << 20, 0).expect("within the limit");
    assert_eq!(cache.alloc(5 << 20, 0), Err(OUT_OF_MEMORY));
    assert_eq!(cache.stats.num_ooms, 1);
    assert!(cache.free(first));
    assert!(cache.alloc(5 << 20, 0).is_ok(), "a cached segment serves it");
}

#[test]
fn block_is_not_reused_while_its_event_cannot_be_recorded() {
    #[derive(Debug, Default)]
    struct FailingEvents(CheckedDevice, bool);
    impl CacheBackend for FailingEvents {
        fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, DriverError> {
            self.0.alloc(bytes, during_capture)
        }
        fn free(&mut self, addr: u64) {
            self.0.free(addr);
        }
        fn record_event(&mut self, stream: u64) -> Result<EventId, DriverError> {
            if self.1 { self.0.record_event(stream) } else { Err(DriverError(700)) }
        }
        fn is_event_done(&mut self, event: EventId) -> bool {
            self.0.is_event_done(event)
        }
        fn wait_for_event(&mut self, event: EventId) -> bool {
            self.1 && self.0.wait_for_event(event)
        }
        fn recycle_event(&mut self, _: EventId) {}
        fn trace(&mut self, _: AllocatorTraceEntry) {}
    }
    let mut cache = CachingAllocator::new(
        FailingEvents::default(),
        Settings::default(),
        Rules::of_version(TorchVersion::LATEST),
    );
    let addr = cache.alloc(1000, 0).expect("memory");
    cache.record_stream(addr, 1);
    assert!(cache.free(addr));
    cache.release_cached();
    assert_eq!(cache.backend.0.segments.len(), 1, "its segment is kept");
    assert_ne!(cache.alloc(1000, 0), Ok(addr));
    cache.backend.1 = true;
    assert_ne!(cache.alloc(1000, 0), Ok(addr), "the event is recorded, and outstanding");
    cache.backend.1 = false;
    cache.release_cached();
    assert_eq!(cache.backend.0.not_done.len(), 1, "a failed wait does not complete the event");
    cache.backend.1 = true;
    cache.alloc(1 << 30, 0).expect_err("more than the capacity; waits for all events");
    assert_eq!(cache.alloc(1000, 0), Ok(addr));
}

#[test]
fn segment_of_returns_the_whole_segment() {
    let mut cache = cache_with("", 9);
    let [first, second] = [600, 600].map(|bytes| cache.alloc(bytes, 0).expect("memory"));
    assert_eq!(cache.segment_of(second), Some((first, 2 << 20)));
    assert_eq!(cache.segment_of(second + 512), None, "no block begins there");
}
