//! Request streams from a seed.
//!
//! A stream consists of phases of a few hundred to a few thousand requests. Each phase has its own
//! target of live memory, mix of sizes and order of frees, so that caches grow, fragment and run
//! into the limit of the card. Half of the sizes repeat an earlier one, as in training.

use std::collections::VecDeque;

use clap::ValueEnum;

use crate::random::SplitMix;
use crate::request::{AllocationNumber, OracleRequest, PoolNumber, StreamHeader, StreamNumber};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Sizes where PyTorch's rules change.
const EDGES: [u64; 12] =
    [512, KIB, 512 * KIB, MIB, 2 * MIB, 5 * MIB, 10 * MIB, 20 * MIB, 21 * MIB, 32 * MIB, 40 * MIB, 64 * MIB];
/// Live blocks at most. Real programs have thousands.
const LIVE_BLOCKS: usize = 4000;
/// What settings change to. A lower limit of splits would make PyTorch free parts of segments.
const SETTINGS: [&str; 4] =
    ["", "roundup_power2_divisions:4", "garbage_collection_threshold:0.7", "max_split_size_mb:2000"];
const RECENT_SIZES: usize = 64;
/// Private pools of a stream that keeps them.
const KEPT_POOLS: u32 = 6;

/// A kind of request that a stream contains besides allocations and frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RequestFeature {
    /// Blocks used by other streams, and completions of streams.
    RecordStream,
    /// Calls that empty the cache.
    EmptyCache,
    /// Changes of the memory fraction.
    Fraction,
    /// Device memory that the allocator does not know.
    Outside,
    /// Private pools of `torch.cuda.use_mem_pool`, from PyTorch 2.6 on.
    MemPools,
    /// Captures of CUDA graphs.
    Captures,
    /// Private pools that lose all users. Without this, a stream has few pools and keeps them.
    ReleasePools,
    /// Calls that empty the cache of one private pool, from PyTorch 2.8 on.
    EmptyPools,
    /// Private pools within private pools of `torch.cuda.use_mem_pool`.
    NestedPools,
    /// Pools without splits and pools for failing allocations, from PyTorch 2.10 on.
    PoolOptions,
    /// Pools for failing allocations alone, from PyTorch 2.8 on.
    FallbackPools,
    /// Changes of allocator settings at run time.
    Settings,
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    number: AllocationNumber,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum FreeOrder {
    Newest,
    Oldest,
    Random,
}

/// What stays the same for some hundred requests.
#[derive(Clone, Debug)]
struct Phase {
    left: u64,
    target_bytes: u64,
    order: FreeOrder,
    /// Weights of tiny, small, medium and large sizes, and of edges.
    size_weights: [u64; 5],
}

/// The pool that allocations go to.
#[derive(Clone, Copy, Debug)]
struct Route {
    pool: PoolNumber,
    captured: Option<StreamNumber>,
    left: u64,
}

/// An endless request stream.
#[derive(Clone, Debug)]
pub struct RequestGenerator {
    random: SplitMix,
    features: Vec<RequestFeature>,
    card_bytes: u64,
    /// Part of the card that the allocator may use.
    fraction: f64,
    streams: u32,
    phase: Phase,
    live: VecDeque<LiveBlock>,
    live_bytes: u64,
    recent_sizes: Vec<u64>,
    allocations: u32,
    outside: u32,
    pools: u32,
    /// A pool serves failing allocations.
    has_fallback: bool,
    /// The innermost is the last.
    routes: Vec<Route>,
    /// The pool of each user that is not released.
    users: Vec<PoolNumber>,
    queued: VecDeque<OracleRequest>,
}

impl RequestGenerator {
    /// Generates equal requests for equal arguments.
    pub fn new(seed: u64, header: &StreamHeader, features: &[RequestFeature]) -> Self {
        Self {
            random: SplitMix::new(seed),
            features: features.to_vec(),
            card_bytes: header.card_bytes,
            fraction: 1.0,
            streams: header.streams,
            phase: Phase { left: 0, target_bytes: 0, order: FreeOrder::Random, size_weights: [1; 5] },
            live: VecDeque::new(),
            live_bytes: 0,
            recent_sizes: Vec::new(),
            allocations: 0,
            outside: 0,
            pools: 0,
            has_fallback: false,
            routes: Vec::new(),
            users: Vec::new(),
            queued: VecDeque::new(),
        }
    }

    fn has(&self, feature: RequestFeature) -> bool {
        self.features.contains(&feature)
    }

    fn next_request(&mut self) -> OracleRequest {
        if let Some(request) = self.queued.pop_front() {
            return request;
        }
        self.phase.left = self.phase.left.saturating_sub(1);
        if self.phase.left == 0 {
            self.begin_phase();
        }
        if let Some(route) = self.routes.last_mut() {
            route.left = route.left.saturating_sub(1);
            if route.left == 0 {
                return self.end_route();
            }
        }
        if let Some(request) = self.rare_request() {
            return request;
        }
        let is_full = self.live_bytes > self.phase.target_bytes || self.live.len() >= LIVE_BLOCKS;
        let wants_block = self.random.per_mille(if is_full { 300 } else { 620 });
        if wants_block || self.live.is_empty() { self.allocate() } else { self.free() }
    }

    fn begin_phase(&mut self) {
        let random = &mut self.random;
        let limit = (self.fraction * self.card_bytes as f64) as u64;
        let target_bytes = match random.below(100) {
            0..30 => random.between(limit / 50, limit / 4),
            30..85 => random.between(limit / 4, limit / 100 * 65),
            85..97 => random.between(limit / 100 * 65, limit / 100 * 85),
            _ => limit + limit / 10,
        };
        let order = match random.below(4) {
            0 => FreeOrder::Newest,
            1 => FreeOrder::Oldest,
            _ => FreeOrder::Random,
        };
        let size_weights = std::array::from_fn(|_| random.below(10).pow(2) + 1);
        self.phase = Phase { left: random.between(300, 5000), target_bytes, order, size_weights };
    }

    /// A request other than an allocation or a free, now and then.
    fn rare_request(&mut self) -> Option<OracleRequest> {
        let dice = self.random.below(100_000);
        let stream = StreamNumber(self.random.below(self.streams.into()) as u32);
        let is_routed = !self.routes.is_empty();
        let may_nest = self.has(RequestFeature::NestedPools)
            && self.routes.len() == 1
            && self.routes.iter().all(|route| route.captured.is_none());
        match dice {
            0..100 => Some(OracleRequest::LogStatistics),
            100..150 if self.has(RequestFeature::EmptyCache) && !is_routed => {
                Some(OracleRequest::EmptyCache(None))
            }
            150..170 if self.has(RequestFeature::Fraction) => {
                let fraction =
                    if self.random.per_mille(500) { 1.0 } else { 0.5 + self.random.below(50) as f64 / 100.0 };
                Some(OracleRequest::SetFraction(fraction))
            }
            170..190 if self.has(RequestFeature::Outside) && !is_routed => Some(self.change_outside()),
            1000..3000 if self.has(RequestFeature::RecordStream) => {
                Some(OracleRequest::CompleteStream(stream))
            }
            // During a capture PyTorch notes the use under the block's heap address. The note
            // outlives the block, so what follows would differ from run to run.
            3000..7000 if self.has(RequestFeature::RecordStream) && !self.live.is_empty() && !is_routed => {
                let block = self.live[self.random.below(self.live.len() as u64) as usize];
                Some(OracleRequest::RecordStream(block.number, stream))
            }
            900..930 if self.has(RequestFeature::Settings) => {
                let settings = SETTINGS[self.random.below(SETTINGS.len() as u64) as usize];
                Some(OracleRequest::SetSettings(settings.to_owned()))
            }
            7000..7100 if self.has(RequestFeature::MemPools) && (!is_routed || may_nest) => {
                Some(self.begin_mem_pool())
            }
            7000..7500 if may_nest && self.has(RequestFeature::MemPools) => Some(self.begin_mem_pool()),
            7100..7200 if self.has(RequestFeature::Captures) && !is_routed && self.streams > 1 => {
                Some(self.begin_capture())
            }
            7200..7300 if self.has(RequestFeature::ReleasePools) && !self.users.is_empty() && !is_routed => {
                let at = self.random.below(self.users.len() as u64) as usize;
                let pool = self.users.swap_remove(at);
                if self.has(RequestFeature::EmptyPools) && !self.users.contains(&pool) {
                    self.queued.push_back(OracleRequest::EmptyCache(Some(pool)));
                }
                Some(OracleRequest::ReleasePool(pool))
            }
            _ => None,
        }
    }

    fn change_outside(&mut self) -> OracleRequest {
        // The newest is freed half of the time, so that holes come and go.
        let held = self.outside;
        if held > 0 && self.random.per_mille(500) {
            return OracleRequest::FreeOutside(self.random.below(held.into()) as u32);
        }
        self.outside += 1;
        OracleRequest::AllocateOutside(self.random.between(1, 1 + self.card_bytes / 32 / MIB) * 2 * MIB)
    }

    /// A pool that has a user, or `None` for a new one.
    fn known_pool(&mut self, per_mille: u64) -> Option<PoolNumber> {
        let releases = self.has(RequestFeature::ReleasePools);
        let wants_known = self.random.per_mille(per_mille) || !releases && self.pools >= KEPT_POOLS;
        let at = self.random.below(self.users.len() as u64) as usize;
        self.users.get(at).copied().filter(|_| wants_known)
    }

    fn begin_mem_pool(&mut self) -> OracleRequest {
        let left = self.random.between(10, 400);
        // PyTorch refuses a pool that is active already.
        let active = self.routes.last().map(|route| route.pool);
        let known = self.known_pool(500).filter(|pool| Some(*pool) != active);
        let pool = known.unwrap_or(PoolNumber(self.pools + 1));
        self.routes.push(Route { pool, captured: None, left });
        if known.is_some() {
            return OracleRequest::BeginPool(pool, None);
        }
        self.pools += 1;
        self.users.push(pool);
        let has_options = self.has(RequestFeature::PoolOptions);
        if has_options && self.random.per_mille(300) {
            self.queued.push_back(OracleRequest::ForbidSplits(pool));
        }
        // PyTorch tries several such pools in the order of a hash table.
        let has_fallbacks = has_options || self.has(RequestFeature::FallbackPools);
        if has_fallbacks && !self.has_fallback && self.random.per_mille(300) {
            self.has_fallback = true;
            self.queued.push_back(OracleRequest::UseOnOutOfMemory(pool));
        }
        self.queued.push_back(OracleRequest::BeginPool(pool, None));
        OracleRequest::AddPoolUser(pool)
    }

    fn begin_capture(&mut self) -> OracleRequest {
        let known = self.known_pool(300);
        let pool = known.unwrap_or(PoolNumber(self.pools + 1));
        self.pools = self.pools.max(pool.0);
        let stream = StreamNumber(self.random.between(1, u64::from(self.streams) - 1) as u32);
        let left = self.random.between(10, 400);
        self.routes.push(Route { pool, captured: Some(stream), left });
        self.queued.push_back(OracleRequest::BeginCapture(stream));
        OracleRequest::BeginPool(pool, Some(stream))
    }

    fn end_route(&mut self) -> OracleRequest {
        let Some(Route { pool, captured, .. }) = self.routes.pop() else {
            return OracleRequest::LogStatistics;
        };
        if let Some(stream) = captured {
            // The graph holds the pool until it is destroyed.
            self.users.push(pool);
            self.queued.push_back(OracleRequest::EndPool(pool));
            return OracleRequest::EndCapture(stream);
        }
        self.queued.push_back(OracleRequest::ReleasePool(pool));
        OracleRequest::EndPool(pool)
    }

    fn allocate(&mut self) -> OracleRequest {
        let bytes = self.size();
        // A capture allocates on its own stream, and sometimes another thread on another stream.
        let captured = self.routes.last().and_then(|route| route.captured);
        let stream = match captured {
            Some(stream) if !self.random.per_mille(100) => stream,
            // The default stream serves most requests.
            _ if self.random.per_mille(600) => StreamNumber(0),
            _ => StreamNumber(self.random.below(self.streams.into()) as u32),
        };
        self.live.push_back(LiveBlock { number: AllocationNumber(self.allocations), bytes });
        self.allocations += 1;
        self.live_bytes += bytes;
        OracleRequest::Allocate { bytes, stream }
    }

    fn size(&mut self) -> u64 {
        if self.random.per_mille(500) && !self.recent_sizes.is_empty() {
            return self.recent_sizes[self.random.below(self.recent_sizes.len() as u64) as usize];
        }
        let random = &mut self.random;
        let weights = self.phase.size_weights;
        let mut dice = random.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let is_hit = dice < *weight;
            dice = dice.wrapping_sub(*weight);
            is_hit
        });
        let bytes = match kind {
            Some(0) => random.between(1, 64 * KIB),
            Some(1) => random.between(1, 2 * MIB),
            Some(2) => random.between(MIB, 12 * MIB),
            Some(3) if random.per_mille(950) => random.between(8 * MIB, 64 * MIB),
            // Larger than any limit of splits.
            Some(3) => random.between(64 * MIB, 400 * MIB),
            _ => {
                let edge = EDGES[random.below(EDGES.len() as u64) as usize];
                [edge - 1, edge, edge + 1, edge + 512][random.below(4) as usize]
            }
        };
        if self.recent_sizes.len() < RECENT_SIZES {
            self.recent_sizes.push(bytes);
        } else {
            let at = self.random.below(RECENT_SIZES as u64) as usize;
            self.recent_sizes[at] = bytes;
        }
        bytes
    }

    fn free(&mut self) -> OracleRequest {
        let removed = match self.phase.order {
            FreeOrder::Newest => self.live.pop_back(),
            FreeOrder::Oldest => self.live.pop_front(),
            FreeOrder::Random => {
                let at = self.random.below(self.live.len() as u64) as usize;
                self.live.swap_remove_back(at)
            }
        };
        let Some(LiveBlock { number, bytes }) = removed else { return OracleRequest::LogStatistics };
        self.live_bytes -= bytes;
        OracleRequest::Free(number)
    }
}

impl Iterator for RequestGenerator {
    type Item = OracleRequest;

    fn next(&mut self) -> Option<OracleRequest> {
        Some(self.next_request())
    }
}
