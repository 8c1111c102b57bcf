//! The thread that reads the traces.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::exposition::to_text;
use super::trace_set::TraceSet;

/// How often traces are read between scrapes: each scrape then finds little left to read.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// What the HTTP side reports.
pub(super) enum FollowerRequest {
    /// A connection wants the metrics.
    Scrape(u64),
    /// A client has received this reading.
    Delivered(u64),
}

/// The metrics, for some connections.
pub(super) struct Answer {
    pub(super) connections: Vec<u64>,
    pub(super) text: Arc<str>,
    pub(super) reading: u64,
}

/// Reads traces until the other side is gone. All scrapes that wait get the same reading.
pub(super) fn run(
    mut traces: TraceSet,
    requests: &Receiver<FollowerRequest>,
    answers: &Sender<Answer>,
    mut waker: &UnixStream,
) {
    let mut reading = 0;
    let mut is_delivered = false;
    loop {
        let first = match requests.recv_timeout(READ_INTERVAL) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => {
                traces.update(false);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut connections = Vec::new();
        for request in std::iter::once(first).chain(requests.try_iter()) {
            match request {
                FollowerRequest::Scrape(connection) => connections.push(connection),
                // Later readings contain the maxima of earlier ones that did not arrive.
                FollowerRequest::Delivered(delivered) => is_delivered |= delivered == reading,
            }
        }
        if connections.is_empty() {
            continue;
        }
        traces.update(true);
        reading += 1;
        let text = to_text(traces.read(std::mem::take(&mut is_delivered))).into();
        if answers.send(Answer { connections, text, reading }).is_err() {
            return;
        }
        // A full pipe wakes the other side just as well.
        let _ = waker.write(&[0]);
    }
}
