//! `gpumemtrace check`: checks a trace against a memory budget.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use anyhow::Context;
use gpumemtrace_replay::budget::{Budget, BudgetCheck, check, draft_budget};
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::compare::Profile;
use gpumemtrace_replay::symbolize_sites;

use super::args::display::DisplayArgs;
use super::args::trace::{TraceArgs, read_by_steps};
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::render::text::render_written_budget;
use crate::render::wording::{describe_loss, fill_check, write_budget_file};
use crate::render::{
    CHECK_RENDERERS, JunitRenderer, MarkdownRenderer, RenderContext, Renderer, format_parser, print_document,
    select_format,
};
use crate::terminal::output_file::hide_temporary_name;
use crate::terminal::status_line;
use crate::terminal::stdout::print_text;

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Trace file; parts of a rotated trace are found automatically
    trace: PathBuf,
    /// Path of the budget file (TOML)
    #[arg(long, value_name = "FILE")]
    budget: PathBuf,
    /// Write the budget file, with limits taken from this trace
    #[arg(long, conflicts_with_all = ["markdown", "junit", "json", "format"])]
    write: bool,
    /// With --write, replace an existing file
    #[arg(long, requires = "write")]
    force: bool,
    /// Also write a Markdown summary for a pull request ("-" for stdout)
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Also write JUnit XML, one test case per limit ("-" for stdout)
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print JSON (schema: docs/check.schema.json)
    #[arg(long)]
    json: bool,
    /// Output format on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(CHECK_RENDERERS))]
    format: Option<&'static dyn Renderer<BudgetCheck>>,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

impl CheckArgs {
    /// Each output with its file, or `None` for stdout. Fails if two outputs name stdout.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn outputs(&self) -> Result<Vec<(&'static dyn Renderer<BudgetCheck>, Option<&Path>)>, UsageError> {
        let files: [(&'static dyn Renderer<BudgetCheck>, _); 2] =
            [(&MarkdownRenderer, &self.markdown), (&JunitRenderer, &self.junit)];
        let mut outputs: Vec<(&'static dyn Renderer<BudgetCheck>, Option<&Path>)> = Vec::new();
        for (renderer, path) in files {
            let path = path.as_deref();
            outputs.extend(path.map(|path| (renderer, Some(path).filter(|path| *path != Path::new("-")))));
        }
        let on_stdout = outputs.iter().filter(|(_, file)| file.is_none()).count();
        let is_format_named = self.json || self.format.is_some();
        if on_stdout + usize::from(is_format_named) > 1 {
            return Err(UsageError(
                "only one of --json, --format, --markdown - and --junit - can write to stdout; give the others a file"
                    .to_owned(),
            ));
        }
        if on_stdout == 0 {
            outputs.push((select_format(CHECK_RENDERERS, self.format, self.json), None));
        }
        Ok(outputs)
    }
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<CliExit> {
    let user_code = args.reading.user_code()?;
    let outputs = args.outputs()?;
    // Reading the trace may take minutes: refuse a wrong budget first.
    let budget = if args.write { None } else { Some(read_budget(&args.budget)?) };
    if args.write && !args.force && args.budget.exists() {
        return Err(already_exists(&args.budget).into());
    }
    status_line::exit_cleanly_on_interrupt()?;
    let (analysis, amounts) = read_by_steps(&args.trace, &args.reading, &user_code)?;
    let mut profile = Profile::new(&analysis, &amounts);
    let mut resolver = Resolver::new(args.reading.uses_symbol_cache());
    // The budget's patterns match native call sites by function name.
    let native = profile.native_sites_mut();
    symbolize_sites(native, &analysis, NameScope::ALL, &mut resolver);
    resolver.save_cache();
    let is_complete = analysis.incomplete.is_empty();
    let Some(budget) = budget else {
        write_budget(&args.budget, &write_budget_file(&draft_budget(&profile)), args.force)?;
        let losses: Vec<String> = analysis.incomplete.iter().map(describe_loss).collect();
        print_text(&render_written_budget(&args.budget, &losses, args.display.style()))?;
        return Ok(if is_complete { CliExit::Done } else { CliExit::Incomplete });
    };
    let mut outcome = check(&profile, &budget, &args.budget.display().to_string());
    fill_check(&mut outcome);
    let context = RenderContext::new(args.display.style());
    for (renderer, file) in outputs {
        write_output(renderer, file, &outcome, &context)?;
    }
    Ok(match (outcome.passed, is_complete) {
        (false, _) => CliExit::Exceeded,
        (true, false) => CliExit::Incomplete,
        (true, true) => CliExit::Done,
    })
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

fn already_exists(path: &Path) -> UsageError {
    UsageError(format!("{} already exists; replace it with --force", path.display()))
}

/// Writes the whole file or nothing. Without `replaces`, a file that appeared meanwhile is an
/// error.
fn write_budget(path: &Path, text: &str, replaces: bool) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", path.display());
    // A temporary file is private by default; a budget is read by others, so the umask decides.
    let rights = fs::Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().prefix(".budget").permissions(rights).tempfile_in(folder);
    let mut file = file.map_err(hide_temporary_name).with_context(cannot)?;
    file.write_all(text.as_bytes()).with_context(cannot)?;
    if replaces {
        file.persist(path).map_err(|error| error.error).with_context(cannot)?;
    } else if let Err(error) = file.persist_noclobber(path) {
        match error.error.kind() {
            ErrorKind::AlreadyExists => return Err(already_exists(path).into()),
            _ => return Err(error.error).with_context(cannot),
        }
    }
    Ok(())
}

/// Writes to stdout where no file is given.
fn write_output(
    renderer: &dyn Renderer<BudgetCheck>,
    file: Option<&Path>,
    outcome: &BudgetCheck,
    context: &RenderContext<'_>,
) -> anyhow::Result<()> {
    let Some(path) = file else { return print_document(renderer, outcome, context) };
    let mut bytes = Vec::new();
    renderer.render(outcome, context, &mut bytes)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
