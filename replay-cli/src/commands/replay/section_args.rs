//! The flags that select sections of the report: one for each row of [`SECTIONS`].

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use gpumemtrace_replay::Section;

use crate::render::text::SECTIONS;

/// The selected sections, in the order of the table.
pub(crate) struct SectionArgs {
    pub(crate) asked: Vec<Section>,
}

impl clap::Args for SectionArgs {
    fn augment_args(command: Command) -> Command {
        let flag = |name| Arg::new(name).long(name).help_heading("Sections").action(ArgAction::SetTrue);
        command.args(SECTIONS.iter().map(|row| flag(row.flag).help(row.help)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SectionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let asked = SECTIONS.iter().filter(|row| matches.get_flag(row.flag)).map(|row| row.section);
        Ok(Self { asked: asked.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
