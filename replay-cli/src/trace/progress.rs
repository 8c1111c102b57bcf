//! The line on stderr that says how far the command is, and how it goes away.
//!
//! Constraint: stdout is the report's, a log must not fill up with a line that changes, and Ctrl-C may come at any time.
//! Consequence: the line is drawn only on a terminal, by whoever has something to say, and erased before anything else is printed;
//! an interrupt erases it too, and ends the command with code 130.

use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpumemtrace_replay::sections::size;

use crate::terminal::style::stderr_width;

/// What is done sooner is not worth a line.
const FIRST_AFTER: Duration = Duration::from_secs(1);
const REDRAW_AFTER: Duration = Duration::from_millis(250);
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
pub(crate) fn end_cleanly_when_interrupted() -> std::io::Result<()> {
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

/// How far a file has been read. It is read more than once.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    bytes: AtomicU64,
    begun: Mutex<Option<Instant>>,
}

impl Reading {
    /// Counts what is read from here on.
    pub(crate) fn begin<R: Read>(self: &Arc<Self>, source: R) -> Counted<R> {
        self.bytes.store(0, Ordering::Relaxed);
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Counted { source, reading: self.clone() }
    }

    fn took(&self) -> Duration {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }
}

/// A source of bytes that are counted.
pub(crate) struct Counted<R> {
    source: R,
    reading: Arc<Reading>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.reading.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Says how far the reading is, until it is dropped.
pub(crate) struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Of a file of so many bytes.
    pub(crate) fn of(name: &str, length_bytes: u64, reading: Arc<Reading>) -> Self {
        let (stop, stopped) = channel();
        let name = name.to_owned();
        let draw_until_stopped = move || {
            let mut wait = FIRST_AFTER;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = REDRAW_AFTER;
                let read = reading.bytes.load(Ordering::Relaxed);
                draw(&line(&name, (read, length_bytes), reading.took()));
            }
            erase();
        };
        // Without a thread there is no line, and nothing else is missing.
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(draw_until_stopped).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn line(name: &str, (read, all): (u64, u64), took: Duration) -> String {
    let per_second = read as f64 / took.as_secs_f64().max(0.001);
    let percent = 100.0 * read as f64 / all.max(1) as f64;
    let left_seconds = all.saturating_sub(read) as f64 / per_second.max(1.0);
    let left = if read == 0 { String::new() } else { format!(", {left_seconds:.0} s left") };
    format!("{name}: {percent:.0} % of {}, {}/s{left}", size(all), size(per_second as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_how_fast_and_how_long() {
        assert_eq!(
            line("run.trace", (1 << 20, 4 << 20), Duration::from_secs(2)),
            "run.trace: 25 % of 4.00 MiB, 512.00 KiB/s, 6 s left"
        );
        assert_eq!(line("run.trace", (0, 0), Duration::ZERO), "run.trace: 0 % of 0 B, 0 B/s");
    }

    #[test]
    fn what_is_read_is_counted_from_the_start_of_each_reading() {
        let reading = Arc::new(Reading::default());
        for _ in 0..2 {
            std::io::copy(&mut reading.begin(&[7u8; 100][..]), &mut std::io::sink()).unwrap();
        }
        assert_eq!(reading.bytes.load(Ordering::Relaxed), 100);
    }
}
