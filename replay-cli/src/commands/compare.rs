//! `gpumemtrace compare`: two traces in, what differs out.

use std::path::PathBuf;

use clap::ValueEnum;
use gpumemtrace_cli::symbolize::Resolver;
use gpumemtrace_replay::compare::{Comparison, Profile, compare};
use gpumemtrace_replay::naming::{Shown, name_sites};

use super::display_args::DisplayArgs;
use super::trace_args::{TraceArgs, read_by_steps};
use crate::exit::CliExit;
use crate::render::{
    COMPARISON_RENDERERS, RenderContext, Renderer, format_parser, print_document, select_format,
};
use crate::terminal::status_line;

/// What `compare` takes.
#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// The trace of the run before (of one in parts: run.trace, the others are found by themselves)
    before: PathBuf,
    /// The trace of the run after
    after: PathBuf,
    #[command(flatten)]
    reading: TraceArgs,
    /// List every line that differs, not only the largest changes
    #[arg(long, conflicts_with = "top")]
    all: bool,
    #[command(flatten)]
    display: DisplayArgs,
    /// One JSON object on stdout instead of text (docs/comparison.schema.json describes it)
    #[arg(long)]
    json: bool,
    /// What to print on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(COMPARISON_RENDERERS))]
    format: Option<&'static dyn Renderer<Comparison>>,
    /// Exit with code 3 if the second run is worse in one of these, or differs (may be given more than once, or with commas)
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    fail_on: Vec<CompareFailOn>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompareFailOn {
    /// Any quantity of the whole run but its steps and its gap is larger, or a leak has come or grows faster
    Growth,
    /// A peak (live, reserved, from the driver, or of the usual step) is higher
    Peak,
    /// A leak has come or grows faster
    #[value(alias = "leak")]
    Leaks,
    /// The program ran out of memory more often
    #[value(alias = "ooms")]
    Oom,
    /// Anything differs
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

/// Does it.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<CliExit> {
    let own = args.reading.own_paths()?;
    status_line::exit_cleanly_on_interrupt()?;
    let analysed =
        [read_by_steps(&args.before, &args.reading, &own)?, read_by_steps(&args.after, &args.reading, &own)?];
    let mut resolver = Resolver::new(args.reading.uses_symbol_cache());
    let [before, after] =
        [&analysed[0], &analysed[1]].map(|(analysis, amounts)| Profile::new(analysis, amounts));
    let mut profiles = [before, after];
    for profile in &mut profiles {
        // Of native lines the function is known only by its name, which alignment needs.
        let analysis = profile.analysis;
        let native = profile.lines.iter_mut().map(|line| &mut line.site).filter(|site| site.module.is_some());
        name_sites(native, analysis, Shown::ALL, &mut resolver);
    }
    let mut comparison = compare(&profiles[0], &profiles[1]);
    let renderer = select_format(COMPARISON_RENDERERS, args.format, args.json);
    if renderer.needs_all_names() {
        for (run, profile) in profiles.iter().enumerate() {
            name_sites(comparison.sites_of(run), profile.analysis, Shown::ALL, &mut resolver);
        }
    }
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
