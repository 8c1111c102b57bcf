//! What `compare` and `check` share: how they read a trace.

use std::path::Path;

use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::compare::{Amounts, analyse_by_steps};
use gpumemtrace_replay::origin::OwnPaths;

use super::replay::parse_own_paths;
use crate::exit::UsageError;
use crate::terminal::status_line;
use crate::trace::open::TraceSource;

/// Options for the reading.
#[derive(clap::Args)]
pub(crate) struct TraceArgs {
    /// Count what lies below PATH as your own code, also where it is installed: an absolute path, or some components of it such
    /// as site-packages/mylib (may be given more than once)
    #[arg(long, value_name = "PATH")]
    own: Vec<String>,
    /// Do without the names of native functions that earlier runs left on disk (as GPUMEMTRACE_CACHE=off does)
    #[arg(long)]
    no_cache: bool,
    /// Draw no line on the terminal that says how far the reading is
    #[arg(long)]
    no_progress: bool,
}

impl TraceArgs {
    /// Whose code is the user's own.
    pub(crate) fn own_paths(&self) -> Result<OwnPaths, UsageError> {
        parse_own_paths(&self.own)
    }

    /// True where names of native functions are remembered.
    pub(crate) fn uses_symbol_cache(&self) -> bool {
        !self.no_cache
    }
}

/// Reads a trace.
pub(crate) fn read_by_steps(
    path: &Path,
    args: &TraceArgs,
    own: &OwnPaths,
) -> anyhow::Result<(Analysis, Amounts)> {
    let (file, ring) = TraceSource::find(path)?;
    let shows_progress = !args.no_progress && status_line::is_terminal();
    let _progress = shows_progress.then(|| file.progress());
    Ok(file.with_input(ring, |input| analyse_by_steps(input, own.clone()))?)
}
