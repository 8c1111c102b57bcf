//! Metadata, and how the run ended.
//!
//! Metadata is a list of named values, so a new name needs no new format; unknown names are kept
//! and shown by `info`. META and END payloads are the only ones that a general serializer writes
//! (bincode, with a byte limit); everything on the hot path has a fixed layout of its own.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::{Deserialize, Serialize};
use thiserror::Error;

mod counters;
mod end;

pub use counters::{Counter, Counters};
pub use end::{End, EndReason, set_events_after_end};

/// Largest META or END payload that a reader accepts, in bytes.
const MAX_META_BYTES: usize = 1 << 20;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<MAX_META_BYTES>> =
    bincode::config::legacy().with_limit::<MAX_META_BYTES>();

/// A META or END payload that does not decode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("metadata does not decode: {0}")]
pub struct MetaError(String);

/// A value of the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MetaValue {
    /// A count, an id or a time.
    Number(u64),
    /// A text in UTF-8.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
}

/// First minor version of PyTorch 2 in which the CUDA allocator reads `PYTORCH_ALLOC_CONF`.
const GENERIC_ALLOC_CONF_SINCE: u32 = 10;

/// Named values. A trace begins with a META block; later ones add names or replace values.
///
/// Names in use (absent: unknown): `trace_id`, `tool`, `pid`, `host`, `rank`, `local_rank`,
/// `world_size`, `command` (without secrets), `command_line` (`not recorded`: the user wants no
/// `command`), `started_unix_ns`, `started_ns` (`CLOCK_MONOTONIC`), `mode` (`preload`, `pluggable`,
/// `started` by the program, `metal`: the program used Metal, `snapshot`: made from a PyTorch
/// snapshot, with `snapshot.*`), `attached` (`late`: the driver was loaded before the recorder),
/// `torch`, `torch_cuda`, `python`, `cuda_driver`, `cuda_runtime`, `allocator_conf`
/// (`PYTORCH_CUDA_ALLOC_CONF`), `allocator_conf_generic` (`PYTORCH_ALLOC_CONF`; see
/// [`Meta::allocator_conf`]), `git_commit` (`GPUMEMTRACE_GIT_COMMIT`), `labels` (a list of
/// `key=value`; see [`crate::labels`]), `holders` (1 if `gpumemtrace run --holders` started it),
/// `stacks`, `on_full`, `apis`, `notes`, `rings` (`memory`: the recorder gave up its ring file),
/// `part`, `dropped_parts`, `dropped_part_events`, `uncovered`, `device.N.total_bytes`,
/// `device.N.name`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Meta {
    entries: Vec<(String, MetaValue)>,
}

impl Meta {
    /// Adds a value, or replaces the one of this name.
    pub fn set(&mut self, name: &str, value: MetaValue) {
        match self.entries.iter_mut().find(|(existing, _)| existing == name) {
            Some((_, old)) => *old = value,
            None => self.entries.push((name.to_owned(), value)),
        }
    }

    /// [`Self::set`] with a number.
    pub fn set_number(&mut self, name: &str, value: u64) {
        self.set(name, MetaValue::Number(value));
    }

    /// [`Self::set`] with a text.
    pub fn set_text(&mut self, name: &str, value: impl Into<String>) {
        self.set(name, MetaValue::Text(value.into()));
    }

    /// [`Self::set`] with a list.
    pub fn set_list(&mut self, name: &str, value: Vec<String>) {
        self.set(name, MetaValue::List(value));
    }

    /// The number of this name; `None` if it is missing or not a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            MetaValue::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The text of this name; `None` if it is missing or not a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            MetaValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The settings that PyTorch's allocator read. `PYTORCH_CUDA_ALLOC_CONF` has precedence, as
    /// `libc10.so` of 2.10 and 2.15 shows; releases before 2.10 read no other name.
    pub fn allocator_conf(&self) -> Option<&str> {
        let minor = self.text("torch").and_then(|torch| torch.split('.').nth(1)?.parse::<u32>().ok());
        let reads_generic = minor.is_none_or(|minor| minor >= GENERIC_ALLOC_CONF_SINCE);
        let generic = || self.text("allocator_conf_generic").filter(|_| reads_generic);
        self.text("allocator_conf").or_else(generic)
    }

    /// The list of this name; empty if it is missing or not a list.
    pub fn list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(MetaValue::List(list)) => list,
            _ => &[],
        }
    }

    /// The value of this name, whatever its type.
    pub fn get(&self, name: &str) -> Option<&MetaValue> {
        self.entries.iter().find(|(existing, _)| existing == name).map(|(_, value)| value)
    }

    /// All names and values, in the order in which they were first set.
    pub fn entries(&self) -> &[(String, MetaValue)] {
        &self.entries
    }

    /// Merges a later block: its values replace those of the same name.
    pub fn merge(&mut self, later: Self) {
        for (name, value) in later.entries {
            self.set(&name, value);
        }
    }

    /// Encodes a META payload.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a META payload.
    pub fn decode(payload: &[u8]) -> Result<Self, MetaError> {
        decode(payload)
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Encoding to memory fails only above the limit. An empty payload then fails to decode.
    bincode::serde::encode_to_vec(value, CONFIG).unwrap_or_default()
}

fn decode<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, MetaError> {
    match bincode::serde::decode_from_slice(payload, CONFIG) {
        Ok((value, read)) if read == payload.len() => Ok(value),
        Ok((_, read)) => Err(MetaError(format!("{} bytes follow the last value", payload.len() - read))),
        Err(error) => Err(MetaError(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
