//! `gpumemtrace fit`: the smallest card that holds a recorded run.

mod searches;

use std::path::PathBuf;

use gpumemtrace_whatif::WhatIfRows;

use super::args::display::LookArgs;
use super::whatif::recorded_run::{RecordedRun, RecordedRunArgs};
use crate::exit::CliExit;
use crate::render::{OutputChoice, RenderContext, SmallestCard, print_document};
use crate::terminal::status_line;
use searches::{SettingSearch, searches};

#[derive(clap::Args)]
pub(crate) struct FitArgs {
    /// Trace, or snapshot of PyTorch, for which to find the smallest card
    trace: PathBuf,
    #[command(flatten)]
    run: RecordedRunArgs,
    /// Settings to try in addition to the recorded ones, in the syntax of PYTORCH_ALLOC_CONF
    /// (repeatable) [default: expandable_segments:True]
    #[arg(long, value_name = "CONF")]
    alloc_conf: Vec<String>,
    #[command(flatten)]
    display: LookArgs,
    #[command(flatten)]
    output_choice: OutputChoice<SmallestCard>,
}

/// The settings that are tried beside the recorded ones if the user names none.
pub(super) const DEFAULT_SETTINGS: &[&str] = &["expandable_segments:True"];

pub(crate) fn run(args: &FitArgs) -> anyhow::Result<CliExit> {
    status_line::exit_cleanly_on_interrupt()?;
    let mut run = RecordedRun::open(&args.trace, &args.run)?;
    let mut searches = searches(args, &run.base)?;
    let last = loop {
        let predicted = run.predict(searches.iter().flat_map(SettingSearch::next).collect(), 0)?;
        for search in &mut searches {
            search.note(&predicted.rows);
        }
        if searches.iter().all(|search| search.next().is_empty()) {
            break predicted;
        }
    };
    let rows = searches.into_iter().flat_map(SettingSearch::into_rows);
    let answer = SmallestCard(run.answer(WhatIfRows { rows: rows.collect(), ..last }));
    let renderer = args.output_choice.renderer;
    print_document(renderer, &answer, &RenderContext::new(args.display.style()))?;
    Ok(run.exit())
}
