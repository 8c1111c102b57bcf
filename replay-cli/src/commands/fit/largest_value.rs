//! Finds the largest value of a program's argument that a simulated card holds.
//!
//! Each value is a run of its own, so a batch of 65 may choose other algorithms than one of 64.
//! Larger values are taken to need more memory.

use anyhow::Context as _;
use gpumemtrace_whatif::{
    LARGEST_SCHEMA, LARGEST_VERSION, LargestAnswer, LargestOfSetting, LargestSearch, ValueRun,
};

use super::simulated_runs::{RunFolder, SimulatedProgram};
use super::varied_argument::VariedArgument;
use super::{DEFAULT_SETTINGS, FitArgs};
use crate::commands::simulate::card::{SimulatedCard, parse_capability};
use crate::exit::{CliExit, UsageError};
use crate::render::{FIT_RENDERERS, FitDocument, RenderContext, print_document, select_format};
use crate::terminal::stderr::print_message;
use crate::terminal::units::format_bytes;

pub(super) fn run(args: &FitArgs, varied: &VariedArgument, card_text: &str) -> anyhow::Result<CliExit> {
    let card = chosen_card(card_text, args.capability.as_deref())?;
    let folder = tempfile::tempdir().context("fit: cannot make a temporary folder")?;
    let mut program = SimulatedProgram::new(args, varied, card_text, folder.path())?;
    let mut settings = vec![search_largest(&mut program, varied, None, 0)?];
    let guess = settings[0].largest.map_or(0, |value| varied.number_of(value));
    let defaults: Vec<String> = DEFAULT_SETTINGS.iter().map(|setting| (*setting).to_owned()).collect();
    for setting in if args.set.is_empty() { &defaults } else { &args.set } {
        settings.push(search_largest(&mut program, varied, Some(setting.clone()), guess)?);
    }
    let answer = LargestAnswer {
        schema: LARGEST_SCHEMA,
        version: LARGEST_VERSION,
        argument: varied.name.clone(),
        card: card.name,
        card_bytes: card.total_bytes,
        devices: args.devices,
        steps: args.steps,
        torch: program.torch.map(|version| version.to_string()),
        settings,
    };
    let renderer = select_format(FIT_RENDERERS, args.format, args.json);
    let document = FitDocument::Largest(answer);
    print_document(renderer, &document, &RenderContext::new(args.display.style()))?;
    Ok(CliExit::Done)
}

/// The card as `simulate` understands its options.
fn chosen_card(text: &str, capability: Option<&str>) -> Result<SimulatedCard, UsageError> {
    let card = SimulatedCard::parse(text).map_err(|why| UsageError(format!("--card {text}: {why}")))?;
    let Some(capability) = capability else { return Ok(card) };
    let parsed = parse_capability(capability).and_then(|capability| card.with_capability(capability));
    parsed.map_err(|why| UsageError(format!("--capability {capability}: {why}")))
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
