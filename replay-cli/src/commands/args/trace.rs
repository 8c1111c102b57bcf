//! How `compare`, `check` and `html` read a trace.

use std::path::Path;

use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::compare::{PerStepTotals, analyse_by_steps};

use crate::exit::{UnreadableInput, UsageError};
use crate::help::DISPLAY;
use crate::terminal::status_line;
use crate::trace::open::TraceSource;

#[derive(clap::Args, Default)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    user_code: UserCodeArgs,
    #[command(flatten)]
    progress: ProgressArgs,
}

/// For outputs that name call sites.
#[derive(clap::Args, Default)]
pub(crate) struct UserCodeArgs {
    /// Treat files below PATH as your code, such as site-packages/mylib (repeatable)
    ///
    /// PATH is an absolute path, or some components of one. It also covers installed packages.
    #[arg(long, help_heading = DISPLAY, value_name = "PATH")]
    user_code: Vec<String>,
}

#[derive(clap::Args, Default)]
pub(crate) struct ProgressArgs {
    /// Disable the progress bar
    #[arg(long, help_heading = DISPLAY)]
    no_progress: bool,
}

impl TraceArgs {
    /// The paths of `--user-code`.
    pub(crate) fn user_code(&self) -> Result<UserCodePaths, UsageError> {
        self.user_code.paths()
    }

    /// True if a progress bar is wanted and stderr can show it.
    pub(crate) fn shows_progress(&self) -> bool {
        self.progress.shows_progress()
    }
}

impl UserCodeArgs {
    /// The paths of `--user-code`.
    pub(crate) fn paths(&self) -> Result<UserCodePaths, UsageError> {
        parse_user_code(&self.user_code)
    }
}

impl ProgressArgs {
    /// True if a progress bar is wanted and stderr can show it.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.no_progress && status_line::is_terminal()
    }
}

/// Analyses a trace step by step.
pub(crate) fn read_by_steps(
    path: &Path,
    user_code: &UserCodePaths,
    shows_progress: bool,
) -> Result<(Analysis, PerStepTotals), UnreadableInput> {
    let (file, ring) = TraceSource::find(path)?;
    let _progress = shows_progress.then(|| file.progress());
    file.with_input(ring, |input| analyse_by_steps(input, user_code.clone()))
}

/// Parses the paths of `--user-code`. Fails for a path that matches every file, such as `.`.
fn parse_user_code(paths: &[String]) -> Result<UserCodePaths, UsageError> {
    UserCodePaths::new(paths.iter().map(String::as_str)).ok_or_else(|| {
        UsageError(
            "--user-code matches every file; give a path such as /home/me/lib or site-packages/mylib"
                .to_owned(),
        )
    })
}
