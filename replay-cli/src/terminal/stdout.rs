//! Buffered access to stdout.

use std::io::{BufWriter, StdoutLock, Write};

/// Buffered stdout. Flush it to see write errors.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, std::io::stdout().lock())
}

/// Prints a text and flushes it.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
