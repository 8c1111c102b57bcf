//! `gpumemtrace check`: checks traces against a memory budget.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use gpumemtrace_multirun::{BudgetChecks, CheckDocument, UnreadableTrace, merge_drafts};
use gpumemtrace_replay::budget::{Budget, BudgetDraft, check, draft_budget};
use gpumemtrace_replay::callsite::{NameScope, UserCodePaths};
use gpumemtrace_replay::compare::Profile;
use gpumemtrace_replay::symbolize_sites;

use super::args::display::DisplayArgs;
use super::args::jobs::JobsArgs;
use super::args::trace::{TraceArgs, read_by_steps};
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::render::text::render_written_budget;
use crate::render::wording::{describe_loss, fill_check, write_budget_file};
use crate::render::{JunitRenderer, MarkdownRenderer, OutputChoice, RenderContext, Renderer, print_document};
use crate::terminal::output_file::{BUDGET, OutputPath};
use crate::terminal::status_line;
use crate::terminal::stdout::print_text;
use crate::trace::find::{TRACES, find_files, named_or_newest};
use crate::trace::many::{name_left_out, read_many};

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Traces, folders of them, and patterns such as 'traces/**/*.trace' [default: the newest here]
    ///
    /// Parts of a rotated trace are found automatically.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Path of the budget file (TOML)
    #[arg(long, value_name = "FILE")]
    budget: PathBuf,
    /// Write the budget file, with limits taken from this trace, or the largest of several
    #[arg(long, conflicts_with_all = ["markdown", "junit", "json"])]
    write: bool,
    /// Replace an existing budget, or a --markdown or --junit file that gpumemtrace did not write
    #[arg(long)]
    force: bool,
    /// Also write a Markdown summary for a pull request ("-" for stdout)
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Also write JUnit XML, one test case per limit, one suite per trace ("-" for stdout)
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    output_choice: OutputChoice<CheckDocument>,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

impl CheckArgs {
    /// Each output with its file, or `None` for stdout. Fails if two outputs name stdout.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn outputs(&self) -> Result<Vec<(&'static dyn Renderer<CheckDocument>, Option<&Path>)>, UsageError> {
        let files: [(&'static dyn Renderer<CheckDocument>, _); 2] =
            [(&MarkdownRenderer, &self.markdown), (&JunitRenderer, &self.junit)];
        let mut outputs: Vec<(&'static dyn Renderer<CheckDocument>, Option<&Path>)> = Vec::new();
        for (renderer, path) in files {
            let path = path.as_deref();
            outputs.extend(path.map(|path| (renderer, Some(path).filter(|path| *path != Path::new("-")))));
        }
        let on_stdout = outputs.iter().filter(|(_, file)| file.is_none()).count();
        if on_stdout + usize::from(self.output_choice.is_named) > 1 {
            return Err(UsageError(
                "only one of --json, --markdown - and --junit - can write to stdout; give the others a file"
                    .to_owned(),
            ));
        }
        if on_stdout == 0 {
            outputs.push((self.output_choice.renderer, None));
        }
        Ok(outputs)
    }
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<CliExit> {
    let user_code = args.reading.user_code()?;
    let outputs = args.outputs()?;
    // Reading the trace may take minutes: refuse a wrong budget first.
    let budget = if args.write { None } else { Some(read_budget(&args.budget)?) };
    let new_budget = args.write.then(|| OutputPath::claim(&args.budget, BUDGET, args.force)).transpose()?;
    let mut targets = Vec::new();
    for (renderer, file) in outputs {
        let claim = |path: &Path| OutputPath::claim(path, renderer.name(), args.force);
        targets.push((renderer, file.map(claim).transpose()?));
    }
    status_line::exit_cleanly_on_interrupt()?;
    let files = find_files(&named_or_newest(&args.traces)?, TRACES)?;
    if let Some(target) = new_budget {
        return write_limits(args, &files, &user_code, target);
    }
    let Some(budget) = budget else { return Ok(CliExit::Unreadable) };
    let name = args.budget.display().to_string();
    let is_alone = files.len() == 1;
    let (mut checks, unreadable) = read_profiles(args, &files, &user_code, |profile| {
        let mut outcome = check(profile, &budget, &name);
        fill_check(&mut outcome);
        if is_alone { outcome } else { BudgetChecks::shorten(outcome) }
    })?;
    let (passed, complete, document) = match checks.pop() {
        Some(one) if is_alone => (one.passed, one.complete, CheckDocument::One(Box::new(one))),
        last => {
            checks.extend(last);
            let all = BudgetChecks::new(name, checks, unreadable);
            (all.passed, all.complete, CheckDocument::Several(all))
        }
    };
    let context = RenderContext::new(args.display.style());
    for (renderer, target) in targets {
        write_output(renderer, target, &document, &context)?;
    }
    Ok(match (passed, complete) {
        (false, _) => CliExit::Findings,
        (true, false) => CliExit::Incomplete,
        (true, true) => CliExit::Done,
    })
}

/// What `take` makes of each trace, in the order of the files, and the traces that cannot be read.
/// These are named, unless there is only one trace.
fn read_profiles<T: Send>(
    args: &CheckArgs,
    files: &[PathBuf],
    user_code: &UserCodePaths,
    take: impl Fn(&Profile<'_>) -> T + Sync,
) -> Result<(Vec<T>, Vec<UnreadableTrace>), UnreadableInput> {
    let is_alone = files.len() == 1;
    let shows_bytes = is_alone && args.reading.shows_progress();
    let results: BTreeMap<usize, Result<T, UnreadableInput>> = read_many(
        files,
        args.jobs.pace(&args.reading, "traces"),
        Resolver::for_user,
        |resolver, path| {
            let (analysis, amounts) = read_by_steps(path, user_code, shows_bytes)?;
            let mut profile = Profile::new(&analysis, &amounts);
            // The budget's patterns match native call sites by function name.
            let native = profile.native_sites_mut();
            symbolize_sites(native, &analysis, NameScope::ALL, resolver);
            if is_alone {
                resolver.save_cache();
            }
            Ok(take(&profile))
        },
        |results| results.collect(),
    );
    let (mut taken, mut unreadable) = (Vec::new(), Vec::new());
    for (index, result) in results {
        match result {
            Ok(one) => taken.push(one),
            Err(error) if is_alone => return Err(error),
            Err(UnreadableInput(why)) => {
                unreadable.push(UnreadableTrace { path: files[index].display().to_string(), why });
            }
        }
    }
    name_left_out(unreadable.iter().map(|one| &*one.why));
    if taken.is_empty() { Err(UnreadableInput::of_all()) } else { Ok((taken, unreadable)) }
}

/// Writes a budget that all of the traces keep to.
fn write_limits(
    args: &CheckArgs,
    files: &[PathBuf],
    user_code: &UserCodePaths,
    target: OutputPath,
) -> anyhow::Result<CliExit> {
    let (measured, unreadable) = read_profiles(args, files, user_code, |profile| {
        let analysis = profile.analysis;
        let name = if files.len() == 1 { String::new() } else { format!("{}: ", analysis.path) };
        let losses = analysis.incomplete.iter().map(|loss| format!("{name}{}", describe_loss(loss)));
        (draft_budget(profile), losses.collect::<Vec<String>>())
    })?;
    let runs = measured.len();
    let (drafts, losses): (Vec<BudgetDraft>, Vec<Vec<String>>) = measured.into_iter().unzip();
    let losses = losses.concat();
    let Some(draft) = drafts.into_iter().reduce(merge_drafts) else { return Ok(CliExit::Unreadable) };
    target.fill(write_budget_file(&draft).as_bytes())?;
    print_text(&render_written_budget(&args.budget, runs, &draft.leaks, &losses, args.display.style()))?;
    Ok(if losses.is_empty() && unreadable.is_empty() { CliExit::Done } else { CliExit::Incomplete })
}

fn read_budget(path: &Path) -> anyhow::Result<Budget> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        UnreadableInput(match error.kind() {
            ErrorKind::NotFound => format!("{name} does not exist; create it from this trace with --write"),
            _ => format!("cannot read {name}: {error}"),
        })
    })?;
    Ok(text.parse::<Budget>().map_err(|why| UsageError(format!("{name}: {why}")))?)
}

/// Writes to stdout where no file is given.
fn write_output(
    renderer: &dyn Renderer<CheckDocument>,
    target: Option<OutputPath>,
    document: &CheckDocument,
    context: &RenderContext<'_>,
) -> anyhow::Result<()> {
    let Some(target) = target else { return print_document(renderer, document, context) };
    let mut bytes = Vec::new();
    renderer.render(document, context, &mut bytes)?;
    target.fill(&bytes)?;
    Ok(())
}
