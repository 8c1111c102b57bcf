//! The settings of PyTorch's allocator, in the syntax of `PYTORCH_ALLOC_CONF`.
//!
//! [`Settings::parse`] accepts what a release of PyTorch accepts, and gives the same values.
//! `tests/settings.rs` compares it with what PyTorch's own parsers made of some eighty texts.

mod keys;
mod numbers;
mod parser;
mod roundup;

use std::fmt;

pub use roundup::RoundupDivisions;

use crate::rules::TorchVersion;
use crate::size_rules::LARGE_SEGMENT_BYTES;
use parser::SettingsReader;

/// First minor version that does not release expandable blocks as if they were segments.
const OVERSIZE_EXPANDABLE_SINCE: u32 = 5;
/// First minor version that resets `max_non_split_rounding_mb` if it is not named again.
const NON_SPLIT_ROUNDING_RESET_SINCE: u32 = 11;

/// The values that `PYTORCH_ALLOC_CONF` sets; sizes are in bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// `max_split_size_mb`: blocks of at least this size are not split. `u64::MAX` without a limit.
    pub max_split_bytes: u64,
    /// `max_non_split_rounding_mb`: how much larger than the request such a block may be.
    pub max_non_split_rounding_bytes: u64,
    /// `roundup_power2_divisions`, one number per power of two.
    pub roundup: RoundupDivisions,
    /// `garbage_collection_threshold`: the part of the memory limit from which on unused segments
    /// are freed early. 0 if they are not.
    pub gc_threshold: f64,
    /// `per_process_memory_fraction`: the memory limit, as a part of the device's memory.
    pub memory_fraction: Option<f64>,
    /// `expandable_segments`: segments grow page by page.
    pub expandable_segments: bool,
    /// `large_segment_size_mb`: size of the segments for blocks below 10 MiB.
    pub large_segment_bytes: u64,
    /// `throw_on_cudamalloc_oom`: a segment beyond `per_process_memory_fraction` of the device, or
    /// beyond all of its memory, fails the request without a retry.
    pub throws_at_limit: bool,
    /// `backend:cudaMallocAsync`: the driver allocates, and nothing else of this applies.
    pub is_async_backend: bool,
    /// Settings in the text that change no address and no segment.
    pub without_effect: Vec<&'static str>,
    /// Settings in the text that may change addresses, which this crate does not do.
    pub not_modelled: Vec<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_split_bytes: u64::MAX,
            max_non_split_rounding_bytes: LARGE_SEGMENT_BYTES,
            roundup: RoundupDivisions::default(),
            gc_threshold: 0.0,
            memory_fraction: None,
            expandable_segments: false,
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            throws_at_limit: false,
            is_async_backend: false,
            without_effect: Vec::new(),
            not_modelled: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the text of `PYTORCH_ALLOC_CONF` as this release of PyTorch does.
    ///
    /// Stricter in one respect: releases from 2.10 on accept any separator where `:` or `,` should
    /// be, and this function does not.
    pub fn parse(text: &str, version: TorchVersion) -> Result<Self, SettingsError> {
        Self::default().parse_again(text, version)
    }

    /// Whether the release stops with an internal error sooner or later: before 2.5, PyTorch frees
    /// oversize blocks of expandable segments as if they were segments (pytorch#134338).
    pub fn stops_pytorch(&self, version: TorchVersion) -> bool {
        let has_oversize_blocks = self.max_split_bytes < u64::MAX;
        version.minor() < OVERSIZE_EXPANDABLE_SINCE && self.expandable_segments && has_oversize_blocks
    }

    /// Reads another text while the program runs. Some settings fall back to their defaults if the
    /// text does not name them, others stay.
    pub fn parse_again(&self, text: &str, version: TorchVersion) -> Result<Self, SettingsError> {
        let Self { max_split_bytes, roundup, gc_threshold, .. } = Self::default();
        let mut settings = Self { max_split_bytes, roundup, gc_threshold, ..self.clone() };
        if version.minor() >= NON_SPLIT_ROUNDING_RESET_SINCE {
            settings.max_non_split_rounding_bytes = settings.large_segment_bytes;
        }
        // Later releases read the size of large segments first: other settings depend on it.
        for is_first_round in [true, false] {
            let mut reader = SettingsReader::new(text, version);
            while reader.peek().is_some() {
                let key = keys::find(&reader.read()?, version)?;
                reader.set_key(key.name);
                reader.skip(":")?;
                if is_first_round == key.is_read_first {
                    (key.read)(&mut settings, &mut reader)?;
                } else {
                    reader.skip_value()?;
                }
                if reader.peek().is_some() {
                    reader.skip(",")?;
                }
            }
        }
        Ok(settings)
    }
}

/// Why PyTorch refuses a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// A setting that the release does not know.
    UnknownKey {
        /// The name in the text.
        key: String,
        /// The release of PyTorch that was asked for.
        version: TorchVersion,
        /// The release that has this setting first, if a later one has it.
        since: Option<TorchVersion>,
    },
    /// A value that the setting cannot have.
    Value {
        /// The setting that is being read.
        key: String,
        /// The value in the text.
        value: String,
        /// What the setting accepts.
        expected: String,
    },
    /// Another piece of text where a separator should be.
    Separator {
        /// The setting that is being read; empty at the beginning.
        key: String,
        /// The piece of text.
        found: String,
        /// The separator that PyTorch expects.
        expected: &'static str,
    },
    /// The text ends before the value does.
    Incomplete {
        /// The setting that is being read.
        key: String,
    },
}

impl fmt::Display for SettingsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { key, version, since: Some(since) } => {
                write!(formatter, "torch {version} has no setting {key:?}; it came with torch {since}")
            }
            Self::UnknownKey { key, version, since: None } => {
                write!(formatter, "torch {version} has no setting {key:?}")
            }
            Self::Value { key, value, expected } => {
                write!(formatter, "{key}:{value} is refused: {expected}")
            }
            Self::Separator { key, found, expected } => {
                write!(formatter, "{key}: expected {expected:?} before {found:?}")
            }
            Self::Incomplete { key } => write!(formatter, "{key}: the value is missing or incomplete"),
        }
    }
}

impl std::error::Error for SettingsError {}
