//! Ids, containers that stay fast and bounded for hostile input, saturating byte counts, and the
//! spread of values.

pub(crate) mod block_totals;
pub(crate) mod dense_map;
pub(crate) mod ids;
pub(crate) mod seeded_map;
pub(crate) mod spread;
