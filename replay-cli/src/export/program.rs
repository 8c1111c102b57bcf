//! Formats that a program of its own writes, so that this one stays small.
//!
//! `gpumemtrace export NAME ...` runs the program with the arguments after `export`, as cargo runs
//! its subcommands. The program lies beside this one or on `PATH`.

use std::path::PathBuf;
use std::process::Command;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::{EXPORTERS, Exporter, PROGRAMS};
use crate::exit::{CliExit, UsageError};

/// A format that a program of its own writes.
pub(crate) struct ExportProgram {
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// The file name of the program.
    pub(crate) program: &'static str,
}

/// A value of FORMAT.
#[derive(Clone, Copy)]
pub(crate) enum ExportFormat {
    /// A row of [`EXPORTERS`].
    Own(&'static dyn Exporter),
    /// A row of [`PROGRAMS`].
    Program(&'static ExportProgram),
}

/// Parses the name of a row of either table.
pub(crate) fn export_format_parser() -> impl TypedValueParser<Value = ExportFormat> {
    let own = EXPORTERS.iter().map(|row| PossibleValue::new(row.name()).help(row.help()));
    let programs = PROGRAMS.iter().map(|row| PossibleValue::new(row.name).help(row.help));
    PossibleValuesParser::new(own.chain(programs)).try_map(|name| {
        let own = EXPORTERS.iter().find(|row| row.name() == name).map(|row| ExportFormat::Own(*row));
        let program = || PROGRAMS.iter().find(|row| row.name == name).map(ExportFormat::Program);
        own.or_else(program).ok_or_else(|| format!("unknown format {name}"))
    })
}

impl ExportProgram {
    /// Runs the program with the arguments of this one, and returns its exit code.
    pub(crate) fn run(&self) -> anyhow::Result<CliExit> {
        let program = self.find().ok_or_else(|| {
            UsageError(format!(
                "the format {} needs the program {}, which is neither beside gpumemtrace nor on PATH; install \
                 it from a checkout: cargo install --path export-{}",
                self.name, self.program, self.name
            ))
        })?;
        // The first argument is `export`: the command takes no options before it.
        let status = Command::new(program).args(std::env::args_os().skip(2)).status()?;
        // Without a code, a signal ended it.
        Ok(status.code().map_or(CliExit::Internal, |code| CliExit::Code(code as u8)))
    }

    /// The program beside this one, else the first on `PATH`.
    fn find(&self) -> Option<PathBuf> {
        let this = std::env::current_exe().ok();
        let beside = this.as_deref().and_then(|path| path.parent()).map(|folder| folder.join(self.program));
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        let mut candidates = beside.into_iter();
        candidates
            .by_ref()
            .chain(std::env::split_paths(&on_path).map(|folder| folder.join(self.program)))
            .find(|path| path.is_file())
    }
}
