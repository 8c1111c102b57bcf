//! Compares ten million random requests with a naive model.
//!
//! The model says which address each request must get, which driver calls must follow, and what
//! all statistics must be. The simulated device completes the events of each stream in order.

mod allocator_model;
mod simulated_device;

use std::collections::VecDeque;

use crate::{
    AllocatorTraceEntry, CacheBackend, CachingAllocator, DriverError, EventId, OUT_OF_MEMORY, TraceAction,
};
use allocator_model::{AllocatorModel, BlockUse};
use simulated_device::{STREAMS, SimulatedDevice};

/// Reproducible random numbers (xorshift64*).
#[derive(Debug)]
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn size(&mut self) -> u64 {
        match self.below(100) {
            0..60 => 1 + self.below(64 << 10),
            60..75 => 1 + self.below(1 << 20),
            75..95 => (1 << 20) + self.below(9 << 20),
            95..99 => (10 << 20) + self.below(40 << 20),
            _ => (100 << 20) + self.below(500 << 20),
        }
    }
}

/// How often a run reached each kind of case.
#[derive(Debug, Default)]
struct RunCounts {
    failed: u64,
    retried: u64,
    captures: u64,
    deferred: u64,
    in_private_pools: u64,
}

fn run(operations: u64, seed: u64) -> RunCounts {
    let (mut cache, mut model, mut random) =
        (CachingAllocator::new(SimulatedDevice::default()), AllocatorModel::default(), Xorshift(seed));
    let mut live: Vec<u64> = Vec::new();
    let mut counts = RunCounts::default();
    let mut calls = VecDeque::new();
    for number in 0..operations {
        match random.below(1000) {
            // Frees outnumber requests while many blocks are live, so the naive model stays fast.
            roll @ 0..900 if live.is_empty() || roll < 450 && live.len() < 160 => {
                let (bytes, stream) = (random.size(), random.below(STREAMS));
                let not_done = cache.backend.not_done.clone();
                let given = cache.alloc(bytes, stream);
                calls.extend(cache.backend.calls.drain(..));
                let expected = model.alloc(&not_done, bytes, stream, &mut calls);
                assert_eq!(given.ok(), expected, "operation {number}: {bytes} bytes on stream {stream}");
                if let Some(addr) = expected {
                    live.push(addr);
                    let traced = *cache.backend.traced.last().expect("every block is traced");
                    assert_eq!(
                        (traced.action, traced.addr, traced.requested_bytes),
                        (TraceAction::Alloc, addr, bytes)
                    );
                    counts.in_private_pools += u64::from(traced.pool != (0, 0));
                } else {
                    counts.failed += 1;
                    // As a program would, free most of the live blocks.
                    for addr in live.split_off(live.len() / 4) {
                        assert!(cache.free(addr));
                        calls.extend(cache.backend.calls.drain(..));
                        model.free(addr, &mut calls);
                    }
                }
            }
            0..900 => {
                let addr = live.swap_remove(random.below(live.len() as u64) as usize);
                assert!(cache.free(addr));
                assert!(!cache.free(addr), "a second free fails");
                calls.extend(cache.backend.calls.drain(..));
                model.free(addr, &mut calls);
                counts.deferred += u64::from(model.capture.is_some() && !model.deferred.is_empty());
            }
            900..950 if !live.is_empty() => {
                let (addr, stream) = (live[random.below(live.len() as u64) as usize], random.below(STREAMS));
                cache.record_stream(addr, stream);
                let (_, segment) = model.segments.range(..=addr).next_back().expect("a segment");
                if segment.stream != stream
                    && let BlockUse::Live { stream_uses, .. } = &mut model.block(addr).usage
                    && !stream_uses.contains(&stream)
                {
                    stream_uses.push(stream);
                }
            }
            950..985 => {
                if let Some(event) = cache.backend.queues[random.below(STREAMS) as usize].front().copied() {
                    cache.backend.complete_up_to(event);
                }
            }
            985..992 => {
                if let Some((pool, _)) = model.capture.take() {
                    cache.end_pool(pool);
                    cache.backend.capturing = false;
                } else {
                    let (pool, stream) = ((0, 1 + random.below(3)), random.below(STREAMS));
                    cache.begin_pool(pool, Box::new(move |of| of == stream));
                    *model.users.entry(pool).or_default() += 1;
                    (model.capture, cache.backend.capturing) = (Some((pool, stream)), true);
                    counts.captures += 1;
                }
            }
            992..998 => {
                let pool = (0, 1 + random.below(3));
                let users = model.users.entry(pool).or_default();
                *users = users.saturating_sub(1);
                cache.release_pool(pool);
            }
            998 if random.below(10) == 0 => {
                cache.release_cached();
                calls.extend(cache.backend.calls.drain(..));
                if model.capture.is_none() {
                    model.release(&mut calls);
                }
            }
            _ => {}
        }
        assert_eq!(calls, [], "operation {number}: unexpected driver calls");
        cache.backend.traced.clear();
        if number % 1024 == 0 {
            model.check(&cache);
        }
    }
    model.check(&cache);
    counts.retried = cache.stats.num_alloc_retries;
    counts
}

#[test]
fn ten_million_requests_match_the_model() {
    let seeds = [1, 0x9e37_79b9, 0xdead_beef, 77];
    let counts: Vec<RunCounts> = std::thread::scope(|scope| {
        let threads = seeds.map(|seed| scope.spawn(move || run(2_500_000, seed)));
        threads.map(|thread| thread.join().expect("matches the model")).into()
    });
    for counts in counts {
        let all = [counts.failed, counts.retried, counts.captures, counts.deferred, counts.in_private_pools];
        assert!(all.iter().all(|count| *count > 100), "every kind of case was reached: {counts:?}");
    }
}

#[test]
fn memory_limit_fails_requests_and_counts_an_oom() {
    let mut cache = CachingAllocator::new(SimulatedDevice::default());
    cache.set_limit(24 << 20);
    let first = cache.alloc(20 << 20, 0).expect("within the limit");
    assert_eq!(cache.alloc(5 << 20, 0), Err(OUT_OF_MEMORY));
    assert_eq!(cache.stats.num_ooms, 1);
    assert!(cache.free(first));
    assert!(cache.alloc(5 << 20, 0).is_ok(), "a cached segment serves it");
}

#[test]
fn block_is_not_reused_while_its_event_cannot_be_recorded() {
    #[derive(Debug, Default)]
    struct FailingEvents(SimulatedDevice, bool);
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
    let mut cache = CachingAllocator::new(FailingEvents::default());
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
    let mut cache = CachingAllocator::new(SimulatedDevice::default());
    let [first, second] = [600, 600].map(|bytes| cache.alloc(bytes, 0).expect("memory"));
    assert_eq!(cache.segment_of(second), Some((first, 2 << 20)));
    assert_eq!(cache.segment_of(second + 512), None, "no block begins there");
}
