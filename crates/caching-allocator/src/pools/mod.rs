//! The pools of one device, and which of them serves a request.
//!
//! Replaying a CUDA graph reuses the addresses of its capture, so no other request may get them.
//! Besides the default pool there are private pools. A request belongs to the private pool of an
//! active capture or `torch.cuda.use_mem_pool` with a filter that accepts its stream. A private
//! pool without users returns its segments to the driver once they are free.

mod block_pool;
mod free_blocks;

use std::collections::HashMap;
use std::fmt;

pub(crate) use block_pool::BlockPool;

use crate::ids::{BlockId, PoolId, PoolIndex};
use crate::rules::PoolRouting;
use crate::size_rules::BlockSizeClass;

/// Whether an allocation on the given stream belongs to a capture.
pub type CaptureFilter = Box<dyn Fn(u64) -> bool + Send>;

/// Why requests go to a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RouteReason {
    /// A CUDA graph is being captured, or may be.
    GraphCapture,
    /// `torch.cuda.use_mem_pool` is active, without a capture.
    MemPool,
}

/// An active capture, or an active `use_mem_pool`.
struct CaptureRoute {
    pool: PoolIndex,
    filter: CaptureFilter,
    reason: RouteReason,
    /// Set if the capture was begun for one stream (torch 2.1 and 2.2).
    stream: Option<u64>,
}

impl fmt::Debug for CaptureRoute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {:?}", self.reason, self.pool)
    }
}

/// All pools of a device.
#[derive(Debug)]
pub(crate) struct PoolTable {
    table: Vec<BlockPool>,
    by_id: HashMap<PoolId, PoolIndex>,
    routes: Vec<CaptureRoute>,
    /// Captures that the program reported apart from routes.
    marked_captures: u32,
    /// Pools that serve requests which the driver refused, in the order of their names.
    fallbacks: Vec<PoolId>,
}

impl Default for PoolTable {
    fn default() -> Self {
        Self {
            table: vec![BlockPool::default()],
            by_id: HashMap::new(),
            routes: Vec::new(),
            marked_captures: 0,
            fallbacks: Vec::new(),
        }
    }
}

impl PoolTable {
    /// A copy; `None` while requests may go to a private pool.
    pub(crate) fn copy_without_routes(&self) -> Option<Self> {
        self.routes.is_empty().then(|| Self {
            table: self.table.clone(),
            by_id: self.by_id.clone(),
            routes: Vec::new(),
            marked_captures: self.marked_captures,
            fallbacks: self.fallbacks.clone(),
        })
    }

    /// True while requests may go to a private pool.
    pub(crate) fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// True while a graph may be being captured.
    pub(crate) fn has_capture(&self) -> bool {
        self.marked_captures > 0 || self.routes.iter().any(|route| route.reason == RouteReason::GraphCapture)
    }

    /// Counts the captures that the program reports.
    pub(crate) fn mark_capture(&mut self, begins: bool) {
        self.marked_captures =
            if begins { self.marked_captures + 1 } else { self.marked_captures.saturating_sub(1) };
    }

    /// The pool that an allocation on `stream` belongs to.
    pub(crate) fn pool_for_stream(&self, stream: u64, routing: PoolRouting) -> PoolIndex {
        if self.routes.is_empty() {
            return PoolIndex(0);
        }
        let accepts = |route: &&CaptureRoute| (route.filter)(stream);
        let route = match routing {
            PoolRouting::OldestFirst => self.routes.iter().find(accepts),
            PoolRouting::NewestFirst => self.routes.iter().rev().find(accepts),
        };
        route.map_or(PoolIndex(0), |route| route.pool)
    }

    /// Adds a user to a pool, which is created if it does not exist.
    pub(crate) fn add_user(&mut self, id: PoolId) -> PoolIndex {
        let table = &mut self.table;
        let pool = *self.by_id.entry(id).or_insert_with(|| {
            let unused = table.iter().skip(1).position(BlockPool::is_unused).map(|at| at + 1);
            let at = unused.unwrap_or_else(|| {
                table.push(BlockPool::default());
                table.len() - 1
            });
            table[at] = BlockPool::new(id);
            PoolIndex(at as u32)
        });
        self.table[pool.0 as usize].users += 1;
        pool
    }

    /// Sends allocations that `filter` accepts to this pool, and adds a user to it.
    pub(crate) fn begin_capture(&mut self, id: PoolId, filter: CaptureFilter) {
        self.begin_route(id, filter, RouteReason::GraphCapture);
    }

    /// [`begin_capture`](Self::begin_capture) for `torch.cuda.use_mem_pool`.
    pub(crate) fn begin_mem_pool(&mut self, id: PoolId, filter: CaptureFilter) {
        self.begin_route(id, filter, RouteReason::MemPool);
    }

    fn begin_route(&mut self, id: PoolId, filter: CaptureFilter, reason: RouteReason) {
        let pool = self.add_user(id);
        self.table[pool.0 as usize].routes += 1;
        self.routes.push(CaptureRoute { pool, filter, reason, stream: None });
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
        if let Some(pool) = self.find_mut(id) {
            pool.users = pool.users.saturating_sub(1);
        }
        self.remove_unused();
    }

    /// Lets a pool serve requests that the driver refused, or stops that.
    pub(crate) fn set_fallback(&mut self, id: PoolId, is_fallback: bool) {
        self.fallbacks.retain(|known| *known != id);
        if is_fallback {
            self.fallbacks.push(id);
            self.fallbacks.sort_unstable();
        }
    }

    /// The pools that serve requests which the driver refused.
    pub(crate) fn fallbacks(&self) -> impl Iterator<Item = PoolIndex> + use<> {
        let known: Vec<PoolIndex> =
            self.fallbacks.iter().filter_map(|id| self.by_id.get(id).copied()).collect();
        known.into_iter()
    }

    /// The private pools without users, which may free segments.
    pub(crate) fn without_users(&self) -> impl Iterator<Item = PoolIndex> + use<> {
        let is_free = |(_, pool): &(usize, &BlockPool)| pool.users == 0;
        let pools = self.table.iter().enumerate().skip(1).filter(is_free);
        pools.map(|(at, _)| PoolIndex(at as u32)).collect::<Vec<_>>().into_iter()
    }

    /// Removes private pools that have no user, capture or segment; their table entries are reused.
    pub(crate) fn remove_unused(&mut self) {
        let table = &self.table;
        self.by_id.retain(|_, pool| !table[pool.0 as usize].is_unused());
    }

    /// The index of a private pool; `None` if it does not exist.
    pub(crate) fn find(&self, id: PoolId) -> Option<PoolIndex> {
        self.by_id.get(&id).copied()
    }

    /// Whether captures, graphs or `MemPool` objects hold the pool.
    pub(crate) fn has_users(&self, pool: PoolIndex) -> bool {
        self.table[pool.0 as usize].users > 0
    }

    /// A private pool by its name; `None` if it does not exist.
    pub(crate) fn find_mut(&mut self, id: PoolId) -> Option<&mut BlockPool> {
        self.by_id.get(&id).map(|pool| &mut self.table[pool.0 as usize])
    }

    /// The free blocks of all pools.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let classes = [BlockSizeClass::Small, BlockSizeClass::Large];
        self.table.iter().flat_map(move |pool| classes.into_iter().flat_map(|class| pool.free_blocks(class)))
    }

    pub(crate) fn get(&self, pool: PoolIndex) -> &BlockPool {
        &self.table[pool.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, pool: PoolIndex) -> &mut BlockPool {
        &mut self.table[pool.0 as usize]
    }
}
