//! A naive allocator that the tests compare with. It keeps live blocks only: free blocks are the
//! gaps between them, computed anew for every request. Its rules are written independently of the
//! allocator's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::checked_device::{CAPACITY_BYTES, CheckedDevice, DeviceCall};
use super::naive_space::{NaiveBlock, NaiveSpace};
use crate::size_rules::BlockSizeClass;
use crate::stats::StatKind;
use crate::{CachingAllocator, EqualSizeOrder, FallbackPools, PoolId, Rules, Settings, UnusedBytes};

const MIB: u64 = 1 << 20;
const DEFAULT_POOL: PoolId = (0, 0);

/// The state of a block that is not free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum BlockUse {
    Live { stream_uses: Vec<u64> },
    PendingFree { unrecorded: Vec<u64>, events: Vec<u64> },
}

/// A free run of bytes: its space, address and bytes.
type FreeRun = (u64, u64, u64);

#[derive(Debug)]
pub(super) struct NaiveAllocator {
    settings: Settings,
    rules: Rules,
    limit_bytes: Option<u64>,
    /// Segments and expandable segments, by address.
    spaces: BTreeMap<u64, NaiveSpace>,
    /// Addresses of blocks that were freed during a capture, in that order.
    pub(super) deferred: Vec<u64>,
    /// Users of each private pool.
    pub(super) users: BTreeMap<PoolId, u32>,
    pub(super) capture: Option<(PoolId, u64)>,
    pub(super) fallback: Option<PoolId>,
    pub(super) without_splits: Option<PoolId>,
    lookups: BTreeMap<(PoolId, BlockSizeClass), u64>,
    last_number: u64,
    used_bytes: u64,
    /// Calls that the allocator must make next.
    expected: Vec<DeviceCall>,
}

/// What follows from a request.
#[derive(Clone, Copy)]
struct NaiveRequest {
    bytes: u64,
    stream: u64,
    pool: PoolId,
    size_class: BlockSizeClass,
    can_expand: bool,
}

impl NaiveAllocator {
    pub(super) fn new(settings: Settings, rules: Rules, limit_bytes: Option<u64>) -> Self {
        Self {
            settings,
            rules,
            limit_bytes,
            spaces: BTreeMap::new(),
            deferred: Vec::new(),
            users: BTreeMap::new(),
            capture: None,
            fallback: None,
            without_splits: None,
            lookups: BTreeMap::new(),
            last_number: 0,
            used_bytes: 0,
            expected: Vec::new(),
        }
    }

    pub(super) fn space_of(&mut self, addr: u64) -> &mut NaiveSpace {
        self.spaces.range_mut(..=addr).next_back().expect("a space").1
    }

    pub(super) fn block(&mut self, addr: u64) -> &mut NaiveBlock {
        self.space_of(addr).blocks.get_mut(&addr).expect("a block")
    }

    /// Takes the next calls, which must record the events of these blocks, in order.
    fn take_recorded_events(&mut self, addrs: &[u64], calls: &mut VecDeque<DeviceCall>) {
        for addr in addrs {
            let BlockUse::PendingFree { unrecorded, events } = &mut self.block(*addr).usage else {
                panic!("a pending free")
            };
            for stream in unrecorded.drain(..) {
                match calls.pop_front() {
                    Some(DeviceCall::RecordEvent(recorded, event)) if recorded == stream => {
                        events.push(event);
                    }
                    call => panic!("expected an event on stream {stream}, got {call:?}"),
                }
            }
        }
    }

    fn record_deferred(&mut self, calls: &mut VecDeque<DeviceCall>) {
        let deferred = std::mem::take(&mut self.deferred);
        self.take_recorded_events(&deferred, calls);
    }

    /// Frees the blocks with completed events.
    fn collect(&mut self, not_done: &BTreeSet<u64>) {
        for space in self.spaces.values_mut() {
            let is_done = |block: &NaiveBlock| match &block.usage {
                BlockUse::PendingFree { events, unrecorded } => {
                    unrecorded.is_empty() && events.iter().all(|event| !not_done.contains(event))
                }
                BlockUse::Live { .. } => false,
            };
            let before = space.blocks.len();
            space.blocks.retain(|_, block| !is_done(block));
            if space.blocks.len() < before {
                space.free_since = *self.lookups.entry((space.pool, space.size_class)).or_default();
            }
        }
    }

    pub(super) fn free(&mut self, addr: u64, calls: &mut VecDeque<DeviceCall>) {
        let BlockUse::Live { stream_uses } = self.block(addr).usage.clone() else { panic!("a live block") };
        if !stream_uses.is_empty() {
            self.block(addr).usage = BlockUse::PendingFree { unrecorded: stream_uses, events: Vec::new() };
            return match self.capture {
                Some(_) => self.deferred.push(addr),
                None => self.take_recorded_events(&[addr], calls),
            };
        }
        let space = self.spaces.range_mut(..=addr).next_back().expect("a space").1;
        space.blocks.remove(&addr);
        space.free_since = *self.lookups.entry((space.pool, space.size_class)).or_default();
    }

    /// The address that a request must get, or `None`. `not_done` is the events that were
    /// outstanding before it, `calls` the calls that the allocator made.
    pub(super) fn alloc(
        &mut self,
        not_done: &BTreeSet<u64>,
        requested_bytes: u64,
        stream: u64,
        calls: &mut VecDeque<DeviceCall>,
    ) -> Option<u64> {
        if self.capture.is_none() {
            // An event that is recorded now has not completed.
            self.collect(not_done);
            self.record_deferred(calls);
        }
        let bytes = self.rounded(requested_bytes);
        let size_class = if bytes <= MIB { BlockSizeClass::Small } else { BlockSizeClass::Large };
        let pool = self.capture.filter(|(_, of)| *of == stream).map_or(DEFAULT_POOL, |(pool, _)| pool);
        let can_expand = self.settings.expandable_segments;
        let mut request = NaiveRequest { bytes, stream, pool, size_class, can_expand };
        let found = self.search(&request).or_else(|| self.grow(&mut request, calls));
        self.check_calls(calls);
        let (space, addr, whole) = found?;
        let rest = whole - bytes;
        let splits = if self.without_splits == Some(request.pool) {
            false
        } else if size_class == BlockSizeClass::Small || request.can_expand {
            rest >= 512
        } else {
            rest > MIB && bytes < self.settings.max_split_bytes
        };
        let usage = BlockUse::Live { stream_uses: Vec::new() };
        let block = NaiveBlock { bytes: if splits { bytes } else { whole }, requested_bytes, usage };
        self.spaces.get_mut(&space)?.blocks.insert(addr, block);
        Some(addr)
    }

    fn rounded(&self, requested_bytes: u64) -> u64 {
        let bytes = requested_bytes.max(1);
        let mut power_of_two = 1;
        while power_of_two * 2 <= bytes {
            power_of_two *= 2;
        }
        let divisions = self.settings.roundup.divisions_for(bytes);
        let grain = if divisions > 1 && bytes > 512 * divisions {
            power_of_two / divisions
        } else if divisions == 1 && bytes > 512 && self.rules.one_division_keeps_size {
            1
        } else {
            512
        };
        bytes.div_ceil(grain) * grain
    }

    /// All free runs for this request's stream, pool and size class, in search order.
    fn free_runs(&self, request: &NaiveRequest) -> Vec<FreeRun> {
        let spaces = self.spaces.iter().filter(|(_, space)| {
            (space.stream, space.pool, space.size_class) == (request.stream, request.pool, request.size_class)
        });
        let mut runs: Vec<FreeRun> = spaces
            .flat_map(|(start, space)| {
                space.free_runs(*start).into_iter().map(|(addr, len)| (*start, addr, len))
            })
            .collect();
        runs.sort_by_key(|(space, addr, len)| (*len, self.spaces[space].number, *addr));
        runs
    }

    fn search(&mut self, request: &NaiveRequest) -> Option<FreeRun> {
        if self.limit_bytes.is_some() && self.settings.gc_threshold > 0.0 {
            *self.lookups.entry((request.pool, request.size_class)).or_default() += 1;
        }
        let runs: Vec<FreeRun> =
            self.free_runs(request).into_iter().filter(|run| run.2 >= request.bytes).collect();
        let is_expandable = |run: &FreeRun| self.spaces[&run.0].page_bytes.is_some();
        let mut found = *runs.first()?;
        if is_expandable(&found) && !request.can_expand {
            found = *runs.iter().find(|run| !is_expandable(run))?;
        } else if is_expandable(&found) {
            let grown = |run: &FreeRun| run.2 + self.spaces[&run.0].unmapped_at(run.0, run.1 + run.2);
            for next in &runs[1..] {
                if !is_expandable(&found) || grown(next) >= grown(&found) {
                    break;
                }
                found = *next;
            }
        }
        let limit = self.settings.max_split_bytes;
        let is_allowed = if request.bytes < limit {
            found.2 < limit
        } else {
            found.2 < request.bytes + self.settings.max_non_split_rounding_bytes
        };
        is_allowed.then_some(found)
    }

    fn grow(&mut self, request: &mut NaiveRequest, calls: &mut VecDeque<DeviceCall>) -> Option<FreeRun> {
        self.collect_garbage();
        if let Some(run) = self.add_memory(request, calls) {
            return Some(run);
        }
        if self.rules.fallback_pools == FallbackPools::BeforeRelease
            && let Some(run) = self.take_fallback(request)
        {
            return Some(run);
        }
        if self.release_oversize(request)
            && let Some(run) = self.add_memory(request, calls)
        {
            return Some(run);
        }
        if self.capture.is_none() {
            self.release(calls);
            if let Some(run) = self.add_memory(request, calls) {
                return Some(run);
            }
        }
        let is_last = self.rules.fallback_pools == FallbackPools::AfterRetry;
        if is_last { self.take_fallback(request) } else { None }
    }

    fn take_fallback(&mut self, request: &mut NaiveRequest) -> Option<FreeRun> {
        let pool = self.fallback.filter(|_| request.pool == DEFAULT_POOL)?;
        let can_expand = request.can_expand && self.rules.fallback_expands;
        let of_pool = NaiveRequest { pool, can_expand, ..*request };
        let run = self.search(&of_pool)?;
        *request = of_pool;
        Some(run)
    }

    fn add_memory(&mut self, request: &NaiveRequest, calls: &mut VecDeque<DeviceCall>) -> Option<FreeRun> {
        let segment = match request.bytes {
            ..=MIB => 2 * MIB,
            bytes if bytes < 10 * MIB => self.settings.large_segment_bytes,
            bytes => bytes.div_ceil(2 * MIB) * 2 * MIB,
        };
        if self.limit_bytes.is_some_and(|limit| self.used_bytes + segment > limit) {
            return None;
        }
        if request.can_expand && (request.pool == DEFAULT_POOL || self.rules.private_pools_expand) {
            return self.add_pages(request, calls);
        }
        if self.used_bytes + segment > CAPACITY_BYTES {
            return None;
        }
        self.check_calls(calls);
        let Some(DeviceCall::Alloc(addr, given)) = calls.pop_front() else {
            panic!("a segment is allocated")
        };
        assert_eq!(given, segment);
        self.used_bytes += segment;
        self.add_space(addr, segment, None, request);
        Some((addr, addr, segment))
    }

    fn add_space(&mut self, addr: u64, bytes: u64, page_bytes: Option<u64>, request: &NaiveRequest) {
        let is_numbered = self.rules.equal_size_order == EqualSizeOrder::BySegmentNumber;
        self.last_number += u64::from(is_numbered && page_bytes.is_none());
        let space = NaiveSpace {
            bytes,
            page_bytes,
            mapped: BTreeSet::new(),
            stream: request.stream,
            pool: request.pool,
            size_class: request.size_class,
            number: if page_bytes.is_none() { self.last_number } else { 0 },
            blocks: BTreeMap::new(),
            free_since: 0,
        };
        self.spaces.insert(addr, space);
    }

    /// Maps pages from the first gap on in which the request fits, as far as there is memory.
    fn add_pages(&mut self, request: &NaiveRequest, calls: &mut VecDeque<DeviceCall>) -> Option<FreeRun> {
        let of_request = |space: &NaiveSpace| {
            (space.stream, space.pool, space.size_class) == (request.stream, request.pool, request.size_class)
        };
        let arenas = self.spaces.iter().filter(|(_, space)| space.page_bytes.is_some() && of_request(space));
        let mut gaps = arenas
            .filter_map(|(start, space)| Some((*start, space.first_growing_gap(*start, request.bytes)?)));
        let place = gaps.next();
        let (start, addr) = place.unwrap_or_else(|| {
            self.check_calls(calls);
            let Some(DeviceCall::Reserve(addr, given)) = calls.pop_front() else { panic!("a reservation") };
            let page = if request.size_class == BlockSizeClass::Small {
                2 * MIB
            } else {
                self.settings.large_segment_bytes
            };
            assert_eq!(given, (CAPACITY_BYTES / 8 * 9).div_ceil(page) * page);
            self.add_space(addr, given, Some(page), request);
            (addr, addr)
        });
        // Runs of pages without memory are mapped one call each.
        for (from, bytes) in self.spaces[&start].missing_pages(start, addr, request.bytes) {
            if self.used_bytes + bytes > CAPACITY_BYTES {
                return None;
            }
            self.used_bytes += bytes;
            self.expected.push(DeviceCall::Map(from, bytes));
            self.spaces.get_mut(&start)?.map(start, from, bytes);
        }
        let runs = self.spaces[&start].free_runs(start);
        let (addr, len) = runs.into_iter().find(|(at, len)| (*at..at + len).contains(&addr))?;
        Some((start, addr, len))
    }

    fn collect_garbage(&mut self) {
        let Some(limit) = self.limit_bytes.filter(|_| self.settings.gc_threshold > 0.0) else { return };
        let threshold = (self.settings.gc_threshold * limit as f64) as u64;
        if self.used_bytes <= threshold {
            return;
        }
        let target = self.used_bytes - threshold;
        let now = self.lookups.get(&(DEFAULT_POOL, BlockSizeClass::Large)).copied().unwrap_or(0);
        let mut free: Vec<(u64, u64, u64, u64, u64)> = self
            .spaces
            .iter()
            .filter(|(_, space)| space.is_idle_segment() && space.pool == DEFAULT_POOL)
            .filter(|(_, space)| space.size_class == BlockSizeClass::Large)
            .map(|(addr, space)| (space.stream, space.bytes, space.number, *addr, now - space.free_since))
            .collect();
        free.sort_unstable();
        let (mut reclaimed, mut total_age) = (0, free.iter().map(|row| row.4).sum::<u64>());
        while reclaimed < target && !free.is_empty() {
            let threshold = total_age as f64 / free.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = free.into_iter().partition(|row| row.4 as f64 >= threshold);
            for (_, bytes, _, addr, age) in old {
                (reclaimed, total_age) = (reclaimed + bytes, total_age - age);
                self.release_space(addr);
            }
            free = young;
        }
    }

    fn release_oversize(&mut self, request: &NaiveRequest) -> bool {
        let limit = self.settings.max_split_bytes;
        if limit == u64::MAX {
            return false;
        }
        let wanted = request.bytes.max(limit);
        let runs = self.free_runs(request);
        let is_segment = |run: &FreeRun| self.spaces[&run.0].page_bytes.is_none();
        if let Some(first) = runs.iter().find(|run| run.2 >= wanted).filter(|run| is_segment(run)) {
            self.release_space(first.0);
            return true;
        }
        let mut total = 0;
        let mut chosen = Vec::new();
        for run in runs.iter().rev().filter(|run| run.2 < wanted) {
            if total >= wanted || run.2 < limit {
                break;
            }
            if is_segment(run) {
                total += run.2;
                chosen.push(run.0);
            }
        }
        for addr in chosen {
            self.release_space(addr);
        }
        total >= wanted
    }

    fn release_space(&mut self, addr: u64) {
        let space = self.spaces.remove(&addr).expect("a segment");
        assert!(space.is_idle_segment());
        self.used_bytes -= space.bytes;
        self.expected.push(DeviceCall::Free(addr));
    }

    /// Frees all that can be freed, after all events.
    pub(super) fn release(&mut self, calls: &mut VecDeque<DeviceCall>) {
        self.check_calls(calls);
        self.record_deferred(calls);
        self.collect(&BTreeSet::new());
        let users = &self.users;
        let may_release = |space: &NaiveSpace| {
            space.pool == DEFAULT_POOL || users.get(&space.pool).copied().unwrap_or(0) == 0
        };
        let mut expected = BTreeSet::new();
        for (start, space) in self.spaces.iter_mut().filter(|(_, space)| may_release(space)) {
            if space.is_idle_segment() {
                self.used_bytes -= space.bytes;
                expected.insert(DeviceCall::Free(*start));
            }
            for (addr, bytes) in space.unmap_free_pages(*start) {
                self.used_bytes -= bytes;
                expected.insert(DeviceCall::Unmap(addr, bytes));
                if space.mapped.is_empty() {
                    expected.insert(DeviceCall::Release(*start));
                }
            }
        }
        self.spaces.retain(|addr, _| {
            !expected.contains(&DeviceCall::Free(*addr)) && !expected.contains(&DeviceCall::Release(*addr))
        });
        let is_release = |call: &DeviceCall| {
            matches!(call, DeviceCall::Free(_) | DeviceCall::Unmap(..) | DeviceCall::Release(_))
        };
        let mut made = BTreeSet::new();
        while let Some(call) = calls.front().copied().filter(is_release) {
            made.insert(call);
            calls.pop_front();
        }
        assert_eq!(made, expected, "memory that returns to the driver");
        self.forget_unused_pools();
    }

    /// Forgets private pools without users and memory. As in PyTorch, reserved addresses leak.
    pub(super) fn forget_unused_pools(&mut self) {
        let captured = self.capture.map(|(pool, _)| pool);
        let is_kept = |space: &NaiveSpace| space.page_bytes.is_none() || !space.mapped.is_empty();
        let kept: BTreeSet<PoolId> =
            self.spaces.values().filter(|space| is_kept(space)).map(|space| space.pool).collect();
        let users = &self.users;
        self.spaces.retain(|_, space| {
            let has_users = users.get(&space.pool).is_some_and(|users| *users > 0);
            space.pool == DEFAULT_POOL
                || has_users
                || captured == Some(space.pool)
                || kept.contains(&space.pool)
        });
        let spaces = &self.spaces;
        self.lookups.retain(|(pool, _), _| {
            *pool == DEFAULT_POOL
                || users.get(pool).is_some_and(|users| *users > 0)
                || captured == Some(*pool)
                || spaces.values().any(|space| space.pool == *pool)
        });
    }

    /// Takes the expected calls, which must be the next ones.
    fn check_calls(&mut self, calls: &mut VecDeque<DeviceCall>) {
        for call in self.expected.drain(..) {
            assert_eq!(calls.pop_front(), Some(call));
        }
    }

    /// Compares the statistics and the unused bytes with sums over all blocks.
    pub(super) fn check(&self, cache: &CachingAllocator<CheckedDevice>) {
        let mut sums = [0u64; 9];
        let mut unused = UnusedBytes::default();
        let mut add = |kind: StatKind, amount| sums[kind as usize] += amount;
        for (start, space) in &self.spaces {
            for block in space.blocks.values() {
                if let BlockUse::Live { .. } = block.usage {
                    add(StatKind::Allocation, 1);
                    add(StatKind::AllocatedBytes, block.bytes);
                    unused.rounding_bytes += block.bytes - block.requested_bytes;
                } else {
                    unused.pending_free_bytes += block.bytes;
                }
                add(StatKind::Active, 1);
                add(StatKind::ActiveBytes, block.bytes);
                add(StatKind::RequestedBytes, block.requested_bytes);
            }
            for (addr, bytes) in space.free_runs(*start) {
                let whole_bytes = space.whole_bytes(*start, addr, bytes);
                unused.cached_bytes += whole_bytes;
                unused.pinned_bytes += bytes - whole_bytes;
            }
            if space.page_bytes.is_none() {
                add(StatKind::Segment, 1);
                for (_, bytes) in space.free_runs(*start).iter().filter(|run| run.1 < space.bytes) {
                    add(StatKind::InactiveSplit, 1);
                    add(StatKind::InactiveSplitBytes, *bytes);
                }
            }
        }
        add(StatKind::ReservedBytes, self.used_bytes);
        assert_eq!(cache.backend.used_bytes, self.used_bytes);
        for kind in StatKind::ALL {
            assert_eq!(cache.stats.current(*kind), sums[*kind as usize], "{kind:?}");
        }
        assert_eq!(cache.unused_bytes(), unused);
    }
}
