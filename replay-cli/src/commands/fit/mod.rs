//! `gpumemtrace fit`: the smallest card that holds a recorded run, or the largest value of a
//! program's argument that a card holds.

mod largest_value;
mod simulated_runs;
mod smallest_card;
mod varied_argument;

use std::ffi::OsString;
use std::path::PathBuf;

use super::args::display::DisplayArgs;
use super::whatif::recorded_run::RecordedRunArgs;
use crate::exit::{CliExit, UsageError};
use crate::render::{FIT_RENDERERS, FitDocument, Renderer, format_parser};
use crate::terminal::status_line;
use varied_argument::VariedArgument;

#[derive(clap::Args)]
#[command(override_usage = "gpumemtrace fit [OPTIONS] <TRACE>
       gpumemtrace fit [OPTIONS] --vary <NAME=FIRST..LAST> --card <CARD> -- <COMMAND>...")]
pub(crate) struct FitArgs {
    /// Trace, or snapshot of PyTorch, for which to find the smallest card
    #[arg(required_unless_present = "vary", conflicts_with = "vary")]
    trace: Option<PathBuf>,
    /// Find the largest value of the program's argument NAME that --card holds, by simulating
    ///
    /// The value replaces {NAME} in the command, or the value of --NAME or NAME=; otherwise --NAME
    /// is added. With FIRST..LAST:STEP, only every STEPth value is tried.
    #[arg(long, value_name = "NAME=FIRST..LAST", value_parser = VariedArgument::parse, requires_all = ["card", "command"])]
    vary: Option<VariedArgument>,
    /// The simulated card of --vary: a name such as H100, or a size such as 24GiB
    #[arg(long, value_name = "NAME|SIZE", requires = "vary")]
    card: Option<String>,
    /// Compute capability of a --card given as a size, as in `simulate`
    #[arg(long, value_name = "X.Y", requires = "vary")]
    capability: Option<String>,
    /// Cards that the program of --vary sees
    #[arg(long, value_name = "N", requires = "vary", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    devices: u32,
    /// Optimizer steps of each run of --vary
    #[arg(long, value_name = "N", requires = "vary", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    #[command(flatten)]
    run: RecordedRunArgs,
    /// Settings to try beside the recorded ones, in the syntax of PYTORCH_ALLOC_CONF (repeatable)
    /// [default: expandable_segments:True]
    #[arg(long, value_name = "CONF")]
    set: Vec<String>,
    #[command(flatten)]
    display: DisplayArgs,
    /// Print JSON (its schema: `gpumemtrace schema whatif`, with --vary `schema largest`)
    ///
    /// For each setting, it has the row of the smallest card, and that of the largest card that is
    /// too small; with --vary, all runs.
    #[arg(long)]
    json: bool,
    /// Output format on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(FIT_RENDERERS))]
    format: Option<&'static dyn Renderer<FitDocument>>,
    /// The program of --vary; `train.py` and `-m package` run in Python
    #[arg(last = true, requires = "vary", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The settings that are tried beside the recorded ones if the user names none.
const DEFAULT_SETTINGS: &[&str] = &["expandable_segments:True"];

pub(crate) fn run(args: &FitArgs) -> anyhow::Result<CliExit> {
    status_line::exit_cleanly_on_interrupt()?;
    match (&args.trace, &args.vary, &args.card) {
        (None, Some(varied), Some(card)) => largest_value::run(args, varied, card),
        (Some(trace), ..) => smallest_card::run(args, trace),
        _ => Err(UsageError("fit: name a trace, or --vary, --card and a command".to_owned()).into()),
    }
}
