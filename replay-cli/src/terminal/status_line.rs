//! The status line on stderr.
//!
//! It is drawn only on a terminal and erased before anything else is printed. An interrupt erases
//! it too and ends the command with code 130.
//!
//! Not indicatif: the line appears after a second and shows sizes in the units of the report. Other
//! output and an interrupt erase it. That takes as much code around its bar.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::escape::escape_text;
use super::style::stderr_width;

/// The exit code after SIGINT, as shells use it.
const INTERRUPTED: i32 = 130;

/// True while the line is on the terminal.
static DRAWN: Mutex<bool> = Mutex::new(false);
/// The width of the terminal at the first line.
static WIDTH: OnceLock<usize> = OnceLock::new();

/// True if stderr is a terminal that can erase a line.
pub(crate) fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stderr().is_terminal() && !is_dumb
}

/// Draws the line over the previous one.
pub(crate) fn draw(line: &str) {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let width = WIDTH.get_or_init(stderr_width).saturating_sub(1);
    let shown: String = escape_text(line).chars().take(width).collect();
    *drawn = write!(std::io::stderr(), "\r{shown}\x1b[K").is_ok();
}

/// Erases the line if it is drawn. Call this before printing anything else.
pub(crate) fn erase() {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::take(&mut *drawn) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Makes SIGINT erase the line and exit with 130.
pub(crate) fn exit_cleanly_on_interrupt() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            erase();
            #[allow(clippy::exit, reason = "nothing needs to be flushed: a partial report is useless")]
            std::process::exit(INTERRUPTED);
        }
    })?;
    Ok(())
}
