//! Compares millions of random requests with a naive allocator, by setting and release.
//!
//! The naive allocator says which address each request must get, which driver calls must follow,
//! and what all statistics must be. The device completes the events of each stream in order.

mod checked_device;
mod naive_allocator;
mod naive_space;
mod single_rules;

use std::collections::VecDeque;

use crate::{CachingAllocator, Rules, Settings, TorchVersion, TraceAction};
use checked_device::{CAPACITY_BYTES, CheckedDevice, STREAMS};
use naive_allocator::{BlockUse, NaiveAllocator};

/// Reproducible random numbers (xorshift64*).
#[derive(Debug)]
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
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
#[derive(Clone, Copy, Debug, Default)]
struct RunCounts {
    failed: u64,
    retried: u64,
    captures: u64,
    deferred: u64,
    in_private_pools: u64,
    mapped: u64,
    unmapped: u64,
    /// Segments that were freed without a retry.
    freed_early: u64,
}

/// One of the counts.
type CountFn = fn(&RunCounts) -> u64;

/// The settings and the release that a run follows.
#[derive(Clone, Debug)]
struct RunSetup {
    settings: Settings,
    rules: Rules,
    /// A pool that serves refused requests, and one without splits.
    has_special_pools: bool,
}

impl RunSetup {
    fn new(text: &str, minor: u32) -> Self {
        let version = TorchVersion::new(minor).expect("a known release");
        let settings = Settings::parse(text, version).expect("accepted");
        Self { settings, rules: Rules::of_version(version), has_special_pools: false }
    }
}

fn run(operations: u64, seed: u64, setup: &RunSetup) -> RunCounts {
    let (settings, rules) = (setup.settings.clone(), setup.rules);
    let limit_bytes = settings.memory_fraction.map(|fraction| (fraction * CAPACITY_BYTES as f64) as u64);
    let mut model = NaiveAllocator::new(settings.clone(), rules, limit_bytes);
    let may_free_in_capture = settings.max_split_bytes < u64::MAX || settings.gc_threshold > 0.0;
    let mut cache = CachingAllocator::new(CheckedDevice::default(), settings, rules);
    cache.backend.may_free_in_capture = may_free_in_capture;
    if setup.has_special_pools {
        (model.fallback, model.without_splits) = (Some((0, 1)), Some((0, 2)));
        cache.set_fallback_pool((0, 1), true);
        for pool in [(0, 1), (0, 2)] {
            // The pools keep this user, so that they exist for the whole run.
            cache.add_pool_user(pool, false);
            model.users.insert(pool, 1);
        }
        cache.forbid_splits((0, 2));
    }
    let mut random = Xorshift(seed);
    let mut live: Vec<u64> = Vec::new();
    let mut counts = RunCounts::default();
    let mut calls = VecDeque::new();
    for number in 0..operations {
        match random.below(1000) {
            // Frees outnumber requests while many blocks are live, so the naive model stays fast.
            roll @ 0..900 if live.is_empty() || roll < 450 && live.len() < 160 => {
                let (bytes, stream) = (random.size(), random.below(STREAMS));
                let not_done = cache.backend.not_done.clone();
                let retries = cache.stats.num_alloc_retries;
                let given = cache.alloc(bytes, stream);
                calls.extend(cache.backend.calls.drain(..));
                let expected = model.alloc(&not_done, bytes, stream, &mut calls);
                assert_eq!(given.ok(), expected, "operation {number}: {bytes} bytes on stream {stream}");
                let is_retried = cache.stats.num_alloc_retries > retries;
                let traced = |action| {
                    cache.backend.traced.iter().filter(|entry| entry.action == action).count() as u64
                };
                counts.mapped += traced(TraceAction::SegmentMap);
                counts.unmapped += traced(TraceAction::SegmentUnmap);
                counts.freed_early += u64::from(!is_retried) * traced(TraceAction::SegmentFree);
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
                let own_stream = model.space_of(addr).stream;
                if own_stream != stream
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
                    model.forget_unused_pools();
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
                if !setup.has_special_pools || *users > 1 {
                    *users = users.saturating_sub(1);
                    cache.release_pool(pool);
                    model.forget_unused_pools();
                }
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

/// Runs several seeds at once.
fn run_seeds(operations: u64, setup: &RunSetup) -> Vec<RunCounts> {
    let seeds = [1, 0x9e37_79b9, 0xdead_beef, 77];
    std::thread::scope(|scope| {
        let threads = seeds.map(|seed| scope.spawn(move || run(operations, seed, setup)));
        threads.map(|thread| thread.join().expect("matches the model")).into()
    })
}

#[test]
fn ten_million_requests_match_the_model() {
    for counts in run_seeds(2_500_000, &RunSetup::new("", 9)) {
        let all = [counts.failed, counts.retried, counts.captures, counts.deferred, counts.in_private_pools];
        assert!(all.iter().all(|count| *count > 100), "every kind of case was reached: {counts:?}");
    }
}

#[test]
fn each_setting_matches_the_model() {
    let cases: &[(&str, u32, CountFn)] = &[
        ("", 15, |counts| counts.retried),
        ("max_split_size_mb:21", 9, |counts| counts.freed_early),
        ("max_split_size_mb:32,max_non_split_rounding_mb:64", 15, |counts| counts.freed_early),
        ("roundup_power2_divisions:1", 3, |counts| counts.retried),
        ("roundup_power2_divisions:8", 9, |counts| counts.retried),
        ("roundup_power2_divisions:[1:16,4:2,>:4]", 15, |counts| counts.retried),
        ("large_segment_size_mb:32", 15, |counts| counts.retried),
        ("per_process_memory_fraction:0.6", 15, |counts| counts.retried),
        ("garbage_collection_threshold:0.5,per_process_memory_fraction:0.8", 15, |counts| counts.freed_early),
        ("expandable_segments:True", 2, |counts| counts.unmapped),
        ("expandable_segments:True", 9, |counts| counts.unmapped),
        ("expandable_segments:True", 15, |counts| counts.mapped),
        ("expandable_segments:True,max_split_size_mb:24", 9, |counts| counts.mapped),
        (
            "expandable_segments:True,large_segment_size_mb:12,garbage_collection_threshold:0.6,\
             per_process_memory_fraction:0.7,roundup_power2_divisions:4",
            15,
            |counts| counts.unmapped,
        ),
    ];
    for (text, minor, reached) in cases {
        for counts in run_seeds(100_000, &RunSetup::new(text, *minor)) {
            assert!(reached(&counts) > 50, "2.{minor} {text}: the case was reached: {counts:?}");
        }
    }
}

#[test]
fn special_pools_match_the_model() {
    for (text, minor) in [
        ("", 9),
        ("", 15),
        ("expandable_segments:True", 9),
        ("expandable_segments:True", 15),
        ("max_split_size_mb:24", 10),
    ] {
        let setup = RunSetup { has_special_pools: true, ..RunSetup::new(text, minor) };
        for counts in run_seeds(100_000, &setup) {
            assert!(counts.in_private_pools > 50 && counts.failed > 10, "{text}: {counts:?}");
        }
    }
}
