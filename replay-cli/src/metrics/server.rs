//! The HTTP side: one thread, one `poll(2)` over all clients.
//!
//! Nothing here waits for a client. Each has a deadline for its request and for its answer, and
//! sends at most a few KiB. If there are too many clients, the one that has been connected longest
//! without sending its request makes way for the next one. So neither idle nor slow clients keep
//! Prometheus out.

use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::bail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::{ClientProgress, Connection, RECHECK_INTERVAL};
use super::follower::{Answer, FollowerRequest};

const MAX_CONNECTIONS: usize = 128;
/// Pause after a connection could not be accepted.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Server {
    listener: TcpListener,
    /// Clients in the order in which they connected.
    connections: Vec<Connection>,
    next_id: u64,
    requests: Sender<FollowerRequest>,
    answers: Receiver<Answer>,
    /// Readable after a signal to stop.
    stop: UnixStream,
    /// Readable after an answer; closed when the follower has ended.
    wake: UnixStream,
    is_local: bool,
}

impl Server {
    pub(super) fn new(
        listener: TcpListener,
        (requests, answers): (Sender<FollowerRequest>, Receiver<Answer>),
        (stop, wake): (UnixStream, UnixStream),
    ) -> std::io::Result<Self> {
        wake.set_nonblocking(true)?;
        let is_local = listener.local_addr()?.ip().is_loopback();
        let connections = Vec::new();
        Ok(Self { listener, connections, next_id: 0, requests, answers, stop, wake, is_local })
    }

    /// Serves until there is a signal to stop.
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        loop {
            let (stops, has_answer, has_client, ready) = self.wait()?;
            if stops {
                return Ok(());
            }
            if has_answer {
                self.take_answers()?;
            }
            for id in ready {
                self.advance(id)?;
            }
            let now = Instant::now();
            self.connections.retain(|connection| connection.deadline > now);
            if has_client {
                self.accept();
            }
        }
    }

    /// Waits for the next event or deadline. Returns what is ready, and the ready connections.
    fn wait(&self) -> anyhow::Result<(bool, bool, bool, Vec<u64>)> {
        let mut polled = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        // Connections without an interest are advanced each time.
        let (mut polled_ids, mut ready) = (Vec::new(), Vec::new());
        for connection in &self.connections {
            match connection.interest() {
                Some(interest) => {
                    polled.push(PollFd::new(&connection.stream, interest));
                    polled_ids.push(connection.id);
                }
                None => ready.push(connection.id),
            }
        }
        let deadline = self.connections.iter().map(|connection| connection.deadline).min();
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            let left = if ready.is_empty() { left } else { left.min(RECHECK_INTERVAL) };
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((false, false, false, Vec::new())),
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd| !fd.revents().is_empty();
        let polled_ready = polled[3..].iter().zip(polled_ids).filter(|(fd, _)| is_ready(fd));
        ready.extend(polled_ready.map(|(_, id)| id));
        Ok((is_ready(&polled[0]), is_ready(&polled[1]), is_ready(&polled[2]), ready))
    }

    fn advance(&mut self, id: u64) -> anyhow::Result<()> {
        let Some(at) = self.connections.iter().position(|connection| connection.id == id) else {
            return Ok(());
        };
        match self.connections[at].advance() {
            ClientProgress::Waits => {}
            ClientProgress::WantsMetrics => self.requests.send(FollowerRequest::Scrape(id))?,
            ClientProgress::Received(reading) => {
                self.connections.remove(at);
                self.requests.send(FollowerRequest::Delivered(reading))?;
            }
            ClientProgress::Closed => drop(self.connections.remove(at)),
        }
        Ok(())
    }

    fn take_answers(&mut self) -> anyhow::Result<()> {
        let _ = self.wake.read(&mut [0; 64]);
        loop {
            match self.answers.try_recv() {
                Ok(Answer { connections, text, reading }) => {
                    for connection in &mut self.connections {
                        if connections.contains(&connection.id) {
                            connection.send_metrics(&text, reading);
                        }
                    }
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => bail!("the reader of the traces has failed"),
            }
        }
    }

    /// Accepts one client; the poll reports further ones again.
    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Without descriptors, the poll would report the same client at once.
                if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) {
                    self.drop_oldest();
                    std::thread::sleep(RETRY_INTERVAL);
                }
                return;
            }
        };
        if self.connections.len() >= MAX_CONNECTIONS {
            self.drop_oldest();
        }
        self.next_id += 1;
        self.connections.extend(Connection::new(self.next_id, stream, self.is_local));
    }

    /// Drops the oldest connection that has sent no request, or else the oldest.
    fn drop_oldest(&mut self) {
        let at = self.connections.iter().position(Connection::awaits_request).unwrap_or(0);
        if at < self.connections.len() {
            self.connections.remove(at);
        }
    }
}
