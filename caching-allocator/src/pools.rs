//! The free blocks of one device, by pool.
//!
//! Replaying a CUDA graph reuses the addresses of its capture, so no other request may get them.
//! Besides the default pool there are private pools; a request belongs to the private pool of the
//! first active capture with a filter that accepts its stream. A private pool without users returns
//! its segments to the driver once they are free.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::blocks::AllocatorBlock;
use super::ids::{BlockId, PoolId, PoolIndex};
use super::size_rules::BlockSizeClass;

/// Search order of free blocks: stream, then size, then address.
type FreeBlockKey = (u64, u64, u64, BlockId);

/// Whether an allocation on the given stream belongs to a capture.
pub type CaptureFilter = Box<dyn Fn(u64) -> bool + Send>;

/// The free blocks of one pool, and the captures and graphs that use it.
#[derive(Debug, Default)]
pub(crate) struct BlockPool {
    pub(crate) id: PoolId,
    /// Captures and graphs that hold the pool.
    users: u32,
    /// Active captures into the pool.
    routes: u32,
    pub(crate) segments: u32,
    free: [BTreeSet<FreeBlockKey>; 2],
}

impl BlockPool {
    /// The smallest free block of `stream` with at least `bytes`; the lowest address among equals.
    pub(crate) fn best_fit(&self, size_class: BlockSizeClass, stream: u64, bytes: u64) -> Option<BlockId> {
        let from = (stream, bytes, 0, BlockId::LEAST);
        let (its_stream, _, _, id) = *self.free[size_class as usize].range(from..).next()?;
        (its_stream == stream).then_some(id)
    }

    pub(crate) fn insert(&mut self, id: BlockId, block: &AllocatorBlock) {
        self.free[block.size_class as usize].insert(free_block_key(id, block));
    }

    /// Removes a free block, which must be unchanged since it was inserted.
    pub(crate) fn remove(&mut self, id: BlockId, block: &AllocatorBlock) {
        let was_there = self.free[block.size_class as usize].remove(&free_block_key(id, block));
        debug_assert!(was_there, "a free block is in its pool");
    }

    /// All free blocks, those of the large size class first.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        [BlockSizeClass::Large, BlockSizeClass::Small]
            .into_iter()
            .flat_map(|size_class| self.free[size_class as usize].iter().map(|key| key.3))
    }

    fn is_unused(&self) -> bool {
        self.users == 0 && self.routes == 0 && self.segments == 0
    }
}

fn free_block_key(id: BlockId, block: &AllocatorBlock) -> FreeBlockKey {
    (block.stream, block.bytes, block.addr, id)
}

/// An active capture, or an active `use_mem_pool`.
struct CaptureRoute {
    pool: PoolIndex,
    filter: CaptureFilter,
    /// Set if the capture was begun for one stream (torch 2.1 and 2.2).
    stream: Option<u64>,
}

impl fmt::Debug for CaptureRoute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(formatter)
    }
}

/// All pools of a device.
#[derive(Debug)]
pub(crate) struct PoolTable {
    table: Vec<BlockPool>,
    by_id: HashMap<PoolId, PoolIndex>,
    routes: Vec<CaptureRoute>,
}

impl Default for PoolTable {
    fn default() -> Self {
        Self { table: vec![BlockPool::default()], by_id: HashMap::new(), routes: Vec::new() }
    }
}

impl PoolTable {
    /// True while a capture may be active. No event may be queried then, and no segment freed.
    pub(crate) fn is_capturing(&self) -> bool {
        !self.routes.is_empty()
    }

    /// The pool that an allocation on `stream` belongs to.
    pub(crate) fn pool_for_stream(&self, stream: u64) -> PoolIndex {
        self.routes.iter().find(|route| (route.filter)(stream)).map_or(PoolIndex(0), |route| route.pool)
    }

    /// Sends allocations that `filter` accepts to this pool, and adds a user to it.
    pub(crate) fn begin_capture(&mut self, id: PoolId, filter: CaptureFilter) {
        let table = &mut self.table;
        let pool = *self.by_id.entry(id).or_insert_with(|| {
            let unused = table.iter().skip(1).position(BlockPool::is_unused).map(|at| at + 1);
            let at = unused.unwrap_or_else(|| {
                table.push(BlockPool::default());
                table.len() - 1
            });
            table[at] = BlockPool { id, ..BlockPool::default() };
            PoolIndex(at as u32)
        });
        self.table[pool.0 as usize].users += 1;
        self.table[pool.0 as usize].routes += 1;
        self.routes.push(CaptureRoute { pool, filter, stream: None });
    }

    /// Ends the oldest active capture into this pool. The pool keeps its user.
    pub(crate) fn end_capture(&mut self, id: PoolId) {
        let pool = self.by_id.get(&id);
        if let Some(at) = pool.and_then(|pool| self.routes.iter().position(|route| route.pool == *pool)) {
            self.remove_route(at);
        }
    }

    /// [`begin_capture`](Self::begin_capture) for one stream (torch 2.1 and 2.2).
    pub(crate) fn begin_stream_capture(&mut self, stream: u64, id: PoolId) {
        self.begin_capture(id, Box::new(move |of| of == stream));
        if let Some(route) = self.routes.last_mut() {
            route.stream = Some(stream);
        }
    }

    /// [`end_capture`](Self::end_capture) for one stream (torch 2.1 and 2.2).
    pub(crate) fn end_stream_capture(&mut self, stream: u64) {
        if let Some(at) = self.routes.iter().position(|route| route.stream == Some(stream)) {
            self.remove_route(at);
        }
    }

    fn remove_route(&mut self, at: usize) {
        let route = self.routes.remove(at);
        self.table[route.pool.0 as usize].routes -= 1;
        self.remove_unused();
    }

    /// Removes a user from this pool.
    pub(crate) fn release_user(&mut self, id: PoolId) {
        if let Some(pool) = self.by_id.get(&id) {
            let pool = &mut self.table[pool.0 as usize];
            pool.users = pool.users.saturating_sub(1);
        }
        self.remove_unused();
    }

    /// The pools that may free segments: the default pool, and private pools without users.
    pub(crate) fn releasable(&self) -> impl Iterator<Item = PoolIndex> + use<> {
        let without_users =
            |(at, pool): (usize, &BlockPool)| (at == 0 || pool.users == 0).then_some(PoolIndex(at as u32));
        self.table.iter().enumerate().filter_map(without_users).collect::<Vec<_>>().into_iter()
    }

    /// Removes private pools that have no user, capture or segment; their table entries are reused.
    pub(crate) fn remove_unused(&mut self) {
        let table = &self.table;
        self.by_id.retain(|_, pool| !table[pool.0 as usize].is_unused());
    }

    pub(crate) fn get(&self, pool: PoolIndex) -> &BlockPool {
        &self.table[pool.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, pool: PoolIndex) -> &mut BlockPool {
        &mut self.table[pool.0 as usize]
    }
}
