//! `gpumemtrace suspects`: what a program that is asked who holds its blocks must know of them (`gpumemtrace run --holders`).
//!
//! Constraint: it is run by the traced program, which waits. Consequence: the trace so far is read once, and nothing is named.

use std::io::Write as _;
use std::path::PathBuf;

use gpumemtrace_replay::leaks::{blocks_of_leaks, leaks};
use gpumemtrace_replay::{Asked, analyse_as};
use serde_json::json;

use crate::exit::CliExit;
use crate::render::json::write_json;
use crate::terminal::stdout::stdout;
use crate::trace::open::TraceSource;

/// What it takes.
#[derive(clap::Args)]
pub(crate) struct LeakCandidatesArgs {
    /// The trace
    trace: PathBuf,
}

/// Does it.
pub(crate) fn run(args: &LeakCandidatesArgs) -> anyhow::Result<CliExit> {
    let (file, ring) = TraceSource::find(&args.trace)?;
    let analysis = file.with_input(ring, |input| analyse_as(input, Asked::default()))?;
    let (leaks, _) = leaks(0, &analysis);
    let mut out = stdout();
    write_json(&json!({ "leaks": blocks_of_leaks(&analysis, &leaks) }), &mut out)?;
    out.flush()?;
    Ok(CliExit::Done)
}
