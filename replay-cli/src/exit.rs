//! Exit codes, and what an error turns into.

use std::process::ExitCode;

/// How the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
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
    Of(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Internal => 1,
            Exit::Usage => 2,
            Exit::Findings => 3,
            Exit::Exceeded => 4,
            Exit::Unreadable => 5,
            Exit::Incomplete => 6,
            Exit::Of(code) => code,
        })
    }
}

/// The input cannot be read: one sentence saying what, where and what to do.
#[derive(Debug)]
pub(crate) struct Unreadable(pub(crate) String);

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// The command line asks for something that cannot be done: one sentence.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Prints the error as one line and picks the code. A reader of our output that has gone away is no error.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    let pipe_closed = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe);
    if pipe_closed {
        return Exit::Done;
    }
    eprintln!("gpumemtrace: {error:#}");
    if error.downcast_ref::<Unreadable>().is_some() {
        Exit::Unreadable
    } else if error.downcast_ref::<Refused>().is_some() {
        Exit::Usage
    } else {
        Exit::Internal
    }
}
