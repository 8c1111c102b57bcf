//! Maps that hold up against hostile keys.

pub(crate) mod block_totals;
pub(crate) mod dense_map;
pub(crate) mod seeded_map;
