//! The line on stderr that says how far the command is, and how it goes away.
//!
//! Constraint: stdout is the report's, a log must not fill up with a line that changes, and Ctrl-C may come at any time.
//! Consequence: the line is drawn only on a terminal, by whoever has something to say, and erased before anything else is printed;
//! an interrupt erases it too, and ends the command with code 130.
//!
//! Not indicatif: the line comes after a second, shows sizes in the units of the report, and is erased by whatever is
//! printed next and by an interrupt, which takes as much code around its bar.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::style::stderr_width;

/// Exit code of a command that was interrupted.
const INTERRUPTED: i32 = 130;

/// True while a line is drawn.
static DRAWN: Mutex<bool> = Mutex::new(false);
/// Columns; asked for once.
static WIDTH: OnceLock<usize> = OnceLock::new();

/// True where a line may be drawn and erased again.
pub(crate) fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stderr().is_terminal() && !is_dumb
}

/// Draws a line over the one before.
pub(crate) fn draw(line: &str) {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let width = WIDTH.get_or_init(stderr_width).saturating_sub(1);
    let shown: String = line.chars().filter(|char| !char.is_control()).take(width).collect();
    *drawn = write!(std::io::stderr(), "\r{shown}\x1b[K").is_ok();
}

/// Takes it away.
pub(crate) fn erase() {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::take(&mut *drawn) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// From now on an interrupt ends the command with its own code, and leaves no line behind.
pub(crate) fn exit_cleanly_on_interrupt() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            erase();
            #[allow(clippy::exit)] // Nothing is left to be done: a report that is not whole is none.
            std::process::exit(INTERRUPTED);
        }
    })?;
    Ok(())
}
