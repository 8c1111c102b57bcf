//! `simulate --vary`: finds the largest value of a program's argument that a simulated card holds.
//!
//! Each value is a run of its own, so a batch of 65 may choose other algorithms than one of 64.
//! Larger values are taken to need more memory.

mod simulated_runs;
mod varied_argument;

use std::ffi::OsString;

use anyhow::Context as _;
use gpumemtrace_whatif::{
    LARGEST_SCHEMA, LARGEST_VERSION, LargestAnswer, LargestOfSetting, LargestSearch, ValueRun,
};

use self::simulated_runs::{RunFolder, SimulatedProgram};
pub(super) use self::varied_argument::VariedArgument;
use super::SimulateArgs;
use super::card::SimulatedCard;
use crate::commands::fit::DEFAULT_SETTINGS;
use crate::exit::CliExit;
use crate::render::{RenderContext, print_document};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::terminal::style::{ColorChoice, Style};
use crate::terminal::units::format_bytes;

/// Steps of each run, unless `--steps` is given.
const DEFAULT_STEPS: u32 = 3;

/// Runs the program with different values on one card, and prints the largest that fits.
pub(super) fn run(
    args: &SimulateArgs,
    varied: &VariedArgument,
    card: SimulatedCard,
    command: &[OsString],
) -> anyhow::Result<CliExit> {
    status_line::exit_cleanly_on_interrupt()?;
    let folder = tempfile::tempdir().context("simulate: cannot make a temporary folder")?;
    let steps = args.steps.unwrap_or(DEFAULT_STEPS);
    let mut program = SimulatedProgram::new(args, command, varied, steps, folder.path())?;
    let mut settings = vec![search_largest(&mut program, varied, None, 0)?];
    let guess = settings[0].largest.map_or(0, |value| varied.number_of(value));
    let defaults: Vec<String> = DEFAULT_SETTINGS.iter().map(|setting| (*setting).to_owned()).collect();
    for setting in if args.alloc_conf.is_empty() { &defaults } else { &args.alloc_conf } {
        settings.push(search_largest(&mut program, varied, Some(setting.clone()), guess)?);
    }
    let answer = LargestAnswer {
        schema: LARGEST_SCHEMA,
        version: LARGEST_VERSION,
        argument: varied.name.clone(),
        card: card.name,
        card_bytes: card.total_bytes,
        devices: args.gpu_count,
        steps,
        torch: program.torch.map(|version| version.to_string()),
        settings,
    };
    print_document(
        args.output_choice.renderer,
        &answer,
        &RenderContext::new(Style::for_stdout(ColorChoice::default())),
    )?;
    Ok(CliExit::Done)
}

/// Runs the program with one setting until the largest value is known.
fn search_largest(
    program: &mut SimulatedProgram<'_>,
    varied: &VariedArgument,
    setting: Option<String>,
    guess: u64,
) -> anyhow::Result<LargestOfSetting> {
    let mut search = LargestSearch::new(varied.last_number(), guess);
    let mut runs: Vec<ValueRun> = Vec::new();
    let mut best: Option<RunFolder> = None;
    while let Some(number) = search.next_number() {
        let value = varied.value(number);
        let (run, folder) = program.run(value, setting.as_deref())?;
        print_run(&varied.name, setting.as_deref(), &run);
        search.note(number, run.fits);
        if run.fits {
            best = Some(folder);
        }
        runs.push(run);
    }
    let largest = search.works.map(|number| varied.value(number));
    runs.sort_by_key(|run| run.value);
    if let Some((folder, run)) = best.zip(runs.iter_mut().find(|run| Some(run.value) == largest)) {
        run.peak_reserved_range = folder.reserved_range()?;
    }
    Ok(LargestOfSetting { setting, largest, runs })
}

/// One line for each run, since a search takes minutes.
fn print_run(name: &str, setting: Option<&str>, run: &ValueRun) {
    let with = setting.map(|setting| format!(" with {setting}")).unwrap_or_default();
    let value = run.value;
    if run.fits {
        let reserved = format_bytes(run.peak_reserved_bytes);
        print_message(format_args!("gpumemtrace: {name} {value}{with}: fits, {reserved} reserved"));
    } else {
        print_message(format_args!("gpumemtrace: {name} {value}{with}: out of memory"));
    }
}
