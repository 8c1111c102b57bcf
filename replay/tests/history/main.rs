//! The history for viewers, against naive recounts of the same events.

mod blocks;
mod composition;
#[path = "../synthetic/mod.rs"]
mod synthetic;

/// The start of synthesized recordings, on the clock of the trace.
const STARTED_NS: u64 = 1_000_000_000;
