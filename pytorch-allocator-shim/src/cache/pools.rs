//! Free blocks, by whom they may be given to.
//!
//! Constraint: the replay of a CUDA graph uses the addresses of its capture again, so nobody else may get them. Consequence:
//! besides the default pool there are private ones; a request belongs to the private pool of the first capture whose filter
//! knows its stream. A private pool whose last user has let it go gives its segments back as soon as they are free.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::blocks::{Block, BlockId};
use super::size_rules::Half;

/// Both halves of PyTorch's `MempoolId_t`.
pub(crate) type PoolId = (u64, u64);

/// Place of a pool in the table; the default pool is the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolIndex(u32);

/// A free block in the order in which it is looked for: by stream, then the smallest, then the lowest address.
type Key = (u64, u64, u64, BlockId);

/// Whether an allocation on a stream belongs to a capture.
pub(crate) type Filter = Box<dyn Fn(u64) -> bool + Send>;

/// One pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// `(0, 0)` is the default pool.
    pub(crate) id: PoolId,
    /// Captures and graphs that keep it.
    users: u32,
    /// Captures into it that have not ended.
    routes: u32,
    /// Segments it has.
    pub(crate) segments: u32,
    free: [BTreeSet<Key>; 2],
}

impl Pool {
    /// The smallest free block of a stream that is large enough, and of those the first.
    pub(crate) fn best_fit(&self, half: Half, stream: u64, bytes: u64) -> Option<BlockId> {
        let from = (stream, bytes, 0, BlockId::LEAST);
        let (its_stream, _, _, id) = *self.free[half as usize].range(from..).next()?;
        (its_stream == stream).then_some(id)
    }

    /// Adds a free block.
    pub(crate) fn put(&mut self, id: BlockId, block: &Block) {
        self.free[block.half as usize].insert(key(id, block));
    }

    /// Takes a free block out, as it was put in.
    pub(crate) fn take(&mut self, id: BlockId, block: &Block) {
        let was_there = self.free[block.half as usize].remove(&key(id, block));
        debug_assert!(was_there, "a free block is in its pool");
    }

    /// All free blocks, large ones first.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        [Half::Large, Half::Small]
            .into_iter()
            .flat_map(|half| self.free[half as usize].iter().map(|key| key.3))
    }
}

fn key(id: BlockId, block: &Block) -> Key {
    (block.stream, block.bytes, block.addr, id)
}

/// A capture, or a `use_mem_pool`, that has begun and not ended.
struct Route {
    pool: PoolIndex,
    filter: Filter,
    /// If it was begun for one stream.
    stream: Option<u64>,
}

impl fmt::Debug for Route {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(formatter)
    }
}

/// All pools of a device.
#[derive(Debug)]
pub(crate) struct Pools {
    table: Vec<Pool>,
    by_id: HashMap<PoolId, PoolIndex>,
    routes: Vec<Route>,
}

impl Default for Pools {
    fn default() -> Self {
        Self { table: vec![Pool::default()], by_id: HashMap::new(), routes: Vec::new() }
    }
}

impl Pools {
    /// True while a capture may be under way: nothing may be asked of events then, and nothing given back to the driver.
    pub(crate) fn is_capturing(&self) -> bool {
        !self.routes.is_empty()
    }

    /// The pool that an allocation on this stream belongs to.
    pub(crate) fn route(&self, stream: u64) -> PoolIndex {
        self.routes.iter().find(|route| (route.filter)(stream)).map_or(PoolIndex(0), |route| route.pool)
    }

    /// From now on, what the filter knows belongs to this pool, which gets a user more.
    pub(crate) fn begin(&mut self, id: PoolId, filter: Filter) {
        let table = &mut self.table;
        let pool = *self.by_id.entry(id).or_insert_with(|| {
            // Places of pools that have gone are used again.
            let gone = table.iter().skip(1).position(Pool::has_gone).map(|at| at + 1);
            let at = gone.unwrap_or_else(|| {
                table.push(Pool::default());
                table.len() - 1
            });
            table[at] = Pool { id, ..Pool::default() };
            PoolIndex(at as u32)
        });
        self.table[pool.0 as usize].users += 1;
        self.table[pool.0 as usize].routes += 1;
        self.routes.push(Route { pool, filter, stream: None });
    }

    /// The capture into this pool is over.
    pub(crate) fn end(&mut self, id: PoolId) {
        let pool = self.by_id.get(&id);
        if let Some(at) = pool.and_then(|pool| self.routes.iter().position(|route| route.pool == *pool)) {
            self.remove_route(at);
        }
    }

    fn remove_route(&mut self, at: usize) {
        let route = self.routes.remove(at);
        self.table[route.pool.0 as usize].routes -= 1;
        self.forget_empty();
    }

    /// From now on, what is made for this stream belongs to this pool (torch 2.1 and 2.2).
    pub(crate) fn begin_stream(&mut self, stream: u64, id: PoolId) {
        self.begin(id, Box::new(move |of| of == stream));
        if let Some(route) = self.routes.last_mut() {
            route.stream = Some(stream);
        }
    }

    /// No longer.
    pub(crate) fn end_stream(&mut self, stream: u64) {
        if let Some(at) = self.routes.iter().position(|route| route.stream == Some(stream)) {
            self.remove_route(at);
        }
    }

    /// A user lets go of this pool.
    pub(crate) fn release(&mut self, id: PoolId) {
        if let Some(pool) = self.by_id.get(&id) {
            let pool = &mut self.table[pool.0 as usize];
            pool.users = pool.users.saturating_sub(1);
        }
        self.forget_empty();
    }

    /// Pools whose free segments may go back to the driver: the default one, and private ones without users.
    pub(crate) fn releasable(&self) -> impl Iterator<Item = PoolIndex> + use<> {
        let without_users =
            |(at, pool): (usize, &Pool)| (at == 0 || pool.users == 0).then_some(PoolIndex(at as u32));
        self.table.iter().enumerate().filter_map(without_users).collect::<Vec<_>>().into_iter()
    }

    /// Forgets private pools that have neither users nor segments.
    pub(crate) fn forget_empty(&mut self) {
        let table = &self.table;
        self.by_id.retain(|_, pool| !table[pool.0 as usize].has_gone());
    }

    pub(crate) fn get(&self, pool: PoolIndex) -> &Pool {
        &self.table[pool.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, pool: PoolIndex) -> &mut Pool {
        &mut self.table[pool.0 as usize]
    }
}

impl Pool {
    fn has_gone(&self) -> bool {
        self.users == 0 && self.routes == 0 && self.segments == 0
    }
}
