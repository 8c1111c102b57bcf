//! The flags that select an output other than text: one for each further row of a table.

use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::OutputFormat;
use crate::help::DISPLAY;

/// The outputs of a document, the default first.
pub(crate) trait OutputTable: 'static {
    /// The trait that they implement.
    type Renderer: OutputFormat + ?Sized;

    fn rows() -> &'static [&'static Self::Renderer];
}

/// The output that the command line selects: `--json`, or the first row.
pub(crate) struct OutputChoice<T: OutputTable> {
    pub(crate) renderer: &'static T::Renderer,
    /// True if a flag selects it.
    pub(crate) is_named: bool,
    table: PhantomData<T>,
}

impl<T: OutputTable> clap::Args for OutputChoice<T> {
    fn augment_args(command: Command) -> Command {
        let rows = T::rows().iter().skip(1);
        let flag = |row: &'static T::Renderer| {
            Arg::new(row.name()).long(row.name()).help(row.help()).help_heading(DISPLAY)
        };
        let others = |row: &'static T::Renderer| {
            rows.clone().map(|other| other.name()).filter(|name| *name != row.name())
        };
        command.args(rows.clone().map(|row| {
            flag(row).action(ArgAction::SetTrue).conflicts_with_all(others(row).collect::<Vec<_>>())
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: OutputTable> FromArgMatches for OutputChoice<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let named = T::rows().iter().skip(1).find(|row| matches.get_flag(row.name()));
        Ok(Self {
            renderer: named.copied().unwrap_or(T::rows()[0]),
            is_named: named.is_some(),
            table: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::SmallestCard;
    use clap::Args as _;

    #[test]
    fn json_flag_selects_json_and_first_row_is_default() {
        let command = OutputChoice::<SmallestCard>::augment_args(Command::new("fit"));
        let choose = |words: &[&str]| {
            let matches = command.clone().try_get_matches_from(words).unwrap();
            let choice = OutputChoice::<SmallestCard>::from_arg_matches(&matches).unwrap();
            (choice.renderer.name(), choice.is_named)
        };
        assert_eq!(choose(&["fit"]), ("text", false));
        assert_eq!(choose(&["fit", "--json"]), ("json", true));
    }
}
