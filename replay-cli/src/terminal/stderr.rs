//! Messages on stderr, one line each.

use std::fmt::Arguments;
use std::io::Write;

use super::escape::{escape_except, escape_text};
use super::status_line;

/// Prints one line, with everything in it escaped. Erases the status line first.
pub(crate) fn print_message(line: Arguments<'_>) {
    status_line::erase();
    // A closed stderr is not an error.
    let _ = writeln!(std::io::stderr(), "{}", escape_text(&line.to_string()));
}

/// Prints what clap says about the command line. Clap repeats arguments as they are, so the text is
/// made once more from escaped arguments.
pub(crate) fn print_usage_error(command_line: clap::Command, error: &clap::Error) {
    let arguments = std::env::args_os().map(|argument| escape_text(&argument.to_string_lossy()));
    match command_line.try_get_matches_from(arguments) {
        Err(again) if again.kind() == error.kind() => drop(again.print()),
        _ => {
            let text = error.render().to_string();
            let _ = write!(std::io::stderr(), "{}", escape_except(&text, |c| c == '\n'));
        }
    }
}
