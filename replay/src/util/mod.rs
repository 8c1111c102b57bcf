//! Maps that hold up against hostile keys.

pub mod dense_map;
pub mod seeded_map;
