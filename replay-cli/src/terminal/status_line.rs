//! The status lines on stderr.
//!
//! They are drawn only on a terminal and erased before anything else is printed. An interrupt
//! erases them too, and ends the command with code 130 or asks it to finish.
//!
//! Not indicatif: the lines appear after a second and show sizes in the units of the report. Other
//! output and an interrupt erase them. That takes as much code around its bar.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::escape::escape_text;
use super::style::stderr_width;

/// The exit code after SIGINT, as shells use it.
const INTERRUPTED: i32 = 130;

/// Number of lines that are on the terminal.
static DRAWN: Mutex<usize> = Mutex::new(0);
/// The width of the terminal at the first line.
static WIDTH: OnceLock<usize> = OnceLock::new();
/// True if the next interrupt only asks the command to finish.
static MAY_FINISH: AtomicBool = AtomicBool::new(false);
/// True if an interrupt asked for that.
static IS_ASKED_TO_FINISH: AtomicBool = AtomicBool::new(false);

/// True if stderr is a terminal that can erase a line.
pub(crate) fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stderr().is_terminal() && !is_dumb
}

/// Number of characters that fit into a line.
pub(crate) fn width() -> usize {
    WIDTH.get_or_init(stderr_width).saturating_sub(1)
}

/// Draws the line over the previous ones.
pub(crate) fn draw(line: &str) {
    draw_all(&[line.to_owned()]);
}

/// Draws the lines over the previous ones.
pub(crate) fn draw_all(lines: &[String]) {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = to_first_line(*drawn);
    for (number, line) in lines.iter().enumerate() {
        let shown: String = escape_text(line).chars().take(width()).collect();
        let _ = write!(text, "{}{shown}\x1b[K", if number > 0 { "\r\n" } else { "" });
    }
    if lines.len() < *drawn {
        text += "\x1b[J";
    }
    *drawn = if std::io::stderr().write_all(text.as_bytes()).is_ok() { lines.len() } else { 0 };
}

/// Erases the lines if they are drawn. Call this before printing anything else.
pub(crate) fn erase() {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::take(&mut *drawn) {
        0 => {}
        1 => drop(write!(std::io::stderr(), "\r\x1b[K")),
        lines => drop(write!(std::io::stderr(), "{}\x1b[J", to_first_line(lines))),
    }
}

/// Moves the cursor to the start of the first line.
fn to_first_line(drawn: usize) -> String {
    if drawn > 1 { format!("\r\x1b[{}A", drawn - 1) } else { "\r".to_owned() }
}

/// Makes SIGINT erase the lines and exit with 130.
pub(crate) fn exit_cleanly_on_interrupt() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if MAY_FINISH.swap(false, Ordering::Relaxed) {
                IS_ASKED_TO_FINISH.store(true, Ordering::Relaxed);
                continue;
            }
            erase();
            #[allow(clippy::exit, reason = "nothing needs to be flushed: a partial report is useless")]
            std::process::exit(INTERRUPTED);
        }
    })?;
    Ok(())
}

/// Makes the next SIGINT ask the command to finish, or end it again.
pub(crate) fn finish_on_interrupt(may_finish: bool) {
    MAY_FINISH.store(may_finish, Ordering::Relaxed);
}

/// True after such an interrupt.
pub(crate) fn is_asked_to_finish() -> bool {
    IS_ASKED_TO_FINISH.load(Ordering::Relaxed)
}
