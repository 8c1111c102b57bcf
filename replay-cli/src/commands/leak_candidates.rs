//! `gpumemtrace leak-candidates`: the blocks of leaking call sites, as JSON.
//!
//! The holder scan of `gpumemtrace run --holders` calls this hidden command from inside the traced
//! program, which waits for it. So the trace is read once, and native addresses are not symbolized.

use std::io::Write as _;
use std::path::PathBuf;

use gpumemtrace_replay::report::TraceLoss;
use gpumemtrace_replay::{AnalysisOptions, analyse_with, blocks_of_leaks};
use serde_json::json;

use crate::exit::CliExit;
use crate::render::json::write_json;
use crate::render::wording::describe_loss;
use crate::terminal::stdout::stdout;
use crate::trace::open::TraceSource;

#[derive(clap::Args)]
pub(crate) struct LeakCandidatesArgs {
    /// Trace of the calling process
    trace: PathBuf,
}

pub(crate) fn run(args: &LeakCandidatesArgs) -> anyhow::Result<CliExit> {
    let (file, ring) = TraceSource::find(&args.trace)?;
    let analysis = file.with_input(ring, |input| analyse_with(input, AnalysisOptions::default()))?;
    let mut out = stdout();
    let incomplete: Vec<String> = analysis.incomplete.iter().map(describe_loss).collect();
    let leaks = blocks_of_leaks(&analysis);
    // Without the last events, no leak is found, although there may be one.
    let is_ring_unread = |loss: &&TraceLoss| matches!(loss, TraceLoss::RingUnusable { .. });
    let failed = analysis.incomplete.iter().find(is_ring_unread).filter(|_| leaks.is_empty());
    let failed = failed.map(describe_loss);
    write_json(&json!({ "leaks": leaks, "incomplete": incomplete, "failed": failed }), &mut out)?;
    out.flush()?;
    Ok(if incomplete.is_empty() { CliExit::Done } else { CliExit::Incomplete })
}
