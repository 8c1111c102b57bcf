//! Exit codes, and the errors that select them.

use std::io::ErrorKind;
use std::process::ExitCode;

use crate::terminal::output_file::UnusablePath;
use crate::terminal::stderr::print_message;

/// The exit code of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CliExit {
    Done,
    /// An error that is neither the input's nor the user's.
    Internal,
    Usage,
    /// A finding that `--fail-on` names, a failed check of `doctor`, or a budget that was exceeded
    /// or cannot be checked.
    Findings,
    Unreadable,
    /// The report was printed, but the trace has losses.
    Incomplete,
    /// The exit code of the command that `run` started.
    Code(u8),
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        Self::from(match exit {
            CliExit::Done => 0,
            CliExit::Internal => 1,
            CliExit::Usage => 2,
            CliExit::Findings => 3,
            CliExit::Unreadable => 5,
            CliExit::Incomplete => 6,
            CliExit::Code(code) => code,
        })
    }
}

/// Input that cannot be read, as one sentence: what, where, what to do.
#[derive(Debug)]
pub(crate) struct UnreadableInput(pub(crate) String);

impl UnreadableInput {
    /// None of several traces can be read; each was named before.
    pub(crate) fn of_all() -> Self {
        Self("no trace could be read".to_owned())
    }
}

impl std::fmt::Display for UnreadableInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnreadableInput {}

/// A command line that cannot be carried out, as one sentence: what, where, what to do.
#[derive(Debug)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The kind of an error of reading or writing, also one that the JSON writer passes on.
fn io_error_kind(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let io_error = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    io_error.or_else(|| error.downcast_ref::<serde_json::Error>()?.io_error_kind())
}

/// Prints the error as one line and returns its exit code. A closed stdout is not an error.
pub(crate) fn report_error(error: &anyhow::Error) -> CliExit {
    let pipe_closed = error.chain().filter_map(io_error_kind).any(|kind| kind == ErrorKind::BrokenPipe);
    if pipe_closed {
        return CliExit::Done;
    }
    print_message(format_args!("gpumemtrace: {error:#}"));
    if error.downcast_ref::<UnreadableInput>().is_some() {
        CliExit::Unreadable
    } else if error.is::<UsageError>() || error.is::<UnusablePath>() {
        CliExit::Usage
    } else {
        CliExit::Internal
    }
}
