//! `gpumemtrace compare`: reports what differs between two traces.

use std::path::PathBuf;

use crate::symbolize::Resolver;
use clap::ValueEnum;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::compare::{Comparison, Profile, compare};
use gpumemtrace_replay::symbolize_sites;

use super::args::display::DisplayArgs;
use super::args::trace::{TraceArgs, read_by_steps};
use crate::exit::CliExit;
use crate::render::wording::fill_comparison;
use crate::render::{
    COMPARISON_RENDERERS, RenderContext, Renderer, format_parser, print_document, select_format,
};
use crate::terminal::status_line;

#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// Trace of the first run; parts of a rotated trace are found automatically
    before: PathBuf,
    /// Trace of the second run
    after: PathBuf,
    #[command(flatten)]
    reading: TraceArgs,
    /// List every call site that differs, not only the largest changes
    #[arg(long, conflicts_with = "top")]
    all: bool,
    #[command(flatten)]
    display: DisplayArgs,
    /// Print JSON (schema: docs/comparison.schema.json)
    #[arg(long)]
    json: bool,
    /// Output format on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(COMPARISON_RENDERERS))]
    format: Option<&'static dyn Renderer<Comparison>>,
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
    #[value(alias = "leak")]
    Leaks,
    /// There are more out-of-memory errors
    #[value(alias = "ooms")]
    Oom,
    /// Any total or call site differs
    Any,
}

impl CompareFailOn {
    fn fails(self, comparison: &Comparison) -> bool {
        match self {
            Self::Growth => comparison.has_growth(),
            Self::Peak => comparison.has_higher_peak(),
            Self::Leaks => comparison.has_more_leaks(),
            Self::Oom => comparison.has_more_ooms(),
            Self::Any => comparison.differs,
        }
    }
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<CliExit> {
    let user_code = args.reading.user_code()?;
    status_line::exit_cleanly_on_interrupt()?;
    let analysed = [
        read_by_steps(&args.before, &args.reading, &user_code)?,
        read_by_steps(&args.after, &args.reading, &user_code)?,
    ];
    let mut resolver = Resolver::new(args.reading.uses_symbol_cache());
    let [before, after] =
        [&analysed[0], &analysed[1]].map(|(analysis, amounts)| Profile::new(analysis, amounts));
    let mut profiles = [before, after];
    for profile in &mut profiles {
        // Native call sites of the two runs are matched by function name.
        let analysis = profile.analysis;
        let native = profile.native_sites_mut();
        symbolize_sites(native, analysis, NameScope::ALL, &mut resolver);
    }
    let mut comparison = compare(&profiles[0], &profiles[1]);
    let renderer = select_format(COMPARISON_RENDERERS, args.format, args.json);
    if renderer.needs_all_names() {
        for (run, profile) in profiles.iter().enumerate() {
            symbolize_sites(comparison.sites_of(run), profile.analysis, NameScope::ALL, &mut resolver);
        }
    }
    fill_comparison(&mut comparison);
    let context = RenderContext { all_rows: args.all, ..RenderContext::new(args.display.style()) };
    print_document(renderer, &comparison, &context)?;
    resolver.save_cache();
    Ok(if args.fail_on.iter().any(|kind| kind.fails(&comparison)) {
        CliExit::Findings
    } else if comparison.runs.iter().any(|run| !run.complete) {
        CliExit::Incomplete
    } else {
        CliExit::Done
    })
}
