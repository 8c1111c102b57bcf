//! `gpumemtrace replay`: analyses one or more traces and prints a report.

mod filters;
mod section_args;

use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::{
    Analysis, AnalysisOptions, Report, Section, TimeSpec, analyse_for_peak, analyse_with_head, report,
    truncate_lists,
};

use super::args::display::DisplayArgs;
use super::args::fail_on::FailOnArgs;
use super::args::trace::TraceArgs;
use super::setting_predictions::{MAX_STEPS, add_oom_predictions, add_setting_effects};
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::follow;
use crate::render::{OutputChoice, PresentedReport, RenderContext, ReportNeeds, print_document};
use crate::source::SourceArgs;
use crate::terminal::format::{format_duration, format_number};
use crate::terminal::status_line;
use crate::terminal::style::Style;
use crate::trace::find::{TRACES, find_files, named_or_newest};
use crate::trace::many::{MAX_TOGETHER, read_each};
use crate::trace::open::{TraceSource, is_snapshot_file};
use filters::FilterArgs;
use section_args::SectionArgs;

#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "command-line flags")]
pub(crate) struct ReplayArgs {
    /// Traces, folders of them, and patterns such as 'traces/**/*.trace' [default: the newest here]
    ///
    /// Ring files (run.trace.ring) and parts beside a trace are found automatically. At most 16;
    /// `gpumemtrace ranks` compares more.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    sections: SectionArgs,
    /// Add a snapshot at WHEN: 12.5s, 800ms, step:40, mark:NAME, peak or end (repeatable)
    ///
    /// Times count from the start of the recording. step:40 is the beginning of step 40,
    /// mark:NAME#3 the third mark of that name. end is when the program finished, before
    /// interpreter teardown.
    #[arg(long, value_name = "WHEN")]
    at: Vec<TimeSpec>,
    /// With --peak, list every live block and its category
    #[arg(long, requires = "peak")]
    blocks: bool,
    /// Print full stacks, with native frames between the Python frames
    #[arg(long)]
    stacks: bool,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Follow running programs: findings and totals on stderr, the report at their end or Ctrl-C
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    output_choice: OutputChoice<PresentedReport>,
    #[command(flatten)]
    fail_on: FailOnArgs,
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    display: DisplayArgs,
    /// Print details of the recording itself
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<CliExit> {
    let mut asked = AnalysisOptions {
        user_code: args.reading.user_code()?,
        snapshot_times: args.at.clone(),
        compares_steps: args.sections.asked.contains(&Section::Fragmentation),
        ..AnalysisOptions::default()
    };
    args.filters.configure(&mut asked);
    let style = Style { is_verbose: args.verbose, ..args.display.style() };
    status_line::exit_cleanly_on_interrupt()?;
    let traces = named_or_newest(&args.traces)?;
    if args.follow {
        // Those that are there already; a pattern may match more later.
        refuse_many(args, &find_files(&traces, TRACES).unwrap_or_default())?;
    }
    let files = if args.follow { follow_traces(&traces, &asked)? } else { find_files(&traces, TRACES)? };
    refuse_many(args, &files)?;
    let (analyses, unreadable) = read_traces(args, &files, &asked)?;
    check_moments_exist(&analyses, &args.at)?;
    let sections = &args.sections.asked;
    let context = RenderContext {
        sections,
        full_stacks: args.stacks,
        source: &args.source,
        ..RenderContext::new(style)
    };
    let renderer = args.output_choice.renderer;
    let needs = renderer.report_needs(&context);
    let mut resolver = Resolver::for_user();
    let (mut shown, has_finding) = present_report(args, &analyses, &needs, &mut resolver);
    let exit = if has_finding {
        CliExit::Findings
    } else if unreadable > 0 || shown.traces.iter().any(|trace| !trace.complete) {
        CliExit::Incomplete
    } else {
        CliExit::Done
    };
    if let Some(top) = args.display.top().filter(|_| needs.truncated_lists) {
        shown.change(|report| truncate_lists(report, top));
    }
    print_document(renderer, &shown, &context)?;
    resolver.save_cache();
    Ok(exit)
}

/// Refuses more traces than fit into memory together.
fn refuse_many(args: &ReplayArgs, files: &[PathBuf]) -> Result<(), UsageError> {
    let count = args.filters.count_accepted(files);
    if count <= MAX_TOGETHER {
        return Ok(());
    }
    Err(UsageError(format!(
        "replay reports at most {MAX_TOGETHER} traces together, and these are {}: gpumemtrace ranks compares any \
         number; or name some of them, or choose ranks with --rank",
        format_number(count as u64)
    )))
}

/// Follows the traces, which need not exist yet. Returns those to report.
fn follow_traces(traces: &[PathBuf], asked: &AnalysisOptions) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(path) = traces.iter().find(|path| is_snapshot_file(path)) {
        let path = path.display();
        let why = format!("{path} is a snapshot of PyTorch, which does not grow: leave out --follow");
        return Err(UnreadableInput(why).into());
    }
    Ok(follow::follow_to_end(traces, &asked.user_code)?)
}

/// The analyses, and the number of traces that cannot be read. These are named, unless there is
/// only one trace.
fn read_traces(
    args: &ReplayArgs,
    files: &[PathBuf],
    asked: &AnalysisOptions,
) -> anyhow::Result<(Vec<Analysis>, usize)> {
    let mut steps_left = MAX_STEPS;
    let (read, unreadable) = read_each(files, true, |path| read_trace(args, path, asked, &mut steps_left))?;
    let (mut analyses, mut skipped) = (Vec::new(), Vec::new());
    for one in read {
        match one {
            Ok(analysis) => analyses.push(analysis),
            Err(of_other_rank) => skipped.push(of_other_rank),
        }
    }
    args.filters.apply(&mut analyses, &skipped)?;
    Ok((analyses, unreadable))
}

/// Analyses a trace, or returns it unread if it is of a rank that `--rank` excludes.
fn read_trace(
    args: &ReplayArgs,
    path: &Path,
    asked: &AnalysisOptions,
    steps_left: &mut u64,
) -> Result<Result<Analysis, TraceSource>, UnreadableInput> {
    let (file, ring) = TraceSource::find(path)?;
    if !args.filters.accepts(&file) {
        return Ok(Err(file));
    }
    let _progress = args.reading.shows_progress().then(|| file.progress());
    // The step before the peak and its phases cost time, and only --peak prints them.
    let analyse =
        if args.sections.asked.contains(&Section::Peak) { analyse_for_peak } else { analyse_with_head };
    let (mut analysis, head) = file.with_input(ring, |input| analyse(input, asked.clone()))?;
    add_oom_predictions(&mut analysis, &file, &head);
    if args.sections.asked.contains(&Section::Fragmentation) {
        add_setting_effects(&mut analysis, &file, &head, steps_left);
    }
    Ok(Ok(analysis))
}

/// The report to print, and whether it has what `--fail-on` names. `--fail-on leak` must also work
/// with --timeline, so the report with all sections decides.
fn present_report(
    args: &ReplayArgs,
    analyses: &[Analysis],
    needs: &ReportNeeds<'_>,
    resolver: &mut Resolver,
) -> (PresentedReport, bool) {
    let full = build_report(args, analyses, &[]);
    let asked = Some(&*args.sections.asked).filter(|asked| needs.only_asked_sections && !asked.is_empty());
    if args.filters.has_lines() {
        // The filter matches names, so it needs all of them. Only errors that it leaves count.
        let mut present = |report| {
            let filter = |report: &mut Report| args.filters.apply_lines(report);
            PresentedReport::filtered(report, analyses, NameScope::ALL, resolver, filter)
        };
        let full = present(full);
        let has_finding = args.fail_on.has_finding(&full, None);
        let shown = asked.map_or(full, |sections| present(build_report(args, analyses, sections)));
        return (shown, has_finding);
    }
    // Errors that --stream leaves out of the report count, too.
    let has_finding = args.fail_on.has_finding(&full, Some(analyses));
    let report = asked.map_or(full, |sections| build_report(args, analyses, sections));
    (PresentedReport::new(report, analyses, needs.names, resolver), has_finding)
}

fn build_report(args: &ReplayArgs, analyses: &[Analysis], sections: &[Section]) -> Report {
    let mut report = report(analyses, sections);
    if args.blocks {
        gpumemtrace_replay::add_peak_blocks(&mut report, analyses);
    }
    report.filters = args.filters.describe(args.display.top());
    if let Some(ranks) = report.ranks.as_mut().filter(|_| args.filters.has_ranks()) {
        ranks.missing_ranks = None;
    }
    report
}

/// Refuses an `--at` that no trace reaches. If some traces reach it, the others print a note.
fn check_moments_exist(analyses: &[Analysis], at: &[TimeSpec]) -> Result<(), UsageError> {
    let is_never =
        |when: &&TimeSpec| analyses.iter().all(|analysis| analysis.unreached_snapshots.contains(when));
    let Some(when) = at.iter().find(is_never) else { return Ok(()) };
    let (last_ns, last_step) = analyses.iter().fold((0, 0), |(ns, step), analysis| {
        (ns.max(analysis.end_ns.saturating_sub(analysis.start_ns)), step.max(analysis.steps))
    });
    let has_steps = analyses.iter().any(|analysis| analysis.step_source().is_some());
    let steps = if has_steps { format!("at step {last_step}") } else { "without steps".to_owned() };
    Err(UsageError(format!(
        "--at {when} was not reached: the recording ends after {}, {steps}{}",
        format_duration(last_ns),
        filters::list_known_marks(when, analyses)
    )))
}
