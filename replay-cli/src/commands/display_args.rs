//! How a text may look: shared by the commands whose reports have lists and sizes.

use std::num::NonZeroUsize;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gpumemtrace_replay::units::{self, Units};

use crate::terminal::style::{ColorChoice, Style};

/// Options for that.
#[derive(clap::Args)]
pub(crate) struct DisplayArgs {
    /// Sizes in text in this unit, instead of one for each
    #[arg(long, value_name = "UNIT", default_value = "auto", hide_default_value = true, ignore_case = true,
          value_parser = PossibleValuesParser::new(Units::NAMED.map(|(name, _)| name)).map(|name| parse_units(&name)))]
    units: Units,
    /// Colours: "auto" has them on terminals, and where FORCE_COLOR or CLICOLOR_FORCE is set; not with NO_COLOR, TERM=dumb, or in CI
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, hide_default_value = true)]
    color: ColorChoice,
    /// Show N rows of each list, and sum up the others (in the JSON of `replay`: leave them out and say how many, in "left_out")
    #[arg(long, value_name = "N")]
    top: Option<NonZeroUsize>,
    /// Print details of the recording itself
    #[arg(short, long)]
    verbose: bool,
}

fn parse_units(name: &str) -> Units {
    name.parse().unwrap_or_default()
}

impl DisplayArgs {
    /// The style of stdout; from here on sizes are in the unit that was asked for.
    pub(crate) fn style(&self) -> Style {
        units::choose(self.units);
        Style { top: self.top(), is_verbose: self.verbose, ..Style::for_stdout(self.color) }
    }

    /// Rows of each list, where somebody said so.
    pub(crate) fn top(&self) -> Option<usize> {
        self.top.map(NonZeroUsize::get)
    }
}
