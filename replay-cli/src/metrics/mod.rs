//! `gpumemtrace serve-metrics`: a Prometheus endpoint over running traces.
//!
//! Two threads: this one serves HTTP ([`server`]), the other reads the traces ([`follower`]). A
//! slow client therefore never delays the reader, and a slow trace never delays the other clients.
//! Each scrape first reads all that the programs have recorded, so its values are those at the
//! moment of the scrape, and their maxima are exact. Between scrapes, only the trace files are
//! read, every two seconds. Ring files are opened for a scrape alone: the recorder has to give up
//! its lease each time.
//!
//! The text is written by `prometheus-client`, and requests are parsed by `httparse`, hyper's
//! parser. No small HTTP server is maintained (the last release of `tiny_http` is of 2022), and
//! hyper needs an async runtime, so the sockets are served here, with `poll(2)`.

mod connection;
mod exposition;
mod families;
mod follower;
mod request;
mod served_run;
mod server;
mod trace_set;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::UsageError;
use crate::terminal::stderr::print_message;
use server::Server;
use trace_set::TraceSet;

/// What to serve, and where.
pub(crate) struct ServeOptions {
    /// Traces, or folders with traces.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) listen: SocketAddr,
    /// How long a run is reported after its end.
    pub(crate) keep_ended: Duration,
}

/// Serves metrics until SIGINT or SIGTERM.
pub(crate) fn serve(options: ServeOptions) -> anyhow::Result<()> {
    let (stop, stopper) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGINT, stopper.try_clone()?)?;
    signal_hook::low_level::pipe::register(SIGTERM, stopper)?;
    let traces = TraceSet::open(options.paths, options.keep_ended)?;
    let cannot_listen = |error| UsageError(format!("cannot listen on {}: {error}", options.listen));
    let listener = TcpListener::bind(options.listen).map_err(cannot_listen)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (wake, waker) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    let (requests, received) = mpsc::channel();
    let (sender, answers) = mpsc::channel();
    std::thread::Builder::new()
        .name("follower".to_owned())
        .spawn(move || follower::run(traces, &received, &sender, &waker))
        .context("cannot start a thread")?;
    print_message(format_args!("gpumemtrace: serving metrics at http://{address}/metrics"));
    Server::new(listener, (requests, answers), (stop, wake))?.run()
}
