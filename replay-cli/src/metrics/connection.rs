//! One client. It never blocks: [`Connection::advance`] does what the socket allows at once.
//!
//! A successful write only copies the answer into a buffer of this kernel. A client has received
//! the metrics if it closes its end after the last byte, with all bytes acknowledged. A client that
//! closes with unread bytes resets the connection (RFC 1122, 4.2.2.13; RFC 2525, 2.17), and so does
//! the kernel of a client that was gone before the bytes came.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::request::{MAX_HEAD_BYTES, Route, answer, route};

/// How long a client may take to send its request, and again to take the answer.
const MAX_CLIENT_TIME: Duration = Duration::from_secs(5);
/// How long the reader of the traces may take. A stopped program delays it by a few seconds.
const MAX_SCRAPE_TIME: Duration = Duration::from_mins(1);
/// How long to wait for the client to read the answer and to close.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(5);

/// How often to look for the last acknowledgement.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// What a connection waits for.
enum State {
    Request(Vec<u8>),
    Scrape,
    /// The answer, how much of it was written, and the reading that it contains.
    Answer(Vec<u8>, usize, Option<u64>),
    /// The client's end of the connection, after the whole answer.
    Close(Option<u64>),
    /// The last acknowledgement of a client that has closed its end.
    Acknowledgement(u64),
}

/// What follows from an advance.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientProgress {
    Waits,
    /// The client asks for the metrics.
    WantsMetrics,
    /// The client has received this reading, and the connection is closed.
    Received(u64),
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

    /// What `poll(2)` should wait for. It always reports a broken connection. `None` if it reports
    /// nothing of use; advance the connection after [`RECHECK_INTERVAL`] then.
    pub(super) fn interest(&self) -> Option<PollFlags> {
        match self.state {
            State::Request(_) | State::Close(_) => Some(PollFlags::IN),
            State::Scrape => Some(PollFlags::empty()),
            State::Answer(..) => Some(PollFlags::OUT),
            State::Acknowledgement(_) => None,
        }
    }

    /// Begins to send the metrics.
    pub(super) fn send_metrics(&mut self, text: &str, reading: u64) {
        let content_type = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
        // A client that has closed its end already cannot show that it received the answer. It may
        // still read it: `nc -N` closes its end after the request.
        let has_closed = matches!(self.stream.peek(&mut [0]), Ok(0));
        self.send(answer("200 OK", content_type, text), Some(reading).filter(|_| !has_closed));
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
                    self.state = State::Close(*reading);
                    self.deadline = Instant::now() + MAX_DRAIN_TIME;
                    let _ = self.stream.shutdown(Shutdown::Write);
                    ClientProgress::Waits
                }
            },
            State::Close(reading) => match (self.stream.read(&mut [0; 4096]), *reading) {
                (Ok(0), None) => ClientProgress::Closed,
                (Ok(0), Some(reading)) => {
                    self.state = State::Acknowledgement(reading);
                    self.check_acknowledgement(reading)
                }
                (Ok(_), _) => ClientProgress::Waits,
                (Err(error), _) => waits_or_closed(&error),
            },
            State::Acknowledgement(reading) => {
                let reading = *reading;
                self.check_acknowledgement(reading)
            }
        }
    }

    /// Looks how a connection ends that both sides have closed. It has no peer any more once the
    /// client has acknowledged everything, or has reset it, which leaves an error (`inet_getname`
    /// and `tcp_reset` in Linux).
    fn check_acknowledgement(&self, reading: u64) -> ClientProgress {
        let is_closed = self.stream.peer_addr().is_err();
        match self.stream.take_error() {
            Ok(None) if is_closed => ClientProgress::Received(reading),
            Ok(None) => ClientProgress::Waits,
            _ => ClientProgress::Closed,
        }
    }
}

fn waits_or_closed(error: &std::io::Error) -> ClientProgress {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => ClientProgress::Waits,
        _ => ClientProgress::Closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

    /// A client that has sent its request, and the server's side of its connection.
    fn connect() -> (TcpStream, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(REQUEST).unwrap();
        let mut connection = Connection::new(1, listener.accept().unwrap().0, true).unwrap();
        assert_eq!(progress(&mut connection), ClientProgress::WantsMetrics);
        (client, connection)
    }

    /// Advances until something follows, or until the deadline of the connection.
    fn progress(connection: &mut Connection) -> ClientProgress {
        while Instant::now() < connection.deadline {
            match connection.advance() {
                ClientProgress::Waits => std::thread::sleep(Duration::from_millis(1)),
                found => return found,
            }
        }
        ClientProgress::Waits
    }

    /// Writes the whole answer, which fits into the buffers of the kernel.
    fn write_answer(connection: &mut Connection) {
        while matches!(connection.state, State::Answer(..)) {
            assert_eq!(connection.advance(), ClientProgress::Waits);
        }
    }

    #[test]
    fn reading_is_received_once_the_client_has_read_it_and_closed() {
        let (mut client, mut connection) = connect();
        connection.send_metrics("gpumemtrace_events_total 7\n", 3);
        write_answer(&mut connection);
        assert_eq!(connection.advance(), ClientProgress::Waits, "written is not received");
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\ngpumemtrace_events_total 7\n"), "{answer}");
        assert_eq!(connection.advance(), ClientProgress::Waits, "the client may still fail");
        drop(client);
        assert_eq!(progress(&mut connection), ClientProgress::Received(3));
    }

    #[test]
    fn client_that_is_gone_before_the_answer_receives_nothing() {
        let (client, mut connection) = connect();
        drop(client);
        connection.send_metrics("gpumemtrace_events_total 7\n", 3);
        assert_eq!(progress(&mut connection), ClientProgress::Closed);
        // It closes just before the first byte.
        let (client, mut connection) = connect();
        connection.send_metrics("gpumemtrace_events_total 7\n", 3);
        drop(client);
        assert_eq!(progress(&mut connection), ClientProgress::Closed);
    }

    #[test]
    fn client_that_leaves_bytes_unread_receives_nothing() {
        for bytes_read in [0, 100] {
            let (mut client, mut connection) = connect();
            connection.send_metrics(&"gpumemtrace_events_total 7\n".repeat(100), 3);
            write_answer(&mut connection);
            client.read_exact(&mut vec![0; bytes_read]).unwrap();
            client.peek(&mut [0]).unwrap();
            drop(client);
            assert_eq!(progress(&mut connection), ClientProgress::Closed, "after {bytes_read} bytes");
        }
    }

    #[test]
    fn client_that_closes_its_end_first_is_answered_and_not_counted() {
        let (mut client, mut connection) = connect();
        client.shutdown(Shutdown::Write).unwrap();
        while !matches!(connection.stream.peek(&mut [0]), Ok(0)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        connection.send_metrics("gpumemtrace_events_total 7\n", 3);
        assert_eq!(progress(&mut connection), ClientProgress::Closed);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("gpumemtrace_events_total 7\n"), "{answer}");
    }
}
