//! `gpumemtrace compare`: reports what differs between two traces, or the ranks of two runs.

mod ranks;

use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use clap::ValueEnum;
use gpumemtrace_multirun::{ComparisonDocument, UnreadableTrace};
use gpumemtrace_replay::callsite::{NameScope, UserCodePaths};
use gpumemtrace_replay::compare::{Comparison, PerStepTotals, Profile, Worsening, compare};
use gpumemtrace_replay::{Analysis, symbolize_sites};

use super::args::display::DisplayArgs;
use super::args::jobs::JobsArgs;
use super::args::trace::{TraceArgs, read_by_steps};
use crate::exit::{CliExit, UnreadableInput};
use crate::render::wording::{fill_comparison, fill_rank_comparison};
use crate::render::{OutputChoice, RenderContext, print_document};
use crate::source::SourceArgs;
use crate::terminal::status_line;
use crate::trace::find::{TRACES, find_files};

#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// Trace of the first run, or a folder or pattern of the traces of its ranks
    ///
    /// Parts of a rotated trace are found automatically. Each of several traces is compared with
    /// the trace of the same rank in the second run.
    before: PathBuf,
    /// Trace of the second run, or a folder or pattern
    after: PathBuf,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    output_choice: OutputChoice<ComparisonDocument>,
    /// Exit with code 3 if the second run is worse in one of these (repeatable, or comma-separated)
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    fail_on: Vec<CompareFailOn>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompareFailOn {
    /// A total of the run is larger (steps and unused reserved aside), or a leak is new or faster
    Growth,
    /// A peak is higher: allocated, reserved, driver, or of the median step
    Peak,
    /// A leak is new or grows faster
    Leaks,
    /// There are more out-of-memory errors
    Oom,
    /// Any total or call site differs
    Any,
}

impl CompareFailOn {
    fn fails(self, comparison: &Comparison) -> bool {
        match self {
            Self::Growth => comparison.is_worse_in(Worsening::Growth),
            Self::Peak => comparison.is_worse_in(Worsening::Peak),
            Self::Leaks => comparison.is_worse_in(Worsening::Leaks),
            Self::Oom => comparison.is_worse_in(Worsening::Ooms),
            Self::Any => comparison.differs,
        }
    }
}

impl CompareArgs {
    fn fails(&self, comparison: &Comparison) -> bool {
        self.fail_on.iter().any(|kind| kind.fails(comparison))
    }
}

/// How each pair of traces is compared.
struct PairOptions {
    user_code: UserCodePaths,
    /// Shows how much of a trace is read.
    shows_progress: bool,
    /// Symbolizes all native call sites that differ.
    names_all: bool,
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<CliExit> {
    let user_code = args.reading.user_code()?;
    status_line::exit_cleanly_on_interrupt()?;
    let [before, after] =
        [&args.before, &args.after].map(|path| find_files(std::slice::from_ref(path), TRACES));
    let (before, after) = (before?, after?);
    let renderer = args.output_choice.renderer;
    let names_all = renderer.needs_all_names();
    let (fails, is_complete, document) = if let ([before], [after]) = (&*before, &*after) {
        let options = PairOptions { user_code, shows_progress: args.reading.shows_progress(), names_all };
        let mut resolver = Resolver::for_user();
        let mut comparison = compare_traces([before, after], &options, &mut resolver)
            .map_err(|UnreadableTrace { why, .. }| UnreadableInput(why))?;
        resolver.save_cache();
        fill_comparison(&mut comparison);
        let is_complete = comparison.runs.iter().all(|run| run.complete);
        (args.fails(&comparison), is_complete, ComparisonDocument::Traces(Box::new(comparison)))
    } else {
        let options = PairOptions { user_code, shows_progress: false, names_all };
        let (fails, mut ranks) = ranks::compare_ranks(args, [&before, &after], &options)?;
        fill_rank_comparison(&mut ranks);
        (fails, ranks.complete, ComparisonDocument::Ranks(ranks))
    };
    let context = RenderContext { source: &args.source, ..RenderContext::new(args.display.style()) };
    print_document(renderer, &document, &context)?;
    Ok(match (fails, is_complete) {
        (true, _) => CliExit::Findings,
        (false, false) => CliExit::Incomplete,
        (false, true) => CliExit::Done,
    })
}

/// Compares two traces, whose analyses are then dropped.
fn compare_traces(
    paths: [&Path; 2],
    options: &PairOptions,
    resolver: &mut Resolver,
) -> Result<Comparison, UnreadableTrace> {
    let read = |path: &Path| {
        read_by_steps(path, &options.user_code, options.shows_progress)
            .map_err(|UnreadableInput(why)| UnreadableTrace { path: path.display().to_string(), why })
    };
    let analysed = [read(paths[0])?, read(paths[1])?];
    let analysed = analysed.each_ref().map(|(analysis, totals)| (analysis, totals));
    Ok(compare_analyses(analysed, options.names_all, resolver))
}

/// Compares two analysed traces. `names_all`: symbolize all native call sites that differ.
pub(super) fn compare_analyses(
    analysed: [(&Analysis, &PerStepTotals); 2],
    names_all: bool,
    resolver: &mut Resolver,
) -> Comparison {
    let mut profiles = analysed.map(|(analysis, totals)| Profile::new(analysis, totals));
    for profile in &mut profiles {
        // Native call sites of the two runs are matched by function name.
        let analysis = profile.analysis;
        let native = profile.native_sites_mut();
        symbolize_sites(native, analysis, NameScope::ALL, resolver);
    }
    let mut comparison = compare(&profiles[0], &profiles[1]);
    if names_all {
        for (run, profile) in profiles.iter().enumerate() {
            symbolize_sites(comparison.sites_of(run), profile.analysis, NameScope::ALL, resolver);
        }
    }
    comparison
}
