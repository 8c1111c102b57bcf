//! Every document as one JSON object.

use std::io::{self, Write};

use gpumemtrace_replay::callsite::NameScope;
use serde::Serialize;

use super::{OutputFormat, RenderContext, Renderer, ReportNeeds, ReportRenderer};

/// The format `json`, for every document.
pub(crate) struct JsonRenderer;

impl OutputFormat for JsonRenderer {
    fn name(&self) -> &'static str {
        "json"
    }

    fn help(&self) -> &'static str {
        "One JSON object"
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
    serde_json::to_writer_pretty(ControlEscaper { out: &mut *out }, value).map_err(io::Error::from)?;
    out.write_all(b"\n")
}

/// Escapes U+007F to U+009F. serde_json does not, and terminals may obey them.
struct ControlEscaper<'a> {
    out: &'a mut dyn Write,
}

impl Write for ControlEscaper<'_> {
    /// Writes all bytes or fails. serde_json never splits a character between two calls.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        let mut rest = text;
        while let Some(at) = rest.find(|c| matches!(c, '\u{7f}'..='\u{9f}')) {
            let (before, from) = rest.split_at(at);
            self.out.write_all(before.as_bytes())?;
            let mut chars = from.chars();
            if let Some(control) = chars.next() {
                write!(self.out, "\\u{:04x}", u32::from(control))?;
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
    fn control_characters_beyond_ascii_are_escaped() {
        let mut out = Vec::new();
        write_json(&serde_json::json!({ "a\u{7f}": "é\u{80}\u{9f}\u{a0}字\n" }), &mut out).unwrap();
        let expected = "{\n  \"a\\u007f\": \"é\\u0080\\u009f\u{a0}字\\n\"\n}\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
