//! Stdout: one buffered writer, and what a terminal can take.

use std::io::{BufWriter, IsTerminal, StdoutLock, Write};

/// How text may look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Colours may be used.
    pub(crate) color: bool,
    /// Columns.
    pub(crate) width: usize,
}

/// Columns where nobody says.
const DEFAULT_WIDTH: usize = 100;

impl Style {
    /// Of stdout: `NO_COLOR` and anything but a terminal mean no colours.
    pub(crate) fn of_stdout() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = columns.or_else(|| terminal_width().filter(|_| is_terminal)).unwrap_or(DEFAULT_WIDTH);
        Self { color: is_terminal && !no_color && !dumb, width: width.clamp(40, 200) }
    }

    /// Text that stands out.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Text that warns.
    pub(crate) fn warn(self, text: &str) -> String {
        self.paint("1;33", text)
    }

    /// Text that steps back.
    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn terminal_width() -> Option<usize> {
    let size =
        std::process::Command::new("stty").arg("size").stdin(std::process::Stdio::inherit()).output().ok()?;
    String::from_utf8(size.stdout).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// Stdout, buffered; flush it to learn whether all was written.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, std::io::stdout().lock())
}

/// Prints a text and makes sure it went out.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
