//! Stack capture: Python frames, native frames, and the cache that maps stacks to node ids.

pub(crate) mod cache;
pub(crate) mod native;
pub(crate) mod node_cache;
pub(crate) mod python;
