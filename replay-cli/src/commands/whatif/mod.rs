//! `gpumemtrace whatif`: predicts a recorded run with other settings of PyTorch's allocator.

mod grid;
pub(super) mod recorded_run;

use std::path::PathBuf;

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::size_arg::parse_bytes;
use gpumemtrace_whatif::{KnownCard, Scenario};

use super::args::display::DisplayArgs;
use crate::exit::{CliExit, UsageError};
use crate::render::{OutputChoice, RenderContext, WhatIfAnswers, print_document};
use crate::terminal::status_line;
use grid::grid;
use recorded_run::{RecordedRun, RecordedRunArgs};

#[derive(clap::Args)]
pub(crate) struct WhatIfArgs {
    /// Traces, such as those of all ranks, or snapshots of PyTorch
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    run: RecordedRunArgs,
    /// Settings to try, in the syntax of PYTORCH_ALLOC_CONF (repeatable) [default: a grid]
    #[arg(long, value_name = "CONF")]
    alloc_conf: Vec<String>,
    /// A card such as h100, or its memory such as 24GiB [default: that of the recorded run]
    #[arg(long, value_name = "CARD", value_parser = parse_card)]
    card: Option<ChosenCard>,
    /// Repeat each prediction with N random segment address orders, and print the range
    ///
    /// Up to PyTorch 2.11, and with expandable segments, the address decides between free blocks of
    /// equal size. Each row then has a range of reserved memory.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    address_orders: u32,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    output_choice: OutputChoice<WhatIfAnswers>,
}

/// The value of `--card`.
#[derive(Clone, Copy, Debug)]
struct ChosenCard {
    total_bytes: u64,
    /// The card, if the user named one. A size keeps the recorded model.
    model: Option<KnownCard>,
}

/// A size, or the name of a card.
fn parse_card(text: &str) -> Result<ChosenCard, String> {
    let known =
        KnownCard::find(text).map(|card| ChosenCard { total_bytes: card.total_bytes, model: Some(card) });
    let size = || parse_bytes(text).map(|total_bytes| ChosenCard { total_bytes, model: None });
    // `3080` is a card.
    known.or_else(size).ok_or_else(|| {
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
        let others = scenarios(args, &run)?;
        let predicted = run.predict(others, args.address_orders)?;
        answers.push(run.answer(predicted));
        if !run.is_complete {
            exit = CliExit::Incomplete;
        }
    }
    let renderer = args.output_choice.renderer;
    print_document(renderer, &WhatIfAnswers(answers), &RenderContext::new(args.display.style()))?;
    Ok(exit)
}

/// What to predict: the user's settings, the grid, and the recorded settings on another card or
/// version.
fn scenarios(args: &WhatIfArgs, run: &RecordedRun) -> anyhow::Result<Vec<Scenario>> {
    let base = &run.base;
    let version = args.run.torch.unwrap_or(base.version);
    let card_bytes = args.card.map(|card| card.total_bytes).or(base.card_bytes);
    let mut scenarios = Vec::new();
    if version != base.version || args.card.is_some() {
        scenarios.push(Scenario::new_or_refused(&base.setting, version, card_bytes));
    }
    scenarios.extend(scenarios_of_settings(&args.alloc_conf, version, card_bytes)?);
    if args.alloc_conf.is_empty() {
        scenarios.extend(grid(base, version, card_bytes, run.peak_reserved_bytes));
    }
    let is_other_model = args.card.and_then(|card| card.model).is_some_and(|card| !run.was_on(card));
    for scenario in &mut scenarios {
        scenario.is_other_model = is_other_model;
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
pub(super) fn scenarios_of_settings(
    settings: &[String],
    version: TorchVersion,
    card_bytes: Option<u64>,
) -> Result<Vec<Scenario>, UsageError> {
    let scenario = |setting: &String| {
        let scenario = Scenario::new(setting, version, card_bytes);
        scenario.map_err(|error| UsageError(format!("--alloc-conf {setting}: {error}")))
    };
    settings.iter().map(scenario).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_model_is_a_card_and_no_size() {
        let bytes =
            |text| parse_card(text).map(|card| (card.total_bytes, card.model.map(|model| model.name)));
        assert_eq!(bytes("3080"), Ok((10_472_390_656, Some("RTX 3080 (10 GB)"))));
        assert_eq!(bytes("94.97GiB"), Ok((101_973_261_025, None)));
        assert!(bytes("H1000").is_err());
    }
}
