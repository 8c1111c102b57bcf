//! `gpumemtrace whatif`: predicts a recorded run with other settings of PyTorch's allocator.

mod recorded_run;

pub(crate) mod fit;

use std::path::PathBuf;

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::size_arg::parse_bytes;
use gpumemtrace_whatif::{KnownCard, Scenario};

use super::display_args::DisplayArgs;
use crate::exit::{CliExit, UsageError};
use crate::render::{
    RenderContext, Renderer, WHATIF_RENDERERS, WhatIfAnswers, format_parser, print_document, select_format,
};
use crate::terminal::status_line;
use recorded_run::{RecordedRun, RecordedRunArgs};

/// The settings that are tried if the user names none. Those that a version does not know are left
/// out.
const GRID: &[&str] = &[
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "large_segment_size_mb:64",
    "large_segment_size_mb:256",
    "expandable_segments:True,roundup_power2_divisions:8",
];

#[derive(clap::Args)]
pub(crate) struct WhatIfArgs {
    /// Traces, such as those of all ranks, or snapshots of PyTorch
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    run: RecordedRunArgs,
    /// Settings to try, in the syntax of PYTORCH_ALLOC_CONF (repeatable) [default: a grid]
    #[arg(long, value_name = "CONF")]
    set: Vec<String>,
    /// Try a grid of settings beside those of --set
    #[arg(long)]
    grid: bool,
    /// A card such as h100, or its memory such as 24GiB [default: that of the recorded run]
    #[arg(long, value_name = "CARD", value_parser = parse_card)]
    card: Option<u64>,
    #[command(flatten)]
    display: DisplayArgs,
    /// Print JSON (schema: docs/whatif.schema.json); for several traces, a list
    #[arg(long)]
    json: bool,
    /// Output format on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(WHATIF_RENDERERS))]
    format: Option<&'static dyn Renderer<WhatIfAnswers>>,
}

/// A size, or the name of a card.
fn parse_card(text: &str) -> Result<u64, String> {
    let known = || KnownCard::find(text).map(|card| card.total_bytes);
    parse_bytes(text).or_else(known).ok_or_else(|| {
        let names: Vec<&str> = KnownCard::names().collect();
        format!("{text:?} is neither a size, such as 24GiB, nor one of these cards: {}", names.join(", "))
    })
}

pub(crate) fn run(args: &WhatIfArgs) -> anyhow::Result<CliExit> {
    status_line::exit_cleanly_on_interrupt()?;
    let mut answers = Vec::new();
    let mut exit = CliExit::Done;
    for trace in &args.traces {
        let mut run = RecordedRun::open(trace, &args.run)?;
        let others = scenarios(args, &run.base)?;
        let (base, rows) = run.predict(others)?;
        answers.push(run.answer(base, rows));
        if !run.is_complete {
            exit = CliExit::Incomplete;
        }
    }
    let renderer = select_format(WHATIF_RENDERERS, args.format, args.json);
    print_document(renderer, &WhatIfAnswers(answers), &RenderContext::new(args.display.style()))?;
    Ok(exit)
}

/// What to predict: the user's settings, the grid, and the recorded settings on another card or
/// version.
fn scenarios(args: &WhatIfArgs, base: &Scenario) -> anyhow::Result<Vec<Scenario>> {
    let version = args.run.torch.unwrap_or(base.version);
    let card_bytes = args.card.or(base.card_bytes);
    let mut scenarios = Vec::new();
    if version != base.version || args.card.is_some() {
        scenarios.extend(Scenario::new(&base.setting, version, card_bytes));
    }
    scenarios.extend(scenarios_of_settings(&args.set, version, card_bytes)?);
    if args.grid || args.set.is_empty() {
        for setting in GRID {
            scenarios.extend(Scenario::new(setting, version, card_bytes));
        }
    }
    let mut seen = vec![base.clone()];
    scenarios.retain(|scenario| {
        let is_new = !seen.iter().any(|other| other.is_same(scenario));
        seen.push(scenario.clone());
        is_new
    });
    Ok(scenarios)
}

/// The settings that the user named.
fn scenarios_of_settings(
    settings: &[String],
    version: TorchVersion,
    card_bytes: Option<u64>,
) -> Result<Vec<Scenario>, UsageError> {
    let scenario = |setting: &String| {
        let scenario = Scenario::new(setting, version, card_bytes);
        scenario.map_err(|error| UsageError(format!("--set {setting}: {error}")))
    };
    settings.iter().map(scenario).collect()
}
