//! Buffered access to stdout. Everything that a terminal would obey is escaped.

use std::io::{self, BufWriter, StdoutLock, Write};

use super::escape::escape_except;

/// The colours that `layout.rs` writes. No other escape sequence leaves the command.
pub(super) const SGR_CODES: [&str; 4] = ["\x1b[1m", "\x1b[1;33m", "\x1b[2m", "\x1b[0m"];

/// Buffered stdout for text without colours. Flush it to see write errors.
pub(crate) fn stdout() -> EscapingWriter<BufWriter<StdoutLock<'static>>> {
    EscapingWriter::new(BufWriter::with_capacity(1 << 16, io::stdout().lock()), false)
}

/// Buffered stdout for text with the colours of [`SGR_CODES`]. Names in it must be escaped already.
pub(crate) fn colored_stdout() -> EscapingWriter<BufWriter<StdoutLock<'static>>> {
    EscapingWriter::new(BufWriter::with_capacity(1 << 16, io::stdout().lock()), true)
}

/// Prints a text and flushes it.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Escapes everything but line breaks and, if allowed, colours. Bytes that are not UTF-8 become
/// U+FFFD.
pub(crate) struct EscapingWriter<W: Write> {
    out: W,
    has_colors: bool,
    /// The first bytes of a character that the next write completes.
    partial: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    fn new(out: W, has_colors: bool) -> Self {
        Self { out, has_colors, partial: Vec::new() }
    }

    fn write_str(&mut self, text: &str) -> io::Result<()> {
        if !self.has_colors {
            return self.out.write_all(escape_except(text, |c| c == '\n').as_bytes());
        }
        let mut rest = text;
        while let Some(at) = rest.find('\x1b') {
            let (before, from) = rest.split_at(at);
            self.out.write_all(escape_except(before, |c| c == '\n').as_bytes())?;
            let code = SGR_CODES.iter().find(|code| from.starts_with(**code)).copied();
            self.out.write_all(code.unwrap_or("\\u{1b}").as_bytes())?;
            rest = &from[code.map_or(1, str::len)..];
        }
        self.out.write_all(escape_except(rest, |c| c == '\n').as_bytes())
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Most text is plain.
        if self.partial.is_empty() && bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n')) {
            self.out.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        if let Some(at) = incomplete_end(&all) {
            self.partial = all.split_off(at);
        }
        self.write_str(&String::from_utf8_lossy(&all))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Where the last character begins if its last bytes are missing.
fn incomplete_end(bytes: &[u8]) -> Option<usize> {
    let last = bytes.utf8_chunks().last()?;
    let at = bytes.len() - last.invalid().len();
    let is_start = std::str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none());
    is_start.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pieces: &[&[u8]], has_colors: bool) -> String {
        let mut writer = EscapingWriter::new(Vec::new(), has_colors);
        for piece in pieces {
            writer.write_all(piece).unwrap();
        }
        String::from_utf8(writer.out).unwrap()
    }

    #[test]
    fn only_our_colours_pass_and_only_where_allowed() {
        let text = b"\x1b[1mbold\x1b[0m \x1b[31mred \x1b]0;title\x07\x1b".as_slice();
        let plain = "\\u{1b}[1mbold\\u{1b}[0m \\u{1b}[31mred \\u{1b}]0;title\\u{7}\\u{1b}";
        assert_eq!(written(&[text], false), plain);
        let colored = "\x1b[1mbold\x1b[0m \\u{1b}[31mred \\u{1b}]0;title\\u{7}\\u{1b}";
        assert_eq!(written(&[text], true), colored);
    }

    #[test]
    fn characters_split_between_writes_are_whole() {
        let text = "a\u{202e}é字\n".as_bytes();
        for cut in 0..text.len() {
            assert_eq!(written(&[&text[..cut], &text[cut..]], false), "a\\u{202e}é字\n");
        }
        assert_eq!(written(&[b"a\xff\xc3", b"b"], false), "a\u{fffd}\u{fffd}b");
    }
}
