//! Single rules, each with the few requests that show it.

use super::RunSetup;
use super::checked_device::{CheckedDevice, DeviceCall};
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

#[test]
fn nested_pools_serve_in_the_order_of_the_release() {
    for (minor, serving) in [(9, (0, 1)), (10, (0, 2))] {
        let mut cache = cache_with("", minor);
        cache.backend.capturing = true;
        for pool in [(0, 1), (0, 2)] {
            cache.begin_mem_pool(pool, Box::new(|_| true));
        }
        cache.alloc(1000, 0).expect("memory");
        let traced = cache.backend.traced.last().expect("an entry");
        assert_eq!(traced.pool, serving, "torch 2.{minor}");
    }
}

#[test]
fn rejected_request_is_not_retried() {
    let mut cache = cache_with("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", 15);
    cache.set_limit(None);
    let addr = cache.alloc(200 << 20, 0).expect("within the fraction");
    assert!(cache.free(addr));
    assert_eq!(cache.alloc(201 << 20, 0), Err(OUT_OF_MEMORY));
    let stats = &cache.stats;
    assert_eq!((stats.num_oom_rejections, stats.num_ooms, stats.num_alloc_retries), (1, 0, 0));
    assert_eq!(cache.backend.segments.len(), 1, "nothing was released");
}

#[test]
fn free_of_a_replay_completes_on_request_or_with_the_cache() {
    let mut cache = cache_with("", 15);
    let block = cache.alloc_live(20 << 20, 0).expect("memory");
    let ticket = cache.begin_free_live(block);
    assert_ne!(cache.alloc_live(20 << 20, 0), Ok(block), "not free yet");
    assert!(cache.finish_free(ticket) && !cache.finish_free(ticket));
    assert_eq!(cache.alloc_live(20 << 20, 0), Ok(block));
    let ticket = cache.begin_free_live(block);
    cache.release_cached();
    assert!(!cache.finish_free(ticket), "freed with the cache");
}

#[test]
fn late_completion_leaves_the_next_block_at_its_address_pending() {
    let mut cache = cache_with("", 15);
    let first = cache.alloc_live(20 << 20, 0).expect("memory");
    let early = cache.begin_free_live(first);
    cache.alloc(1 << 30, 0).expect_err("more than the capacity; waits for all events");
    let second = cache.alloc_live(20 << 20, 0).expect("memory");
    assert_eq!(first, second, "the same block");
    let late = cache.begin_free_live(second);
    assert!(!cache.finish_free(early), "it was completed for the large request");
    assert!(cache.finish_free(late));
}

#[test]
fn end_of_a_pool_completes_the_frees_of_its_blocks() {
    let mut cache = cache_with("", 15);
    cache.begin_mem_pool((0, 1), Box::new(|_| true));
    cache.backend.capturing = true;
    let block = cache.alloc_live(20 << 20, 0).expect("memory");
    cache.end_pool((0, 1));
    cache.backend.capturing = false;
    cache.begin_free_live(block);
    cache.release_pool((0, 1));
    cache.release_cached_of_pool((0, 1));
    assert_eq!(cache.held_bytes(), (0, 0));
}

#[test]
fn settings_read_again_keep_what_pytorch_keeps() {
    let version = TorchVersion::LATEST;
    let text = "expandable_segments:True,max_split_size_mb:64,large_segment_size_mb:32";
    let first = Settings::parse(text, version).expect("accepted");
    let again = first.parse_again("garbage_collection_threshold:0.5", version).expect("accepted");
    assert!(again.expandable_segments);
    assert_eq!((again.max_split_bytes, again.large_segment_bytes), (u64::MAX, 32 << 20));
}

#[test]
fn cache_is_emptied_in_pytorchs_order() {
    let mut cache = cache_with("", 15);
    let addrs: Vec<u64> =
        [1000, 14 << 20, 12 << 20].iter().map(|bytes| cache.alloc(*bytes, 0).expect("memory")).collect();
    cache.begin_mem_pool((0, 1), Box::new(|_| true));
    cache.backend.capturing = true;
    let in_pool = [12 << 20, 1000].map(|bytes| cache.alloc(bytes, 0).expect("memory"));
    cache.end_pool((0, 1));
    cache.backend.capturing = false;
    cache.release_pool((0, 1));
    for addr in addrs.iter().chain(&in_pool) {
        assert!(cache.free(*addr));
    }
    cache.backend.calls.clear();
    cache.release_cached();
    let expected = [addrs[2], addrs[1], addrs[0], in_pool[1], in_pool[0]].map(DeviceCall::Free);
    assert_eq!(cache.backend.calls, expected, "large, then small; private pools the other way round");
}
