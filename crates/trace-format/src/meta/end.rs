//! The END block: how the traced process ended.

use serde::{Deserialize, Serialize};

use super::{Counter, Counters, MetaError, decode, encode};
use crate::block::{BlockKind, encode_raw_block, reseal_raw_block};

/// How the process ended, as it recorded itself. Without one it was killed, crashed, called `exec`,
/// or is still running.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndReason {
    /// `exit` ran to its end.
    Exit,
    /// `_exit` was called with this status.
    QuickExit(i32),
    /// Recording stopped before the program ended; [`End::message`] says why.
    Stopped,
}

/// The END block of a trace that was closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// How the process ended.
    pub reason: EndReason,
    /// Number of events that have a `seq`: the next one to be given out.
    pub events: u64,
    /// Time of the end in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Why recording stopped; empty unless [`EndReason::Stopped`].
    pub message: String,
    /// Final values of the counters.
    pub counters: Counters,
}

#[derive(Serialize, Deserialize)]
struct WireEnd {
    reason: EndReason,
    events: u64,
    time_ns: u64,
    message: String,
    counters: Vec<(String, u64)>,
}

/// Replaces the number of [`Counter::EventsAfterEnd`] in a block of [`End::encode_block`].
///
/// Allocates nothing: a thread of the program does it while the process ends.
pub fn set_events_after_end(block: &mut [u8], events: u64) {
    // The counters are the last part of the payload, and this one is the last of them.
    if let Some(value) = block.last_chunk_mut::<8>() {
        *value = events.to_le_bytes();
    }
    reseal_raw_block(block);
}

impl End {
    /// Encodes an END block, header and payload, not packed. [`set_events_after_end`] changes it.
    pub fn encode_block(&self) -> Vec<u8> {
        encode_raw_block(BlockKind::END, &self.encode())
    }

    /// Encodes an END payload.
    pub fn encode(&self) -> Vec<u8> {
        encode(&WireEnd {
            reason: self.reason,
            events: self.events,
            time_ns: self.time_ns,
            message: self.message.clone(),
            counters: self.counters.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        })
    }

    /// Decodes an END payload.
    pub fn decode(payload: &[u8]) -> Result<Self, MetaError> {
        let wire: WireEnd = decode(payload)?;
        let mut counters = Counters::default();
        for (name, value) in wire.counters {
            match Counter::ALL.iter().find(|(_, known)| *known == name) {
                Some((counter, _)) => counters.set(*counter, value),
                None => counters.other.push((name, value)),
            }
        }
        Ok(Self {
            reason: wire.reason,
            events: wire.events,
            time_ns: wire.time_ns,
            message: wire.message,
            counters,
        })
    }
}
