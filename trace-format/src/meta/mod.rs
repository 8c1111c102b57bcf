//! Who was traced, how it ended, and what was lost.
//!
//! Constraint: tools older and newer than the recorder read this. Consequence: metadata is a list of named values, so new
//! names need no new format; unknown names are kept and shown by `info`. It is the one place where a general serialiser
//! (bincode, with a byte limit) is used; everything hot has its own fixed layout.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Largest metadata payload a reader accepts, in bytes.
pub const MAX_META_BYTES: usize = 1 << 20;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<MAX_META_BYTES>> =
    bincode::config::legacy().with_limit::<MAX_META_BYTES>();

/// Metadata that does not decode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("metadata does not decode: {0}")]
pub struct MetaError(String);

/// One value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
}

/// Named values. A trace begins with one such block; later ones add names or replace values.
///
/// Names in use (absent = unknown): `trace_id`, `tool`, `pid`, `host`, `rank`, `local_rank`, `world_size`, `command`,
/// `started_unix_ns`, `started_ns` (`CLOCK_MONOTONIC`), `mode` (`preload`, `pluggable`, `started` by the program itself, `metal`: a device of Metal's was met),
/// `attached` (`late`: the program had loaded the driver before the recorder), `torch`, `torch_cuda`, `python`, `cuda_driver`,
/// `cuda_runtime`, `allocator_conf`, `stacks`, `on_full`, `apis`, `notes`, `rings` (`memory`: the recorder let go
/// of its ring file), `part`, `dropped_parts`, `dropped_part_events`, `uncovered`, `device.N.total_bytes`, `device.N.name`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Meta {
    entries: Vec<(String, Value)>,
}

impl Meta {
    /// Sets a value.
    pub fn set(&mut self, name: &str, value: Value) {
        match self.entries.iter_mut().find(|(existing, _)| existing == name) {
            Some((_, old)) => *old = value,
            None => self.entries.push((name.to_owned(), value)),
        }
    }

    /// Sets a number.
    pub fn set_number(&mut self, name: &str, value: u64) {
        self.set(name, Value::Number(value));
    }

    /// Sets a text.
    pub fn set_text(&mut self, name: &str, value: impl Into<String>) {
        self.set(name, Value::Text(value.into()));
    }

    /// Sets a list.
    pub fn set_list(&mut self, name: &str, value: Vec<String>) {
        self.set(name, Value::List(value));
    }

    /// A number, if it is there and is one.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A text, if it is there and is one.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A list; empty if it is not there.
    pub fn list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }

    /// Any value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.entries.iter().find(|(existing, _)| existing == name).map(|(_, value)| value)
    }

    /// All names and values, in the order they were first set.
    pub fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    /// Takes over every value of a later block.
    pub fn merge(&mut self, later: Self) {
        for (name, value) in later.entries {
            self.set(&name, value);
        }
    }

    /// The payload of a META block.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a META payload.
    pub fn decode(payload: &[u8]) -> Result<Self, MetaError> {
        decode(payload)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $index:literal, $name:literal;)*) => {
        /// What a recorder counts. Loss counters are shown at the head of every report.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $variant = $index,)* }

        impl Counter {
            /// All counters and their names in files and reports.
            pub const ALL: &[(Self, &str)] = &[$((Self::$variant, $name),)*];
        }
    };
}

counters! {
    /// Events that were not recorded: no room (`on_full=drop`), no ring for a thread, or the writer had failed.
    DroppedEvents = 0, "dropped_events";
    /// Stacks cut at the maximum depth.
    TruncatedStacks = 1, "truncated_stacks";
    /// Python frames whose code object could not be read.
    UnreadableFrames = 2, "unreadable_frames";
    /// Driver entry points handed out that allocate and that we do not wrap.
    UncoveredCalls = 3, "uncovered_calls";
    /// Writes of the trace file that failed.
    WriteErrors = 4, "write_errors";
    /// Times a thread of the program had to wait for room in its ring. Not a loss.
    RingWaits = 5, "ring_waits";
    /// Calls made while this thread was already inside a hook; not recorded so that nothing is counted twice. Not a loss.
    NestedCalls = 6, "nested_calls";
    /// Threads that asked for a ring when all were taken.
    ThreadsWithoutRing = 7, "threads_without_ring";
    /// Hook entries that had to give up on an internal failure.
    InternalErrors = 8, "internal_errors";
    /// Blocks of which PyTorch's tracker and its report to the profiler did not say the same. Recorded without details.
    TrackerMismatches = 9, "tracker_mismatches";
}

/// Values by [`Counter`]; names unknown to this version are kept in `other`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
    /// Counters of a newer recorder.
    pub other: Vec<(String, u64)>,
}

impl Counters {
    /// One value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Sets one value.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.values[counter as usize] = value;
    }

    /// Names and values, known ones first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let known = Counter::ALL.iter().map(|(counter, name)| (*name, self.get(*counter)));
        known.chain(self.other.iter().map(|(name, value)| (name.as_str(), *value)))
    }
}

/// How the process ended, as far as it could tell us itself. A trace without one ended without saying so: it was killed,
/// it crashed, it called `exec`, or it is still running.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndReason {
    /// `exit` ran to its end.
    Exit,
    /// `_exit` was called with this status.
    QuickExit(i32),
    /// Recording stopped before the program did; `End::message` says why.
    Stopped,
}

/// The last block of a trace that was closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// How.
    pub reason: EndReason,
    /// Number of events that were placed in the order: the next `seq`.
    pub events: u64,
    /// `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Why recording stopped, if it did.
    pub message: String,
    /// Totals.
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

impl End {
    /// The payload of an END block.
    pub fn encode(&self) -> Vec<u8> {
        encode(&WireEnd {
            reason: self.reason,
            events: self.events,
            time_ns: self.time_ns,
            message: self.message.clone(),
            counters: self.counters.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        })
    }

    /// Reads an END payload.
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

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Serialising to memory fails only above the limit; an empty payload then fails to decode, visibly.
    bincode::serde::encode_to_vec(value, CONFIG).unwrap_or_default()
}

fn decode<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, MetaError> {
    match bincode::serde::decode_from_slice(payload, CONFIG) {
        Ok((value, read)) if read == payload.len() => Ok(value),
        Ok((_, read)) => Err(MetaError(format!("{} bytes too many", payload.len() - read))),
        Err(error) => Err(MetaError(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Meta {
        let mut meta = Meta::default();
        meta.set_number("pid", 42);
        meta.set_text("host", "node7");
        meta.set_list("command", vec!["python".into(), "train.py".into()]);
        meta
    }

    #[test]
    fn metadata_comes_back_and_later_values_win() {
        let mut meta = Meta::decode(&sample().encode()).unwrap();
        assert_eq!(meta, sample());
        let mut later = Meta::default();
        later.set_number("pid", 43);
        later.set_text("torch", "2.15.0");
        meta.merge(later);
        assert_eq!(
            (meta.number("pid"), meta.text("torch"), meta.text("host")),
            (Some(43), Some("2.15.0"), Some("node7"))
        );
        assert_eq!(meta.number("host"), None, "a text is no number");
    }

    #[test]
    fn the_bytes_of_version_1_stay_what_they_are() {
        let mut meta = Meta::default();
        meta.set_number("pid", 42);
        let golden = [
            1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'p', b'i', b'd', 0, 0, 0, 0, 42, 0, 0, 0, 0, 0,
            0, 0,
        ];
        assert_eq!(meta.encode(), golden);
    }

    #[test]
    fn a_hostile_length_is_refused() {
        let mut bytes = sample().encode();
        bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Meta::decode(&bytes).is_err());
        let mut long = sample().encode();
        long.push(0);
        assert!(Meta::decode(&long).is_err());
    }

    #[test]
    fn an_end_comes_back_with_counters_of_a_newer_recorder() {
        let mut counters = Counters::default();
        counters.set(Counter::TruncatedStacks, 7);
        counters.other.push(("from_the_future".into(), 3));
        let end =
            End { reason: EndReason::QuickExit(2), events: 9, time_ns: 5, message: String::new(), counters };
        assert_eq!(End::decode(&end.encode()), Ok(end));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(bytes: Vec<u8>) {
            let _ = Meta::decode(&bytes);
            let _ = End::decode(&bytes);
        }
    }
}
