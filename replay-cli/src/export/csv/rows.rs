//! Rows of comma-separated values as RFC 4180 defines them.
//!
//! A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@` as a formula, and names come
//! from the traced program. Such a text gets a leading apostrophe, as
//! [OWASP](https://owasp.org/www-community/attacks/CSV_Injection) recommends.

use std::io::{self, Write};

use csv::{ErrorKind, Terminator, Writer, WriterBuilder};

use crate::terminal::escape::escape_text;

/// Writes a header and rows, cell by cell.
pub(super) struct CsvRows<'a> {
    writer: Writer<&'a mut dyn Write>,
}

impl<'a> CsvRows<'a> {
    pub(super) fn new(
        out: &'a mut dyn Write,
        columns: impl IntoIterator<Item = &'static str>,
    ) -> anyhow::Result<Self> {
        let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(out);
        writer.write_record(columns).map_err(unwrap_io)?;
        Ok(Self { writer })
    }

    /// A cell with text from the trace; empty if there is none.
    pub(super) fn text(&mut self, text: Option<&str>) -> anyhow::Result<()> {
        Ok(self.writer.write_field(guarded_text(text.unwrap_or_default())).map_err(unwrap_io)?)
    }

    /// A cell with a number; empty if it is unknown.
    pub(super) fn number(&mut self, number: Option<u64>) -> anyhow::Result<()> {
        Ok(self
            .writer
            .write_field(number.map(|number| number.to_string()).unwrap_or_default())
            .map_err(unwrap_io)?)
    }

    pub(super) fn end_row(&mut self) -> anyhow::Result<()> {
        Ok(self.writer.write_record(None::<&[u8]>).map_err(unwrap_io)?)
    }

    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        Ok(self.writer.flush()?)
    }
}

/// The I/O error of a writer, so that a closed pipe is recognized.
fn unwrap_io(error: csv::Error) -> io::Error {
    match error.into_kind() {
        ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// The text without control characters, and not a formula.
fn guarded_text(text: &str) -> String {
    let mut guarded = escape_text(text);
    if guarded.starts_with(['=', '+', '-', '@']) {
        guarded.insert(0, '\'');
    }
    guarded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(texts: &[&str]) -> String {
        let mut out = Vec::new();
        let mut rows = CsvRows::new(&mut out, ["text", "number", "unknown"]).unwrap();
        for text in texts {
            rows.text(Some(text)).unwrap();
            rows.number(Some(u64::MAX)).unwrap();
            rows.number(None).unwrap();
            rows.end_row().unwrap();
        }
        rows.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_end_with_crlf_and_quote_as_needed() {
        assert_eq!(
            written(&["plain", "a,b", "say \"hi\""]),
            "text,number,unknown\r\nplain,18446744073709551615,\r\n\"a,b\",18446744073709551615,\r\n\
             \"say \"\"hi\"\"\",18446744073709551615,\r\n"
        );
    }

    #[test]
    fn text_is_never_a_formula() {
        for formula in ["=1+1", "+1", "-1", "@SUM(A1)"] {
            assert_eq!(guarded_text(formula), format!("'{formula}"));
        }
        assert_eq!(guarded_text("\t=1"), "\\t=1");
        assert_eq!(guarded_text("\r\n=1"), "\\r\\n=1");
        assert_eq!(guarded_text("<module>"), "<module>");
    }
}
