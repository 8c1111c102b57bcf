//! A limit for the strings of JSON text.
//!
//! `serde_json` collects a whole string before it hands it over, so the length must be limited
//! where the bytes are read.

use std::io::{self, ErrorKind, Read};

/// Longest string in bytes as they are in the file.
pub(crate) const MAX_STRING_BYTES: usize = 1 << 24;

/// Passes JSON through, and fails inside of a string that is too long.
pub(crate) struct StringLimit<R> {
    source: R,
    /// Bytes of the string so far; `None` outside of strings.
    string: Option<usize>,
    /// The byte before was a backslash that escapes this one.
    is_escaped: bool,
}

impl<R: Read> StringLimit<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, string: None, is_escaped: false }
    }

    /// Follows the strings in the next bytes. False if one is too long.
    fn follow(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            let Some(len) = &mut self.string else {
                if *byte == b'"' {
                    self.string = Some(0);
                }
                continue;
            };
            *len += 1;
            if *len > MAX_STRING_BYTES {
                return false;
            }
            match (self.is_escaped, byte) {
                (true, _) => self.is_escaped = false,
                (false, b'\\') => self.is_escaped = true,
                (false, b'"') => self.string = None,
                (false, _) => {}
            }
        }
        true
    }
}

impl<R: Read> Read for StringLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        if self.follow(&buffer[..read]) {
            return Ok(read);
        }
        let why = format!("a string has more than {MAX_STRING_BYTES} bytes");
        Err(io::Error::new(ErrorKind::InvalidData, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_limited_and_other_text_is_not() {
        let read = |text: String| StringLimit::new(text.as_bytes()).read_to_end(&mut Vec::new());
        let long = "x".repeat(MAX_STRING_BYTES - 1);
        assert!(read(format!(r#"["{long}", "\\", "\"{long}"]"#)).is_err(), "an escaped quote ends no string");
        assert!(read(format!(r#"["{long}", "\\", "{long}"] {long}{long}"#)).is_ok());
        let error = read(format!("\"{long}x\"")).unwrap_err();
        assert_eq!(error.to_string(), "a string has more than 16777216 bytes");
    }
}
