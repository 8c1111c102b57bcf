//! Stack capture: Python frames, native frames, and the cache that turns both into node ids.

pub(crate) mod cache;
pub(crate) mod native;
pub(crate) mod python;
