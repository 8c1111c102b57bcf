//! Formats that a program of its own writes, so that this one stays small.
//!
//! `gpumemtrace export NAME ...` runs the program with the arguments after `export`, as cargo runs
//! its subcommands. The program lies beside this one or on `PATH`.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::exit::UsageError;

/// A format that a program of its own writes.
pub(crate) struct ExportProgram {
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// A command line that the help shows, without `gpumemtrace export`.
    pub(crate) example: &'static str,
    /// The file name of the program.
    pub(crate) program: &'static str,
}

impl ExportProgram {
    /// Becomes that program, with the arguments of this one. Returns only if that fails.
    ///
    /// The process stays the same, so signals to it reach the exporter.
    pub(crate) fn exec(&self) -> UsageError {
        let Some(program) = self.find() else {
            return UsageError(format!(
                "the format {} needs the program {}, which is neither beside gpumemtrace nor on PATH; install \
                 it from a checkout: cargo install --path crates/export-{}",
                self.name, self.program, self.name
            ));
        };
        // The first argument is `export`: neither command takes options before its subcommand.
        let error = Command::new(&program).args(std::env::args_os().skip(2)).exec();
        UsageError(format!("{} cannot be run: {error}", program.display()))
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
