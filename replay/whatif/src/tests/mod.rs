//! Whole predictions for short runs.

mod doubts;
mod rows;
mod run;
