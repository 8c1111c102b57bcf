//! The commands below `export`: one for each row of [`FORMATS`] and [`PROGRAMS`].

use clap::{ArgMatches, Args as _, Command, FromArgMatches, Subcommand};

use super::FileArgs;
use super::folder::FolderArgs;
use crate::commands::args::trace::UserCodeArgs;
use crate::export::{ExportProgram, Exporter, FORMATS, FormatRow, PROGRAMS};

/// The format that the command line names, with its options.
pub(super) enum ChosenFormat {
    /// A row of [`FORMATS`].
    File(Box<FileFormat>),
    /// A row of [`PROGRAMS`]. The program parses its options itself.
    Program(&'static ExportProgram),
}

/// A format of one file, with its options.
pub(super) struct FileFormat {
    pub(super) row: &'static FormatRow,
    pub(super) exporter: Box<dyn Exporter>,
    pub(super) args: FileArgs,
    /// Empty for formats without call sites, which do not have the option.
    pub(super) user_code: UserCodeArgs,
}

impl Subcommand for ChosenFormat {
    fn augment_subcommands(command: Command) -> Command {
        let files = FORMATS.iter().map(|row| {
            let options = FileArgs::augment_args(row.add_options(Command::new(row.name)));
            let options = if row.shows_code { UserCodeArgs::augment_args(options) } else { options };
            describe_format(options, row.help, row.example)
        });
        let programs = PROGRAMS.iter().map(|row| {
            describe_format(FolderArgs::augment_args(Command::new(row.name)), row.help, row.example)
        });
        command
            .subcommands(files)
            .subcommands(programs)
            .subcommand_required(true)
            .disable_help_subcommand(true)
            .subcommand_help_heading("Formats")
            .subcommand_value_name("FORMAT")
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        FORMATS.iter().any(|row| row.name == name) || PROGRAMS.iter().any(|row| row.name == name)
    }
}

/// Sets the help of a format, in which the example comes first. It replaces the documentation of
/// the types of the options, which clap takes for the help of the command.
fn describe_format(command: Command, help: &'static str, example: &'static str) -> Command {
    let long = format!("{help}\n\n  gpumemtrace export {example}");
    command.about(help).long_about(long).arg_required_else_help(true)
}

impl FromArgMatches for ChosenFormat {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (name, matches) = matches
            .subcommand()
            .ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))?;
        if let Some(row) = FORMATS.iter().find(|row| row.name == name) {
            let (exporter, args) = (row.exporter(matches)?, FileArgs::from_arg_matches(matches)?);
            let user_code = row
                .shows_code
                .then(|| UserCodeArgs::from_arg_matches(matches))
                .transpose()?
                .unwrap_or_default();
            return Ok(Self::File(Box::new(FileFormat { row, exporter, args, user_code })));
        }
        let program = PROGRAMS.iter().find(|row| row.name == name);
        program.map(Self::Program).ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_command_lines_of_their_format() {
        let export = ChosenFormat::augment_subcommands(Command::new("export"));
        let rows = FORMATS.iter().map(|row| row.example).chain(PROGRAMS.iter().map(|row| row.example));
        for example in rows {
            // The shell's part of it comes after the command.
            let words = example.split(' ').take_while(|word| !["|", "&&"].contains(word));
            let words = std::iter::once("export").chain(words.map(|word| word.trim_matches('\'')));
            let parsed = export.clone().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{example}: {parsed:?}");
        }
    }

    #[test]
    fn help_lists_each_format_on_one_line() {
        let help = ChosenFormat::augment_subcommands(Command::new("export")).render_long_help().to_string();
        for (name, text) in FORMATS
            .iter()
            .map(|row| (row.name, row.help))
            .chain(PROGRAMS.iter().map(|row| (row.name, row.help)))
        {
            let row = help.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
            assert!(row.is_some_and(|row| row.ends_with(text) && row.len() <= 100), "{name}: {help}");
        }
    }
}
