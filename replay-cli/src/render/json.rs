//! Every document as one JSON object.

use std::io::{self, BufWriter, Write};

use gpumemtrace_replay::callsite::NameScope;
use serde::Serialize;

use super::renderer::{OutputFormat, RenderContext, Renderer, ReportNeeds, ReportRenderer};
use crate::terminal::escape::needs_escape;

/// The format `json`, for every document.
pub(crate) struct JsonRenderer;

impl OutputFormat for JsonRenderer {
    fn name(&self) -> &'static str {
        "json"
    }

    fn help(&self) -> &'static str {
        "Print JSON; `gpumemtrace schema` describes it"
    }
}

impl<Document: Serialize> Renderer<Document> for JsonRenderer {
    fn needs_all_names(&self) -> bool {
        true
    }

    fn render(&self, document: &Document, _: &RenderContext<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        Ok(write_json(document, out)?)
    }
}

impl ReportRenderer for JsonRenderer {
    fn report_needs<'a>(&self, _: &RenderContext<'a>) -> ReportNeeds<'a> {
        ReportNeeds { only_asked_sections: true, names: NameScope::ALL, truncated_lists: true }
    }
}

/// Writes a value as indented JSON with a line end. The text is streamed, so memory stays bounded.
pub(crate) fn write_json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    // `main` recognises a closed pipe by its I/O error.
    // serde_json makes many short writes; their bytes are checked together.
    let mut escaped = BufWriter::new(ControlEscaper { out: &mut *out });
    serde_json::to_writer_pretty(&mut escaped, value).map_err(io::Error::from)?;
    escaped.flush()?;
    drop(escaped);
    out.write_all(b"\n")
}

/// Writes out as `\u202e` what [`needs_escape`] names. serde_json does that with ASCII only.
struct ControlEscaper<'a> {
    out: &'a mut dyn Write,
}

impl Write for ControlEscaper<'_> {
    /// Writes all bytes or fails. serde_json never splits a character between two calls, and
    /// `BufWriter` does not split what it gets.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().all(|byte| *byte < 0x7f) {
            self.out.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        let mut rest = text;
        // A line break is of the layout: serde_json has escaped those in texts.
        while let Some(at) = rest.find(|c| needs_escape(c) && c != '\n') {
            let (before, from) = rest.split_at(at);
            self.out.write_all(before.as_bytes())?;
            let mut chars = from.chars();
            if let Some(c) = chars.next() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(self.out, "\\u{unit:04x}")?;
                }
            }
            rest = chars.as_str();
        }
        self.out.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_steer_a_terminal_are_escaped_and_read_back() {
        let value = serde_json::json!({ "a\u{7f}\x1b": "é\u{80}\u{9f}\u{a0}字\n\u{202e}\u{feff}\u{e0001}" });
        let mut out = Vec::new();
        write_json(&value, &mut out).unwrap();
        let expected =
            "{\n  \"a\\u007f\\u001b\": \"é\\u0080\\u009f\u{a0}字\\n\\u202e\\ufeff\\udb40\\udc01\"\n}\n";
        assert_eq!(str::from_utf8(&out).unwrap(), expected);
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&out).unwrap(), value);
    }
}
