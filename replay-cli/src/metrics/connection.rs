//! One client. It never blocks: [`Connection::advance`] does what the socket allows at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::request::{MAX_HEAD_BYTES, Route, answer, route};

/// How long a client may take to send its request, and again to take the answer.
const MAX_CLIENT_TIME: Duration = Duration::from_secs(5);
/// How long the reader of the traces may take. A stopped program delays it by a few seconds.
const MAX_SCRAPE_TIME: Duration = Duration::from_mins(1);
/// How long to wait for the client to close, so that it can still read a refusal.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(1);

/// What a connection waits for.
enum State {
    Request(Vec<u8>),
    Scrape,
    /// The bytes that are left to write, and the reading that they contain.
    Answer(Vec<u8>, usize, Option<u64>),
    /// The client's end of the connection.
    Close,
}

/// What follows from an advance.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientProgress {
    Waits,
    /// The client asks for the metrics.
    WantsMetrics,
    /// The whole answer was sent, with this reading if it contains one.
    Sent(Option<u64>),
    Closed,
}

pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) stream: TcpStream,
    pub(super) deadline: Instant,
    is_local: bool,
    state: State,
}

impl Connection {
    pub(super) fn new(id: u64, stream: TcpStream, is_local: bool) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let deadline = Instant::now() + MAX_CLIENT_TIME;
        Ok(Self { id, stream, deadline, is_local, state: State::Request(Vec::new()) })
    }

    /// True until the client has sent its request.
    pub(super) fn awaits_request(&self) -> bool {
        matches!(self.state, State::Request(_))
    }

    /// What `poll(2)` should wait for. A broken connection is always reported.
    pub(super) fn interest(&self) -> PollFlags {
        match self.state {
            State::Request(_) | State::Close => PollFlags::IN,
            State::Scrape => PollFlags::empty(),
            State::Answer(..) => PollFlags::OUT,
        }
    }

    /// Begins to send the metrics.
    pub(super) fn send_metrics(&mut self, text: &str, reading: u64) {
        let content_type = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
        self.send(answer("200 OK", content_type, text), Some(reading));
    }

    fn send(&mut self, answer: Vec<u8>, reading: Option<u64>) {
        self.state = State::Answer(answer, 0, reading);
        self.deadline = Instant::now() + MAX_CLIENT_TIME;
    }

    /// Reads or writes what is possible without waiting.
    pub(super) fn advance(&mut self) -> ClientProgress {
        match &mut self.state {
            State::Request(head) => {
                let mut buffer = [0; 1024];
                let room = buffer.len().min(MAX_HEAD_BYTES - head.len());
                match self.stream.read(&mut buffer[..room]) {
                    Ok(0) => return ClientProgress::Closed,
                    Ok(bytes) => head.extend_from_slice(&buffer[..bytes]),
                    Err(error) => return waits_or_closed(&error),
                }
                match route(head, self.is_local) {
                    Route::Incomplete => ClientProgress::Waits,
                    Route::Metrics => {
                        self.state = State::Scrape;
                        self.deadline = Instant::now() + MAX_SCRAPE_TIME;
                        ClientProgress::WantsMetrics
                    }
                    Route::Answer(answer) => {
                        self.send(answer, None);
                        ClientProgress::Waits
                    }
                }
            }
            // The poll reported that the client is gone.
            State::Scrape => ClientProgress::Closed,
            State::Answer(answer, sent, reading) => match self.stream.write(&answer[*sent..]) {
                Err(error) => waits_or_closed(&error),
                Ok(bytes) if *sent + bytes < answer.len() => {
                    *sent += bytes;
                    ClientProgress::Waits
                }
                Ok(_) => {
                    let reading = *reading;
                    self.state = State::Close;
                    self.deadline = Instant::now() + MAX_DRAIN_TIME;
                    let _ = self.stream.shutdown(Shutdown::Write);
                    ClientProgress::Sent(reading)
                }
            },
            State::Close => match self.stream.read(&mut [0; 4096]) {
                Ok(0) => ClientProgress::Closed,
                Ok(_) => ClientProgress::Waits,
                Err(error) => waits_or_closed(&error),
            },
        }
    }
}

fn waits_or_closed(error: &std::io::Error) -> ClientProgress {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => ClientProgress::Waits,
        _ => ClientProgress::Closed,
    }
}
