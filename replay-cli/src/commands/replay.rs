//! `gpumemtrace replay`: a trace in, answers out.

use std::path::PathBuf;

use clap::ValueEnum;
use gpumemtrace_replay::{Report, Section, analyse, report};

use crate::exit::Exit;
use crate::open::TraceFile;
use crate::output::{self, Style};
use crate::text;

/// What `replay` takes.
#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools)] // Flags are what they are.
pub(crate) struct Args {
    /// Trace files, such as run.trace (a ring file beside one, run.trace.ring, is found by itself)
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Lines that leave something behind at every step
    #[arg(long)]
    leaks: bool,
    /// Memory over time
    #[arg(long)]
    timeline: bool,
    /// Reserved memory that no tensor uses, and who keeps it
    #[arg(long)]
    fragmentation: bool,
    /// What filled the device at its peak
    #[arg(long)]
    peak: bool,
    /// Why the program ran out of memory
    #[arg(long)]
    oom: bool,
    /// One JSON object on stdout instead of text (docs/report.schema.json describes it)
    #[arg(long)]
    json: bool,
    /// Exit with code 3 if there is such a finding
    #[arg(long, value_name = "KIND", value_enum)]
    fail_on: Option<FailOn>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A leak was found
    Leak,
    /// The program ran out of memory
    Oom,
    /// Either
    Any,
}

impl Args {
    fn sections(&self) -> Vec<Section> {
        [
            (self.leaks, Section::Leaks),
            (self.timeline, Section::Timeline),
            (self.fragmentation, Section::Fragmentation),
            (self.peak, Section::Peak),
            (self.oom, Section::Oom),
        ]
        .into_iter()
        .filter_map(|(wanted, section)| wanted.then_some(section))
        .collect()
    }
}

/// Does it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut analyses = Vec::new();
    for path in &args.traces {
        let (file, ring) = TraceFile::find(path)?;
        analyses.push(file.with_input(ring, analyse)?);
    }
    let sections = args.sections();
    let full = report(&analyses, &[]);
    if args.json {
        let shown = if sections.is_empty() { full.clone() } else { report(&analyses, &sections) };
        output::print(&format!("{}\n", serde_json::to_string_pretty(&shown)?))?;
    } else {
        output::print(&text::render(&full, &sections, Style::of_stdout()))?;
    }
    Ok(verdict(&full, args.fail_on))
}

fn verdict(report: &Report, fail_on: Option<FailOn>) -> Exit {
    let leaks = report.leaks.as_ref().is_some_and(|leaks| !leaks.is_empty());
    let ooms = report.oom.as_ref().is_some_and(|ooms| !ooms.is_empty());
    let fails = match fail_on {
        None => false,
        Some(FailOn::Leak) => leaks,
        Some(FailOn::Oom) => ooms,
        Some(FailOn::Any) => leaks || ooms,
    };
    if fails {
        Exit::Findings
    } else if report.traces.iter().any(|trace| !trace.complete) {
        Exit::Incomplete
    } else {
        Exit::Done
    }
}
