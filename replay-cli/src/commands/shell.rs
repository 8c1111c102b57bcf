//! `gpumemtrace completions` and `gpumemtrace man`: shell completions and manual pages.
//!
//! Both are generated from the definition of the command line, so packages cannot ship stale ones.

use std::io::Write as _;

use anyhow::Result;
use clap::CommandFactory;

use crate::exit::{CliExit, UsageError};

#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    shell: clap_complete::Shell,
}

/// Prints the completion script, for example for
/// `~/.local/share/bash-completion/completions/gpumemtrace`.
pub(crate) fn completions<Cli: CommandFactory>(args: &CompletionsArgs) -> Result<CliExit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gpumemtrace", &mut text);
    write_stdout(&text)
}

#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Subcommand, such as `replay` [default: the main page]
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
                    "there is no command {name}; list all with gpumemtrace --help"
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
