//! `gpumemtrace suspects`: what a program that is asked who holds its blocks must know of them (`gpumemtrace run --holders`).
//!
//! Constraint: it is run by the traced program, which waits. Consequence: the trace so far is read once, and nothing is named.

use std::path::PathBuf;

use gpumemtrace_replay::AnalysisOptions;
use gpumemtrace_replay::analyse_with;
use gpumemtrace_replay::blocks_of_leaks;
use serde_json::json;

use crate::exit::Exit;
use crate::open::TraceFile;
use crate::output;

/// What it takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The trace
    trace: PathBuf,
}

/// Does it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let (file, ring) = TraceFile::find(&args.trace)?;
    let analysis = file.with_input(ring, |input| analyse_with(input, AnalysisOptions::default()))?;
    output::print(&output::json(&json!({ "leaks": blocks_of_leaks(&analysis) }))?)?;
    Ok(Exit::Done)
}
