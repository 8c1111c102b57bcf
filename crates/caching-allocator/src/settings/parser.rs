//! Reads a text such as `max_split_size_mb:128,expandable_segments:True` piece by piece.
//!
//! Releases up to 2.9 have a parser in the CUDA allocator, later ones share one with other devices.
//! They differ in the white space that they ignore, and in how they read numbers.

use super::SettingsError;
use super::numbers;
use crate::rules::TorchVersion;

/// First minor version with the parser of `c10/core/AllocatorConfig.cpp`.
const UNIFIED_PARSER_SINCE: u32 = 10;

/// The pieces of a text: names, values, and the separators `:`, `,`, `[` and `]`.
#[derive(Debug)]
pub(super) struct SettingsReader {
    pieces: Vec<String>,
    at: usize,
    version: TorchVersion,
    /// The setting that is being read, for error messages.
    key: &'static str,
}

impl SettingsReader {
    pub(super) fn new(text: &str, version: TorchVersion) -> Self {
        let mut reader = Self { pieces: Vec::new(), at: 0, version, key: "" };
        let mut piece = String::new();
        for letter in text.chars() {
            if matches!(letter, ',' | ':' | '[' | ']') {
                if !piece.is_empty() {
                    reader.pieces.push(std::mem::take(&mut piece));
                }
                reader.pieces.push(letter.into());
            } else if letter != ' ' && (reader.is_before_unified_parser() || !letter.is_whitespace()) {
                piece.push(letter);
            }
        }
        if !piece.is_empty() {
            reader.pieces.push(piece);
        }
        reader
    }

    pub(super) fn is_before_unified_parser(&self) -> bool {
        self.version.minor() < UNIFIED_PARSER_SINCE
    }

    pub(super) fn version(&self) -> TorchVersion {
        self.version
    }

    pub(super) fn set_key(&mut self, key: &'static str) {
        self.key = key;
    }

    pub(super) fn key(&self) -> &'static str {
        self.key
    }

    /// The next piece, which stays unread; `None` at the end.
    pub(super) fn peek(&self) -> Option<&str> {
        self.pieces.get(self.at).map(String::as_str)
    }

    /// Reads the next piece, of any kind.
    pub(super) fn read(&mut self) -> Result<String, SettingsError> {
        let piece = self.pieces.get(self.at).cloned();
        self.at += 1;
        piece.ok_or_else(|| SettingsError::Incomplete { key: self.key.to_owned() })
    }

    /// Reads a piece that must be `separator`.
    pub(super) fn skip(&mut self, separator: &'static str) -> Result<(), SettingsError> {
        let found = self.read()?;
        if found == separator {
            return Ok(());
        }
        Err(SettingsError::Separator { key: self.key.to_owned(), found, expected: separator })
    }

    /// Reads a number of whole units.
    pub(super) fn read_integer(&mut self) -> Result<u64, SettingsError> {
        let text = self.read()?;
        let parse =
            if self.is_before_unified_parser() { numbers::parse_i32_as_u64 } else { numbers::parse_u64 };
        parse(&text).ok_or_else(|| self.refuse(&text, "a number is expected"))
    }

    /// Reads a number with a fraction.
    pub(super) fn read_decimal(&mut self) -> Result<(String, f64), SettingsError> {
        let text = self.read()?;
        match numbers::parse_f64(&text) {
            Some(value) => Ok((text, value)),
            None => Err(self.refuse(&text, "a number is expected")),
        }
    }

    /// Reads `True` or `False`.
    pub(super) fn read_bool(&mut self) -> Result<bool, SettingsError> {
        match self.read()?.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(self.refuse(other, "True or False is expected")),
        }
    }

    /// Reads a value, or a whole list in brackets.
    pub(super) fn skip_value(&mut self) -> Result<(), SettingsError> {
        if self.read()? == "[" {
            while self.read()? != "]" {}
        }
        Ok(())
    }

    /// The error for a value that PyTorch refuses.
    pub(super) fn refuse(&self, value: &str, expected: impl Into<String>) -> SettingsError {
        SettingsError::Value { key: self.key.to_owned(), value: value.to_owned(), expected: expected.into() }
    }
}
