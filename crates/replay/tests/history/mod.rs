//! The history for viewers and the walk for exports, against naive recounts of the same events.

mod blocks;
mod composition;
mod walk;

/// The start of synthesized recordings, on the clock of the trace.
const STARTED_NS: u64 = 1_000_000_000;
