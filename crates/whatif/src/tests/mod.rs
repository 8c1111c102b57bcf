//! Whole predictions for short runs.

mod doubts;
mod equal_steps;
mod followers;
mod rows;
pub(crate) mod run;
