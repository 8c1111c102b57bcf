//! Fields of a line, as both formats have them.

use std::fmt;
use std::str::FromStr;

/// A line that is not of its format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextError {
    /// The line, without its end.
    pub line: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown line: {:?}", self.line)
    }
}

impl std::error::Error for TextError {}

/// The fields of one line, which single spaces separate.
pub(crate) struct LineFields<'a> {
    line: &'a str,
    rest: Option<&'a str>,
}

impl<'a> LineFields<'a> {
    /// Splits the first field, the kind, from a line.
    pub(crate) fn new(line: &'a str) -> (&'a str, Self) {
        let (kind, rest) = line.split_once(' ').map_or((line, None), |(kind, rest)| (kind, Some(rest)));
        (kind, Self { line, rest })
    }

    pub(crate) fn error(&self) -> TextError {
        TextError { line: self.line.to_owned() }
    }

    /// The next field, or `None` at the end of the line.
    pub(crate) fn optional(&mut self) -> Option<&'a str> {
        let rest = self.rest?;
        let (field, rest) = rest.split_once(' ').map_or((rest, None), |(field, rest)| (field, Some(rest)));
        self.rest = rest;
        Some(field)
    }

    /// All fields that are left, with their spaces.
    pub(crate) fn rest(&mut self) -> &'a str {
        self.rest.take().unwrap_or_default()
    }

    pub(crate) fn parse<T: FromStr>(&mut self) -> Result<T, TextError> {
        self.optional().and_then(|field| field.parse().ok()).ok_or_else(|| self.error())
    }

    pub(crate) fn hex(&mut self) -> Result<u64, TextError> {
        self.optional().and_then(|field| u64::from_str_radix(field, 16).ok()).ok_or_else(|| self.error())
    }

    /// Fails if the line has more fields.
    pub(crate) fn finish<T>(&self, value: T) -> Result<T, TextError> {
        if self.rest.is_none() { Ok(value) } else { Err(self.error()) }
    }
}
