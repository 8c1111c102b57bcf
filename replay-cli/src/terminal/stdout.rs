//! Stdout: one buffered writer.

use std::io::{BufWriter, StdoutLock, Write};

/// Stdout, buffered; flush it to learn whether all was written.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, std::io::stdout().lock())
}

/// Prints a text and makes sure it went out.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
