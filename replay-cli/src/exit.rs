//! Exit codes, and what an error turns into.

use std::process::ExitCode;

/// How the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CliExit {
    /// Done.
    Done,
    /// Our fault.
    Internal,
    /// The command line makes no sense.
    Usage,
    /// `--fail-on` found what it looks for.
    Findings,
    /// A budget was exceeded, or is not known to be kept.
    Exceeded,
    /// The input cannot be read.
    Unreadable,
    /// The input was read and is not complete.
    Incomplete,
    /// What the command that was run returned.
    Code(u8),
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        Self::from(match exit {
            CliExit::Done => 0,
            CliExit::Internal => 1,
            CliExit::Usage => 2,
            CliExit::Findings => 3,
            CliExit::Exceeded => 4,
            CliExit::Unreadable => 5,
            CliExit::Incomplete => 6,
            CliExit::Code(code) => code,
        })
    }
}

/// The input cannot be read: one sentence saying what, where and what to do.
#[derive(Debug)]
pub(crate) struct UnreadableInput(pub(crate) String);

impl std::fmt::Display for UnreadableInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnreadableInput {}

/// The command line asks for something that cannot be done: one sentence.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Prints the error as one line and picks the code. A reader of our output that has gone away is no error.
pub(crate) fn report_error(error: &anyhow::Error) -> CliExit {
    let pipe_closed = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe);
    if pipe_closed {
        return CliExit::Done;
    }
    eprintln!("gpumemtrace: {error:#}");
    if error.downcast_ref::<UnreadableInput>().is_some() {
        CliExit::Unreadable
    } else if error.downcast_ref::<UsageError>().is_some() {
        CliExit::Usage
    } else {
        CliExit::Internal
    }
}
