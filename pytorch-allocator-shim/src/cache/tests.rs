//! Ten million made-up requests, held against an allocator that is too slow to be wrong.
//!
//! The model keeps each segment as a plain list of pieces and looks through all of them at every request; it says which
//! address must come, which calls the driver must get, and what all sums must be. The device completes each stream's events
//! in order, has little memory, and refuses what the rules forbid: a segment given back twice, with a block in it, while an
//! event of its blocks is not done, or during a capture.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::stats::Figure;
use super::{Cache, Entry, EventId, Failure, Half, Host, OUT_OF_MEMORY, PoolId, Step};
use super::{block_bytes, half_of, is_worth_splitting, segment_bytes};

const STREAMS: u64 = 4;
const CAPACITY_BYTES: u64 = 512 << 20;

/// What the cache did to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Alloc(u64, u64),
    Free(u64),
    Mark(u64, EventId),
}

#[derive(Debug, Default)]
struct Device {
    segments: BTreeMap<u64, u64>,
    used_bytes: u64,
    capturing: bool,
    queues: [VecDeque<EventId>; STREAMS as usize],
    not_done: BTreeSet<u64>,
    last_event: u64,
    calls: Vec<Call>,
    told: Vec<Entry>,
}

impl Device {
    fn complete_up_to(&mut self, event: EventId) {
        let queue = self.queues.iter_mut().find(|queue| queue.contains(&event)).expect("an event of a stream");
        while let Some(front) = queue.pop_front() {
            self.not_done.remove(&front.0);
            if front == event {
                break;
            }
        }
    }
}

impl Host for Device {
    fn alloc(&mut self, bytes: u64, during_capture: bool) -> Result<u64, Failure> {
        assert_eq!(during_capture, self.capturing);
        if self.used_bytes + bytes > CAPACITY_BYTES {
            return Err(OUT_OF_MEMORY);
        }
        // The lowest gap: addresses come back.
        let mut addr = 0x1_0000_0000;
        for (start, len) in &self.segments {
            if start - addr >= bytes {
                break;
            }
            addr = start + len;
        }
        self.used_bytes += bytes;
        self.segments.insert(addr, bytes);
        self.calls.push(Call::Alloc(addr, bytes));
        Ok(addr)
    }

    fn free(&mut self, addr: u64) {
        assert!(!self.capturing, "nothing is given back during a capture");
        self.used_bytes -= self.segments.remove(&addr).expect("a segment, once");
        self.calls.push(Call::Free(addr));
    }

    fn mark(&mut self, stream: u64) -> Result<EventId, Failure> {
        assert!(!self.capturing, "no event is recorded during a capture");
        self.last_event += 1;
        let event = EventId(self.last_event);
        self.queues[stream as usize].push_back(event);
        self.not_done.insert(event.0);
        self.calls.push(Call::Mark(stream, event));
        Ok(event)
    }

    fn is_done(&mut self, event: EventId) -> bool {
        assert!(!self.capturing, "no event is asked during a capture");
        !self.not_done.contains(&event.0)
    }

    fn wait(&mut self, event: EventId) -> bool {
        if self.not_done.contains(&event.0) {
            self.complete_up_to(event);
        }
        true
    }

    fn forget(&mut self, event: EventId) {
        assert!(!self.not_done.contains(&event.0), "an event is forgotten when it is done");
    }

    fn tell(&mut self, entry: Entry) {
        self.told.push(entry);
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Live { requested_bytes: u64, used_by: Vec<u64> },
    Waiting { requested_bytes: u64, unmarked: Vec<u64>, events: Vec<EventId> },
}

#[derive(Clone, Debug)]
struct Piece {
    addr: u64,
    bytes: u64,
    what: Use,
}

#[derive(Debug)]
struct Segment {
    stream: u64,
    pool: PoolId,
    half: Half,
    pieces: Vec<Piece>,
}

impl Segment {
    fn free(&mut self, addr: u64) {
        let at = self.pieces.iter().position(|piece| piece.addr == addr).expect("a piece");
        self.pieces[at].what = Use::Free;
        for at in [at + 1, at] {
            if at > 0 && at < self.pieces.len() && [at - 1, at].iter().all(|at| self.pieces[*at].what == Use::Free) {
                let second = self.pieces.remove(at);
                self.pieces[at - 1].bytes += second.bytes;
            }
        }
    }

    fn is_free(&self) -> bool {
        self.pieces.len() == 1 && self.pieces[0].what == Use::Free
    }
}

#[derive(Debug, Default)]
struct Model {
    segments: BTreeMap<u64, Segment>,
    /// Of blocks that were given back during a capture, in that order.
    apart: Vec<u64>,
    /// Users of each private pool.
    users: BTreeMap<PoolId, u32>,
    capture: Option<(PoolId, u64)>,
}

impl Model {
    fn piece(&mut self, addr: u64) -> &mut Piece {
        let (_, segment) = self.segments.range_mut(..=addr).next_back().expect("a segment");
        segment.pieces.iter_mut().find(|piece| piece.addr == addr).expect("a piece")
    }

    /// The marks that the cache made must be those of the blocks that wait for one, in order.
    fn take_marks(&mut self, addrs: &[u64], calls: &mut VecDeque<Call>) {
        for addr in addrs {
            let Use::Waiting { unmarked, events, .. } = &mut self.piece(*addr).what else { panic!("waits") };
            for stream in unmarked.drain(..) {
                match calls.pop_front() {
                    Some(Call::Mark(marked, event)) if marked == stream => events.push(event),
                    call => panic!("an event on stream {stream} was due, not {call:?}"),
                }
            }
        }
    }

    fn mark_apart(&mut self, calls: &mut VecDeque<Call>) {
        let apart = std::mem::take(&mut self.apart);
        self.take_marks(&apart, calls);
    }

    fn collect(&mut self, not_done: &BTreeSet<u64>) {
        let done = |piece: &&Piece| match &piece.what {
            Use::Waiting { events, unmarked, .. } => {
                unmarked.is_empty() && events.iter().all(|event| !not_done.contains(&event.0))
            }
            _ => false,
        };
        for segment in self.segments.values_mut() {
            let free: Vec<u64> = segment.pieces.iter().filter(done).map(|piece| piece.addr).collect();
            free.iter().for_each(|addr| segment.free(*addr));
        }
    }

    fn release(&mut self, calls: &mut VecDeque<Call>) {
        // All events are waited for.
        self.mark_apart(calls);
        self.collect(&BTreeSet::new());
        let mut gone = BTreeSet::new();
        while let Some(Call::Free(addr)) = calls.front() {
            gone.insert(*addr);
            calls.pop_front();
        }
        let users = &self.users;
        let goes = |segment: &Segment| segment.is_free() && users.get(&segment.pool).copied().unwrap_or(0) == 0;
        let due: BTreeSet<u64> =
            self.segments.iter().filter(|(_, segment)| goes(segment)).map(|(addr, _)| *addr).collect();
        assert_eq!(gone, due, "the segments that go back to the driver");
        self.segments.retain(|addr, _| !due.contains(addr));
    }

    /// What must have happened at a request, before which these events were not done: the address, or none.
    fn alloc(
        &mut self,
        not_done: &BTreeSet<u64>,
        requested_bytes: u64,
        stream: u64,
        calls: &mut VecDeque<Call>,
    ) -> Option<u64> {
        if self.capture.is_none() {
            // An event that is recorded now is not done.
            self.collect(not_done);
            self.mark_apart(calls);
        }
        let bytes = block_bytes(requested_bytes)?;
        let (half, segment_size) = (half_of(bytes), segment_bytes(bytes));
        let pool = self.capture.filter(|(_, of)| *of == stream).map_or((0, 0), |(pool, _)| pool);
        let of_this = |segment: &&Segment| (segment.stream, segment.pool, segment.half) == (stream, pool, half);
        let pieces = self.segments.values().filter(of_this).flat_map(|segment| &segment.pieces);
        let fits = pieces.filter(|piece| piece.what == Use::Free && piece.bytes >= bytes);
        let best = fits.map(|piece| (piece.bytes, piece.addr)).min().map(|(_, addr)| addr);
        let addr = best.or_else(|| {
            if !matches!(calls.front(), Some(Call::Alloc(..))) && self.capture.is_none() {
                self.release(calls);
            }
            let Some(Call::Alloc(addr, given)) = calls.pop_front() else { return None };
            assert_eq!(given, segment_size);
            let piece = Piece { addr, bytes: given, what: Use::Free };
            self.segments.insert(addr, Segment { stream, pool, half, pieces: vec![piece] });
            Some(addr)
        })?;
        let (_, segment) = self.segments.range_mut(..=addr).next_back()?;
        let at = segment.pieces.iter().position(|piece| piece.addr == addr)?;
        let rest = segment.pieces[at].bytes - bytes;
        if is_worth_splitting(half, rest) {
            segment.pieces.insert(at + 1, Piece { addr: addr + bytes, bytes: rest, what: Use::Free });
            segment.pieces[at].bytes = bytes;
        }
        segment.pieces[at].what = Use::Live { requested_bytes, used_by: Vec::new() };
        Some(addr)
    }

    fn free(&mut self, addr: u64, calls: &mut VecDeque<Call>) {
        let capturing = self.capture.is_some();
        let piece = self.piece(addr);
        let Use::Live { requested_bytes, used_by } = piece.what.clone() else { panic!("live") };
        if used_by.is_empty() {
            let (_, segment) = self.segments.range_mut(..=addr).next_back().expect("a segment");
            return segment.free(addr);
        }
        piece.what = Use::Waiting { requested_bytes, unmarked: used_by, events: Vec::new() };
        if capturing { self.apart.push(addr) } else { self.take_marks(&[addr], calls) }
    }

    fn pieces(&self) -> impl Iterator<Item = (&Segment, &Piece)> {
        self.segments.values().flat_map(|segment| segment.pieces.iter().map(move |piece| (segment, piece)))
    }

    /// All sums, counted again from the pieces.
    fn check(&self, cache: &Cache<Device>) {
        let mut sums = [0u64; 9];
        for (segment, piece) in self.pieces() {
            let mut add = |figure: Figure, amount| sums[figure as usize] += amount;
            match &piece.what {
                Use::Free if segment.pieces.len() > 1 => {
                    add(Figure::InactiveSplit, 1);
                    add(Figure::InactiveSplitBytes, piece.bytes);
                }
                Use::Free => {}
                Use::Live { requested_bytes, .. } | Use::Waiting { requested_bytes, .. } => {
                    add(Figure::Active, 1);
                    add(Figure::ActiveBytes, piece.bytes);
                    add(Figure::RequestedBytes, *requested_bytes);
                }
            }
            if let Use::Live { .. } = piece.what {
                add(Figure::Allocation, 1);
                add(Figure::AllocatedBytes, piece.bytes);
            }
        }
        sums[Figure::Segment as usize] = self.segments.len() as u64;
        sums[Figure::ReservedBytes as usize] = cache.host.used_bytes;
        let figures = [
            Figure::Allocation,
            Figure::Segment,
            Figure::Active,
            Figure::InactiveSplit,
            Figure::AllocatedBytes,
            Figure::ReservedBytes,
            Figure::ActiveBytes,
            Figure::InactiveSplitBytes,
            Figure::RequestedBytes,
        ];
        for figure in figures {
            assert_eq!(cache.stats.current(figure), sums[figure as usize], "{figure:?}");
        }
    }
}

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
                match due {
                    Some(addr) => {
                        live.push(addr);
                        let told = *cache.host.told.last().expect("every block is told");
                        assert_eq!((told.step, told.addr, told.requested_bytes), (Step::Alloc, addr, bytes));
                        met.in_private_pools += u64::from(told.pool != (0, 0));
                    }
                    None => {
                        met.refused += 1;
                        // As a program would: it lets most of what it holds go.
                        for addr in live.split_off(live.len() / 4) {
                            assert!(cache.free(addr));
                            calls.extend(cache.host.calls.drain(..));
                            model.free(addr, &mut calls);
                        }
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
            985..992 => match model.capture.take() {
                Some((pool, _)) => {
                    cache.end_pool(pool);
                    cache.host.capturing = false;
                }
                None => {
                    let (pool, stream) = ((0, 1 + dice.below(3)), dice.below(STREAMS));
                    cache.begin_pool(pool, Box::new(move |of| of == stream));
                    *model.users.entry(pool).or_default() += 1;
                    (model.capture, cache.host.capturing) = (Some((pool, stream)), true);
                    met.captures += 1;
                }
            },
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
