//! `gpumemtrace html`: writes an offline page with charts of one or several traces.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::symbolize::Resolver;
use gpumemtrace_format::size_arg::parse_bytes;
use gpumemtrace_multirun::JobReport;
use gpumemtrace_replay::callsite::{NameScope, UserCodePaths};
use gpumemtrace_replay::compare::{PerStepTotals, count_by_steps};
use gpumemtrace_replay::{Analysis, AnalysisOptions, RunHistory, analyse_with_head, report, symbolize_sites};

use super::args::force::ForceArgs;
use super::args::jobs::JobsArgs;
use super::args::output_name::default_output;
use super::args::trace::TraceArgs;
use super::compare::compare_analyses;
use super::ranks::read::{is_summary, summarize_files};
use super::ranks::{name_unreadable, page_of_ranks};
use super::setting_predictions::{MAX_STEPS, add_oom_predictions, add_setting_effects};
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::page::{PageOptions, PageSource, RunBefore, make_page, redact_processes};
use crate::render::json::write_json;
use crate::render::wording::fill_comparison;
use crate::render::{PresentedReport, RenderContext, Renderer as _, TextRenderer};
use crate::source::{SourceArgs, SourceScope};
use crate::terminal::format::format_number;
use crate::terminal::output_file::{OutputPath, print_output};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::terminal::style::Style;
use crate::trace::find::{TRACES, find_files, named_or_newest};
use crate::trace::many::{MAX_TOGETHER, read_each};
use crate::trace::open::TraceSource;

/// Largest page that a browser opens within two seconds.
const MAX_PAGE_BYTES: u64 = 20_000_000;
const MIN_PAGE_BYTES: u64 = 1_000_000;
const DEFAULT_PAGE_BYTES: u64 = 5_000_000;

#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "command-line flags")]
pub(crate) struct HtmlArgs {
    /// Traces, folders of them, and patterns such as 'traces/**/*.trace' [default: the newest here]
    ///
    /// Up to 16 traces are shown side by side, as ranks of one run. `gpumemtrace ranks --html`
    /// makes a page of more, and of summaries.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Page to write [default: the trace with .html, such as run.html; required for a pattern]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
    /// Open the page in the default browser
    #[arg(long)]
    open: bool,
    /// Also show the difference from this trace
    #[arg(long, value_name = "TRACE")]
    compare: Option<PathBuf>,
    /// Size limit of the page, 1MB to 20MB; a smaller one shows fewer moments
    #[arg(long, value_name = "SIZE", default_value = "5MB", value_parser = parse_page_size)]
    max_size: u64,
    /// Leave out source lines
    #[arg(long)]
    no_source: bool,
    #[command(flatten)]
    source: SourceArgs,
    /// Leave out the host, the arguments of the program and the directories of all files
    #[arg(long)]
    redact: bool,
    #[command(flatten)]
    trace: TraceArgs,
}

fn parse_page_size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text).filter(|bytes| (MIN_PAGE_BYTES..=MAX_PAGE_BYTES).contains(bytes));
    size.ok_or_else(|| format!("{text:?} is not a size from 1MB to 20MB"))
}

pub(crate) fn run(args: &HtmlArgs) -> anyhow::Result<CliExit> {
    status_line::exit_cleanly_on_interrupt()?;
    let traces = named_or_newest(&args.traces)?;
    let files = find_files(&traces, TRACES)?;
    refuse_many(&files)?;
    let (output, target) = if let Some(output) = &args.output {
        (output.clone(), OutputPath::claim_named(output, "html", args.force.force)?)
    } else {
        let output = default_output(&traces[0], "html")?;
        let target = OutputPath::claim(&output, "html", args.force.force)?;
        (output, target)
    };
    let (page, is_complete) = page_of(args, &files)?;
    let is_stream = target.is_stream();
    let written_bytes = target.fill(page.as_bytes())?;
    if !is_stream {
        print_output(&output, written_bytes)?;
    }
    if args.open {
        open_in_browser(&output);
    }
    Ok(if is_complete { CliExit::Done } else { CliExit::Incomplete })
}

/// Refuses what another command makes a page of: more traces than fit side by side, and summaries.
fn refuse_many(files: &[PathBuf]) -> Result<(), UsageError> {
    let other = "gpumemtrace ranks --html PAGE";
    if let Some(path) = files.iter().find(|path| is_summary(path)) {
        return Err(UsageError(format!("{} is a summary: {other} makes a page of it", path.display())));
    }
    if files.len() > MAX_TOGETHER {
        let count = format_number(files.len() as u64);
        return Err(UsageError(format!(
            "html shows at most {MAX_TOGETHER} traces side by side, and these are {count}: {other} makes a page of any \
             number"
        )));
    }
    Ok(())
}

/// Writes the page of new traces beside the first of them, with the default options. Returns its
/// path.
pub(crate) fn write_page_of_run(traces: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let output = default_output(&traces[0], "html")?;
    let args = HtmlArgs {
        traces: traces.to_vec(),
        output: None,
        force: ForceArgs::default(),
        open: false,
        compare: None,
        max_size: DEFAULT_PAGE_BYTES,
        no_source: false,
        source: SourceArgs::default(),
        redact: false,
        trace: TraceArgs::default(),
    };
    let target = OutputPath::claim(&output, "html", false).map_err(|error| {
        if !output.exists() {
            return error;
        }
        // `run` has no option to replace it.
        let (page, trace) = (output.display(), traces[0].display());
        UsageError(format!("{page} already exists; gpumemtrace html {trace} --force replaces it")).into()
    })?;
    let page = if traces.len() > MAX_TOGETHER { page_of_many(traces)? } else { page_of(&args, traces)?.0 };
    target.fill(page.as_bytes())?;
    Ok(output)
}

/// The page of many ranks, of the new traces of a run.
fn page_of_many(traces: &[PathBuf]) -> anyhow::Result<String> {
    let summary = summarize_files(traces, &TraceArgs::default(), JobsArgs::default(), &|_, _| ())?;
    name_unreadable(&summary)?;
    let job = JobReport::of(&summary);
    page_of_ranks(&traces[0].display().to_string(), summary, &job)
}

/// Analyses a trace for a page. The totals per step are empty without a trace to compare with.
fn read_for_page(
    args: &HtmlArgs,
    path: &Path,
    user_code: UserCodePaths,
    steps_left: &mut u64,
) -> Result<(Analysis, PerStepTotals), UnreadableInput> {
    let (file, ring) = TraceSource::find(path)?;
    let _progress = args.trace.shows_progress().then(|| file.progress());
    let options =
        AnalysisOptions { user_code, keeps_history: true, compares_steps: true, ..Default::default() };
    let (mut analysis, head, per_step) = file.with_input(ring, |input| {
        let open = input.open;
        let (mut analysis, head) = analyse_with_head(input, options)?;
        let per_step = match args.compare {
            Some(_) => count_by_steps(open, &head, &mut analysis)?,
            None => PerStepTotals::default(),
        };
        Ok((analysis, head, per_step))
    })?;
    add_oom_predictions(&mut analysis, &file, &head);
    add_setting_effects(&mut analysis, &file, &head, steps_left);
    Ok((analysis, per_step))
}

/// The page, and whether all traces are complete.
fn page_of(args: &HtmlArgs, traces: &[PathBuf]) -> anyhow::Result<(String, bool)> {
    let user_code = args.trace.user_code()?;
    let mut steps_left = MAX_STEPS;
    let mut read = |path: &PathBuf| read_for_page(args, path, user_code.clone(), &mut steps_left);
    let (mut read_traces, unreadable) = read_each(traces, true, &mut read)?;
    let shown = read_traces.len();
    read_traces.extend(args.compare.as_ref().map(read).transpose()?);
    let (analyses, per_step): (Vec<Analysis>, Vec<PerStepTotals>) = read_traces.into_iter().unzip();
    let mut resolver = Resolver::for_user();
    let (shown, before) = analyses.split_at(shown);
    let mut report = full_report(shown, &mut resolver);
    let mut before_report = (!before.is_empty()).then(|| full_report(before, &mut resolver));
    let comparison = before.first().zip(per_step.last()).map(|before| {
        let mut comparison = compare_analyses([before, (&shown[0], &per_step[0])], true, &mut resolver);
        fill_comparison(&mut comparison);
        comparison
    });
    let source = SourceArgs {
        scope: if args.no_source { SourceScope::None } else { SourceScope::NotSecret },
        // A redacted report has the names of the files only.
        trace_files: report.traces.iter().map(|trace| PathBuf::from(&trace.path)).collect(),
        ..args.source.clone()
    };
    if args.redact {
        std::iter::once(&mut report)
            .chain(&mut before_report)
            .for_each(|report| report.change(redact_processes));
    }
    let named = |analysis| named_history(analysis, &mut resolver);
    let histories: Vec<RunHistory> = analyses.into_iter().map(named).collect();
    resolver.save_cache();
    let mut json = Vec::new();
    write_json(&report, &mut json)?;
    let mut summary = Vec::new();
    TextRenderer.render(
        &report,
        &RenderContext { source: &source, ..RenderContext::new(Style::for_files()) },
        &mut summary,
    )?;
    let summary = String::from_utf8_lossy(&summary);
    let is_complete = unreadable == 0 && report.traces.iter().all(|trace| trace.complete);
    let before = before_report.as_ref().zip(comparison.as_ref());
    let before = before.map(|(report, comparison)| RunBefore { report, comparison });
    let page = PageSource { histories, report: &report, json, summary: &summary, before };
    let max_bytes = usize::try_from(args.max_size).unwrap_or(usize::MAX);
    let options = PageOptions { max_bytes, source: &source, is_redacted: args.redact };
    Ok((make_page(page, options), is_complete))
}

/// The report as `replay --json` prints it.
fn full_report(analyses: &[Analysis], resolver: &mut Resolver) -> PresentedReport {
    PresentedReport::new(report(analyses, &[]), analyses, NameScope::ALL, resolver)
}

/// The history of an analysis, which is dropped.
fn named_history(mut analysis: Analysis, resolver: &mut Resolver) -> RunHistory {
    let mut history = analysis.take_history().unwrap_or_default();
    let sites = history.stacks.iter_mut().map(|(site, _)| site);
    symbolize_sites(sites, &analysis, NameScope::ALL, resolver);
    history
}

/// Opens a page without waiting for the browser. Says on stderr if that is not possible.
fn open_in_browser(page: &Path) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    let started = command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = started {
        print_message(format_args!(
            "gpumemtrace: cannot start {program}: {error}; open {} in a browser",
            page.display()
        ));
    }
}
