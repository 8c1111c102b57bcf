//! `gpumemtrace completions` and `gpumemtrace man`: shell completions and manual pages.
//!
//! Both are generated from the definition of the command line, so packages cannot ship stale ones.

use std::io::Write as _;

use anyhow::Result;
use clap::Command;

use crate::exit::{CliExit, UsageError};

#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    shell: clap_complete::Shell,
}

/// Prints the completion script, for example for
/// `~/.local/share/bash-completion/completions/gpumemtrace`.
pub(crate) fn completions(args: &CompletionsArgs, mut command_line: Command) -> Result<CliExit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "gpumemtrace", &mut text);
    write_stdout(&text)
}

#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Command, such as `replay` or `export perfetto` [default: the main page]
    command: Vec<String>,
}

/// Prints a page for `man -l -`.
pub(crate) fn man(args: &ManArgs, mut all: Command) -> Result<CliExit> {
    all.build();
    let mut page = &all;
    for name in &args.command {
        page = page.find_subcommand(name).ok_or_else(|| {
            let whole = args.command.join(" ");
            let above = page.get_bin_name().unwrap_or("gpumemtrace");
            UsageError(format!("there is no command {whole}; {above} --help lists all"))
        })?;
    }
    let page = page.clone().version(env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    write_stdout(&text)
}

fn write_stdout(text: &[u8]) -> Result<CliExit> {
    std::io::stdout().lock().write_all(text)?;
    Ok(CliExit::Done)
}
