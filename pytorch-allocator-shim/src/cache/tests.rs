//! Ten million made-up requests, held against an allocator that is too slow to be wrong.
//!
//! The model says which address must come, which calls the driver must get, and what all sums must be. The device completes each
//! stream's events in order.

mod model;
mod simulated_device;

use std::collections::VecDeque;

use super::{Cache, Entry, EventId, Failure, Host, OUT_OF_MEMORY, Step};
use model::{Model, Use};
use simulated_device::{Device, STREAMS};

/// Numbers that look random and are always the same (xorshift64*).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
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

/// So many requests, of which some are refused; what was met on the way is counted.
#[derive(Debug, Default)]
struct Met {
    refused: u64,
    retried: u64,
    captures: u64,
    deferred: u64,
    in_private_pools: u64,
}

fn run(operations: u64, seed: u64) -> Met {
    let (mut cache, mut model, mut dice) = (Cache::new(Device::default()), Model::default(), Dice(seed));
    let mut live: Vec<u64> = Vec::new();
    let mut met = Met::default();
    let mut calls = VecDeque::new();
    for number in 0..operations {
        match dice.below(1000) {
            // More are freed than made while there are many, so that their number stays where the model can follow.
            roll @ 0..900 if live.is_empty() || roll < 450 && live.len() < 160 => {
                let (bytes, stream) = (dice.size(), dice.below(STREAMS));
                let not_done = cache.host.not_done.clone();
                let given = cache.alloc(bytes, stream);
                calls.extend(cache.host.calls.drain(..));
                let due = model.alloc(&not_done, bytes, stream, &mut calls);
                assert_eq!(given.ok(), due, "operation {number}: {bytes} bytes on stream {stream}");
                if let Some(addr) = due {
                    live.push(addr);
                    let told = *cache.host.told.last().expect("every block is told");
                    assert_eq!((told.step, told.addr, told.requested_bytes), (Step::Alloc, addr, bytes));
                    met.in_private_pools += u64::from(told.pool != (0, 0));
                } else {
                    met.refused += 1;
                    // As a program would: it lets most of what it holds go.
                    for addr in live.split_off(live.len() / 4) {
                        assert!(cache.free(addr));
                        calls.extend(cache.host.calls.drain(..));
                        model.free(addr, &mut calls);
                    }
                }
            }
            0..900 => {
                let addr = live.swap_remove(dice.below(live.len() as u64) as usize);
                assert!(cache.free(addr));
                assert!(!cache.free(addr), "once");
                calls.extend(cache.host.calls.drain(..));
                model.free(addr, &mut calls);
                met.deferred += u64::from(model.capture.is_some() && !model.apart.is_empty());
            }
            900..950 if !live.is_empty() => {
                let (addr, stream) = (live[dice.below(live.len() as u64) as usize], dice.below(STREAMS));
                cache.record_stream(addr, stream);
                let (_, segment) = model.segments.range(..=addr).next_back().expect("a segment");
                if segment.stream != stream
                    && let Use::Live { used_by, .. } = &mut model.piece(addr).what
                    && !used_by.contains(&stream)
                {
                    used_by.push(stream);
                }
            }
            950..985 => {
                if let Some(event) = cache.host.queues[dice.below(STREAMS) as usize].front().copied() {
                    cache.host.complete_up_to(event);
                }
            }
            985..992 => {
                if let Some((pool, _)) = model.capture.take() {
                    cache.end_pool(pool);
                    cache.host.capturing = false;
                } else {
                    let (pool, stream) = ((0, 1 + dice.below(3)), dice.below(STREAMS));
                    cache.begin_pool(pool, Box::new(move |of| of == stream));
                    *model.users.entry(pool).or_default() += 1;
                    (model.capture, cache.host.capturing) = (Some((pool, stream)), true);
                    met.captures += 1;
                }
            }
            992..998 => {
                let pool = (0, 1 + dice.below(3));
                let users = model.users.entry(pool).or_default();
                *users = users.saturating_sub(1);
                cache.release_pool(pool);
            }
            998 if dice.below(10) == 0 => {
                cache.release_cached();
                calls.extend(cache.host.calls.drain(..));
                if model.capture.is_none() {
                    model.release(&mut calls);
                }
            }
            _ => {}
        }
        assert_eq!(calls, [], "operation {number}: calls of the driver that nothing asked for");
        cache.host.told.clear();
        if number % 1024 == 0 {
            model.check(&cache);
        }
    }
    model.check(&cache);
    met.retried = cache.stats.num_alloc_retries;
    met
}

#[test]
fn ten_million_requests_are_served_as_the_model_says() {
    let seeds = [1, 0x9e37_79b9, 0xdead_beef, 77];
    let met: Vec<Met> = std::thread::scope(|scope| {
        let threads = seeds.map(|seed| scope.spawn(move || run(2_500_000, seed)));
        threads.map(|thread| thread.join().expect("as the model says")).into()
    });
    for met in met {
        let all = [met.refused, met.retried, met.captures, met.deferred, met.in_private_pools];
        assert!(all.iter().all(|count| *count > 100), "every kind of thing was met: {met:?}");
    }
}

#[test]
fn a_limit_is_kept_and_told() {
    let mut cache = Cache::new(Device::default());
    cache.set_limit(24 << 20);
    let first = cache.alloc(20 << 20, 0).expect("within the limit");
    assert_eq!(cache.alloc(5 << 20, 0), Err(OUT_OF_MEMORY));
    assert_eq!(cache.stats.num_ooms, 1);
    assert!(cache.free(first));
    assert!(cache.alloc(5 << 20, 0).is_ok(), "what is cached serves");
}

#[test]
fn a_block_waits_if_its_event_cannot_be_recorded() {
    #[derive(Debug, Default)]
    struct Broken(Device, bool);
    impl Host for Broken {
        fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, Failure> {
            self.0.alloc(bytes, during_capture)
        }
        fn free(&mut self, addr: u64) {
            self.0.free(addr);
        }
        fn mark(&mut self, stream: u64) -> Result<EventId, Failure> {
            if self.1 { self.0.mark(stream) } else { Err(Failure(700)) }
        }
        fn is_done(&mut self, event: EventId) -> bool {
            self.0.is_done(event)
        }
        fn wait(&mut self, event: EventId) -> bool {
            self.1 && self.0.wait(event)
        }
        fn forget(&mut self, _: EventId) {}
        fn tell(&mut self, _: Entry) {}
    }
    let mut cache = Cache::new(Broken::default());
    let addr = cache.alloc(1000, 0).expect("memory");
    cache.record_stream(addr, 1);
    assert!(cache.free(addr));
    cache.release_cached();
    assert_eq!(cache.host.0.segments.len(), 1, "its segment is kept");
    assert_ne!(cache.alloc(1000, 0), Ok(addr));
    cache.host.1 = true;
    assert_ne!(cache.alloc(1000, 0), Ok(addr), "recorded now, and not done");
    cache.host.1 = false;
    cache.release_cached();
    assert_eq!(cache.host.0.not_done.len(), 1, "what cannot be waited for is not taken to be done");
    cache.host.1 = true;
    cache.alloc(1 << 30, 0).expect_err("more than there is; all events were waited for");
    assert_eq!(cache.alloc(1000, 0), Ok(addr));
}

#[test]
fn a_tensors_segment_is_told_whole() {
    let mut cache = Cache::new(Device::default());
    let [first, second] = [600, 600].map(|bytes| cache.alloc(bytes, 0).expect("memory"));
    assert_eq!(cache.segment_of(second), Some((first, 2 << 20)));
    assert_eq!(cache.segment_of(second + 512), None, "no tensor begins there");
}
