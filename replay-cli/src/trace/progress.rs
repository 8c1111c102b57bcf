//! The progress line on stderr while a trace is read.

use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpumemtrace_format::reader::TraceBytes;

use crate::terminal::units::format_bytes;

use crate::terminal::status_line;

/// Reads shorter than this show no line.
const FIRST_AFTER: Duration = Duration::from_secs(1);
const REDRAW_AFTER: Duration = Duration::from_millis(250);

/// The bytes read in the current pass over a trace. A trace is read in several passes.
#[derive(Debug, Default)]
pub(crate) struct ReadCounter {
    bytes: AtomicU64,
    begun: Mutex<Option<Instant>>,
}

impl ReadCounter {
    /// Starts a new pass: resets the count and wraps the source.
    pub(crate) fn begin<R: Read>(self: &Arc<Self>, source: R) -> CountingReader<R> {
        self.bytes.store(0, Ordering::Relaxed);
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        CountingReader { source, counter: self.clone() }
    }

    fn elapsed(&self) -> Duration {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }
}

/// A reader that adds to a [`ReadCounter`].
pub(crate) struct CountingReader<R> {
    source: R,
    counter: Arc<ReadCounter>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.counter.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl<R: Seek> Seek for CountingReader<R> {
    fn seek(&mut self, position: SeekFrom) -> std::io::Result<u64> {
        self.source.seek(position)
    }
}

impl<R: TraceBytes> TraceBytes for CountingReader<R> {
    fn skip_hole(&mut self) -> u64 {
        let skipped = self.source.skip_hole();
        self.counter.bytes.fetch_add(skipped, Ordering::Relaxed);
        skipped
    }
}

/// A thread that draws the progress line until this is dropped.
pub(crate) struct ProgressLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts the thread for a trace of `length_bytes`.
    pub(crate) fn start(name: &str, length_bytes: u64, counter: Arc<ReadCounter>) -> Self {
        let (stop, stopped) = channel();
        let name = name.to_owned();
        let draw_until_stopped = move || {
            let mut wait = FIRST_AFTER;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = REDRAW_AFTER;
                let read = counter.bytes.load(Ordering::Relaxed);
                status_line::draw(&format_progress(&name, (read, length_bytes), counter.elapsed()));
            }
            status_line::erase();
        };
        // If the thread cannot start, there is no line.
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(draw_until_stopped).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn format_progress(name: &str, (read, all): (u64, u64), took: Duration) -> String {
    let per_second = read as f64 / took.as_secs_f64().max(0.001);
    let percent = 100.0 * read as f64 / all.max(1) as f64;
    let left_seconds = all.saturating_sub(read) as f64 / per_second.max(1.0);
    let left = if read == 0 { String::new() } else { format!(", {left_seconds:.0} s left") };
    format!("{name}: {percent:.0}% of {}, {}/s{left}", format_bytes(all), format_bytes(per_second as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_has_percent_speed_and_time_left() {
        assert_eq!(
            format_progress("run.trace", (1 << 20, 4 << 20), Duration::from_secs(2)),
            "run.trace: 25% of 4.00 MiB, 512.00 KiB/s, 6 s left"
        );
        assert_eq!(format_progress("run.trace", (0, 0), Duration::ZERO), "run.trace: 0% of 0 B, 0 B/s");
    }

    #[test]
    fn counter_restarts_with_each_pass() {
        let counter = Arc::new(ReadCounter::default());
        for _ in 0..2 {
            std::io::copy(&mut counter.begin(&[7u8; 100][..]), &mut std::io::sink()).unwrap();
        }
        assert_eq!(counter.bytes.load(Ordering::Relaxed), 100);
    }
}
