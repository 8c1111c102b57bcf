//! `gpumemtrace serve-metrics`: serves the memory of running programs to Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::exit::{CliExit, UsageError};
use crate::metrics::{ServeOptions, serve};

#[derive(clap::Args)]
pub(crate) struct ServeMetricsArgs {
    /// Traces, or folders in which traces appear
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,
    /// Allow an address that other machines can reach; there is no authentication
    #[arg(long)]
    allow_remote: bool,
    /// Report a run for this many seconds after its end
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    keep_ended: u32,
}

pub(crate) fn run(args: &ServeMetricsArgs) -> anyhow::Result<CliExit> {
    if !args.listen.ip().is_loopback() && !args.allow_remote {
        return Err(UsageError(format!(
            "other machines could read the metrics at {} without authentication: listen on 127.0.0.1, or add \
             --allow-remote",
            args.listen
        ))
        .into());
    }
    serve(ServeOptions {
        paths: args.paths.clone(),
        listen: args.listen,
        keep_ended: Duration::from_secs(args.keep_ended.into()),
    })?;
    Ok(CliExit::Done)
}
