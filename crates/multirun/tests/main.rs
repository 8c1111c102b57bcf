//! The tests of summaries and archives.

mod archive;
mod merge;
