//! What belongs to the command and is not a report: completions for shells, and its manual page.
//!
//! Constraint: packages install both beside the command, and they must say what it takes. Consequence: both are made from the
//! definition of the command line itself, by the command, and are kept nowhere.

use std::io::Write as _;

use anyhow::Result;
use clap::CommandFactory;

use crate::exit::{CliExit, UsageError};

#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell.
    shell: clap_complete::Shell,
}

/// Prints what the shell is to read, for example into `~/.local/share/bash-completion/completions/gpumemtrace`.
pub(crate) fn completions<Cli: CommandFactory>(args: &CompletionsArgs) -> Result<CliExit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gpumemtrace", &mut text);
    write_stdout(&text)
}

#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The page of this command instead of the first one, such as `replay`.
    command: Option<String>,
}

/// Prints a page for `man -l -`.
pub(crate) fn man<Cli: CommandFactory>(args: &ManArgs) -> Result<CliExit> {
    let mut all = Cli::command();
    all.build();
    let page = match &args.command {
        None => all,
        Some(name) => match all.find_subcommand(name) {
            Some(command) => command.clone().version(env!("CARGO_PKG_VERSION")),
            None => {
                return Err(UsageError(format!(
                    "there is no command {name}; `gpumemtrace --help` lists them"
                ))
                .into());
            }
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    write_stdout(&text)
}

fn write_stdout(text: &[u8]) -> Result<CliExit> {
    std::io::stdout().lock().write_all(text)?;
    Ok(CliExit::Done)
}
