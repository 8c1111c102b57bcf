//! Options of text reports.

use std::num::NonZeroUsize;

use crate::terminal::units::Units;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::help::DISPLAY;
use crate::terminal::style::{ColorChoice, Style};

/// For reports without lists.
#[derive(clap::Args)]
pub(crate) struct LookArgs {
    /// Print all sizes in this unit
    #[arg(long, help_heading = DISPLAY, value_name = "UNIT", default_value = "auto", hide_default_value = true, ignore_case = true,
          value_parser = PossibleValuesParser::new(Units::NAMED.map(|(name, _)| name)).map(|name| parse_units(&name)))]
    units: Units,
    /// When to use colours [default: auto]
    #[arg(long, help_heading = DISPLAY, value_name = "WHEN", value_enum, default_value_t, hide_default_value = true)]
    color: ColorChoice,
}

#[derive(clap::Args)]
pub(crate) struct DisplayArgs {
    #[command(flatten)]
    look: LookArgs,
    /// Show N rows of each list and sum up the others
    ///
    /// In JSON the other rows are removed and counted.
    #[arg(long, help_heading = DISPLAY, value_name = "N")]
    top: Option<NonZeroUsize>,
}

fn parse_units(name: &str) -> Units {
    name.parse().unwrap_or_default()
}

impl LookArgs {
    /// The style of stdout. Also sets the unit of sizes for the whole process.
    pub(crate) fn style(&self) -> Style {
        crate::terminal::units::choose_units(self.units);
        Style::for_stdout(self.color)
    }
}

impl DisplayArgs {
    /// The style of stdout. Also sets the unit of sizes for the whole process.
    pub(crate) fn style(&self) -> Style {
        Style { top: self.top(), ..self.look.style() }
    }

    /// The number of rows that `--top` sets.
    pub(crate) fn top(&self) -> Option<usize> {
        self.top.map(NonZeroUsize::get)
    }
}
