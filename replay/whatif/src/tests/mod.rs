//! Whole predictions for short runs.

mod doubts;
mod rows;
pub(crate) mod run;
