//! The tests of summaries and lakes.

mod lake;
mod merge;
