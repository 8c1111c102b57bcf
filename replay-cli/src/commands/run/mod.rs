//! `gpumemtrace run`: starts a command with the recorder in it, and names its traces afterwards.
//!
//! The command must behave as if it had been started directly. It inherits stdin, stdout and
//! stderr, and it stays in our process group, so a key pressed in the terminal reaches it. Signals
//! sent to us are passed on, and we exit with its exit code. We print only to stderr and only after
//! the command has ended, apart from one line if it cannot be recorded, and one that names a Python
//! that we chose.

mod candidate_server;
mod holders;
mod package;
pub(super) mod program;
pub(super) mod python_hook;
mod signals;
mod traces;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::launch::injectable::HostFileSystem;
use anyhow::Context as _;
use clap::ValueEnum;
use gpumemtrace_format::labels::{Label, parse_label};
use gpumemtrace_format::size_arg;
use rustix::process::{Resource, getrlimit};

use super::html;
use crate::exit::{CliExit, UsageError};
use crate::launch::git_commit;
use crate::launch::library::{check_preloadable, find_library};
use crate::launch::platform::Platform;
use crate::launch::preload;
use crate::terminal::stderr::print_message;
use package::PackageFolder;
use python_hook::PythonHook;
use traces::{ExpectedTraces, finish_traces};

/// Smaller parts would consist mostly of headers.
const MIN_PART_BYTES: u64 = 64 << 10;

#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "command-line flags")]
pub(crate) struct RunArgs {
    /// Trace file, or folder/, which is made; %p is the process ID, %r the rank, %h the host, %j
    /// the job of a scheduler [default: run.trace]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Call stacks to record
    #[arg(long, value_enum)]
    stacks: Option<StacksArg>,
    /// Maximum number of innermost frames per stack [default: 256]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: Option<u32>,
    /// What to do when the recorder cannot keep up
    #[arg(long, value_enum)]
    on_full: Option<OnFullArg>,
    /// Memory of the recorder, 32MiB to 1GiB; more absorbs longer bursts [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<String>,
    /// Start a new part of the trace at this size or age, such as 1GiB, 6h or 1GiB,6h
    #[arg(long, value_name = "AMOUNT", value_parser = parse_part_limit)]
    rotate: Option<String>,
    /// Drop the oldest parts of the trace above this total size, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_total_size)]
    max_total_size: Option<String>,
    /// Do not read PyTorch's trace of its allocator: 40% less overhead, but no requested sizes,
    /// streams and pools
    #[arg(long)]
    no_torch_details: bool,
    /// Label of the run, such as team=nlp, to find it by (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<Label>,
    /// Do not record the command line; without this option, only secrets in it are masked
    #[arg(long)]
    no_command_line: bool,
    /// Record the Python references that hold leaked blocks: during the run and at its end
    #[arg(long)]
    holders: bool,
    /// Signal that starts a scan of --holders, such as USR1
    #[arg(long, value_name = "SIGNAL", requires = "holders", value_parser = holders::parse_signal)]
    holders_signal: Option<String>,
    /// Time limit for each scan of --holders, in seconds [default: 2]
    #[arg(long, value_name = "SECONDS", requires = "holders", value_parser = holders::parse_limit)]
    holders_limit: Option<String>,
    /// Write a page with charts at the end, such as run.html
    #[arg(long)]
    html: bool,
    /// Command to run; `train.py` and `-m package` run in Python
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

fn parse_part_limit(text: &str) -> Result<String, String> {
    let limit =
        size_arg::PartLimit::parse(text).ok_or("expected a size, a time, or both: 1GiB, 6h or 1GiB,6h")?;
    match limit.bytes {
        Some(bytes) if bytes < MIN_PART_BYTES => Err("a part has at least 64KiB".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn parse_total_size(text: &str) -> Result<String, String> {
    match size_arg::parse_bytes(text) {
        Some(bytes) if bytes >= 8 * MIN_PART_BYTES => Ok(text.to_owned()),
        Some(_) => Err("the minimum is 512KiB".to_owned()),
        None => Err("expected a size such as 10GiB".to_owned()),
    }
}

fn parse_memory(text: &str) -> Result<String, String> {
    match size_arg::parse_recorder_memory(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected a size from 32MiB to 1GiB".to_owned()),
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum StacksArg {
    /// Record Python frames only
    Python,
    /// Record native frames only
    Native,
    /// Record Python and native frames
    Both,
    /// Record no stacks, only sizes and times
    None,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnFullArg {
    /// Make the program wait; no event is lost
    Block,
    /// Drop events and count them
    Drop,
}

/// Environment, libraries and Python code that `simulate` adds to the recorded command.
#[derive(Debug, Default)]
pub(super) struct CommandExtras {
    /// Environment variables in addition to those of the recorder.
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// Libraries that the loader takes first, behind the recorder: a value of `LD_PRELOAD`.
    pub(super) preloaded: OsString,
    /// Code that its Python starts.
    pub(super) python: Option<PythonHook>,
}

/// Every ring file is larger, so a lower limit on file sizes prevents any recording.
const MIN_FILE_BYTES: u64 = 16 << 20;

/// A command that has ended.
pub(super) struct FinishedCommand {
    pub(super) exit: CliExit,
    /// The traces that it wrote.
    pub(super) traces: Vec<PathBuf>,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<CliExit> {
    Ok(run_with(args, &CommandExtras::default())?.exit)
}

/// Runs the command with additions of `simulate`.
pub(super) fn run_with(args: &RunArgs, extras: &CommandExtras) -> anyhow::Result<FinishedCommand> {
    let library = find_library()?;
    check_preloadable(&library, Platform::HOST)?;
    let here = std::env::current_dir().context("the current directory is gone")?;
    let program = program::resolve_command(&args.command, &here);
    program::name_python(&args.command, &program);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env_remove(program::PYTHON);
    command.envs(extras.variables.iter().map(|(name, value)| (name, value)));
    let mut python_path = std::env::var_os("PYTHONPATH");
    if let Some(hook) = &extras.python {
        python_path = Some(hook.python_path(python_path));
        command.env("PYTHONPATH", python_path.as_ref().expect("set above"));
    }
    let what = (program[0].as_os_str(), here.as_path());
    let value = |name: &str| Some(with_preloaded(name, &extras.preloaded));
    let (variables, blocker) = preload::environment(Platform::HOST, &library, what, &HostFileSystem, value);
    if let Some(blocker) = &blocker {
        print_message(format_args!("gpumemtrace: not recorded: {blocker}"));
    }
    command.envs(variables);
    let package = if Platform::HOST == Platform::Linux { create_package() } else { None };
    if let Some(package) = &package {
        command.env(package::VARIABLE, package.path());
    }
    let given = args.output.clone().map(|output| resolve_output(&here, &output)).transpose()?;
    command.envs(given.iter().map(|output| ("GPUMEMTRACE_OUTPUT", output)));
    let expected = ExpectedTraces::new(&here, given);
    command.envs(recorder_settings(args));
    if std::env::var_os(git_commit::VARIABLE).is_none() {
        command.envs(git_commit::commit_of(&here).map(|commit| (git_commit::VARIABLE, commit)));
    }
    let holders = args.holders.then(holders::HoldersHook::new).transpose()?;
    if let Some(hook) = &holders {
        hook.configure(
            &mut command,
            python_path,
            args.holders_signal.as_deref(),
            args.holders_limit.as_deref(),
        );
    }
    let before = expected.find_traces();
    let signals = signals::CaughtSignals::catch().context("cannot install signal handlers")?;
    signals.keep_inherited(&mut command);
    let name = program[0].to_string_lossy().into_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return refuse_start(&name, &error),
    };
    let pid = child.id();
    let status = signals.pass_on_to(&mut child).with_context(|| format!("cannot wait for {name}"))?;
    let new = finish_traces(&expected, &before, u64::from(pid), status, &here);
    // With a blocker, the line above already says that nothing is recorded.
    if new.is_empty() && !expected.patterns.is_empty() && blocker.is_none() {
        explain_no_trace(&expected);
    }
    if holders.is_some() {
        holders::warn_if_not_scanned(&new);
    }
    if args.html && !new.is_empty() {
        write_page(&new, &here);
    }
    Ok(FinishedCommand { exit: CliExit::Code(exit_code(status)), traces: new })
}

/// The package for programs without it. A failure is one line on stderr.
fn create_package() -> Option<PackageFolder> {
    // A file above the limit would end this process with SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < MIN_FILE_BYTES) {
        return None;
    }
    let package = PackageFolder::create();
    package
        .inspect_err(|error| {
            print_message(format_args!(
                "gpumemtrace: import gpumemtrace works only where the package is installed: no temporary folder: {error}"
            ));
        })
        .ok()
}

/// The value of a variable of the loader, with the preloaded libraries before those of the user.
fn with_preloaded(name: &str, preloaded: &OsStr) -> OsString {
    let value = std::env::var_os(name).unwrap_or_default();
    if name != Platform::HOST.preload_variable() || preloaded.is_empty() {
        return value;
    }
    let mut list = preloaded.to_owned();
    if !value.is_empty() {
        list.push(":");
        list.push(value);
    }
    list
}

/// The variables of the recorder that the options set.
fn recorder_settings(args: &RunArgs) -> impl Iterator<Item = (&'static str, String)> {
    fn name_of(value: Option<impl ValueEnum>) -> Option<String> {
        Some(value?.to_possible_value()?.get_name().to_owned())
    }
    let settings = [
        ("GPUMEMTRACE_STACKS", name_of(args.stacks)),
        ("GPUMEMTRACE_DEPTH", args.depth.map(|depth| depth.to_string())),
        ("GPUMEMTRACE_TORCH_DETAILS", args.no_torch_details.then(|| "off".to_owned())),
        ("GPUMEMTRACE_ON_FULL", name_of(args.on_full)),
        ("GPUMEMTRACE_COMMAND_LINE", args.no_command_line.then(|| "off".to_owned())),
        ("GPUMEMTRACE_LABELS", labels_to_set(&args.label)),
        ("GPUMEMTRACE_MEMORY", args.memory.clone()),
        ("GPUMEMTRACE_ROTATE", args.rotate.clone()),
        ("GPUMEMTRACE_MAX_TOTAL_SIZE", args.max_total_size.clone()),
    ];
    settings.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// The labels of the options, in addition to those of the environment; `None` without options.
fn labels_to_set(given: &[Label]) -> Option<String> {
    let inherited = std::env::var("GPUMEMTRACE_LABELS").ok().filter(|labels| !labels.is_empty());
    let labels = given.iter().map(|(key, value)| format!("{key}={value}"));
    (!given.is_empty()).then(|| labels.chain(inherited).collect::<Vec<_>>().join(","))
}

/// The end of a command that could not be started, with the exit codes of a shell: 127 for not
/// found, 126 for not executable.
fn refuse_start(name: &str, error: &std::io::Error) -> anyhow::Result<FinishedCommand> {
    let not_found = error.kind() == std::io::ErrorKind::NotFound;
    if not_found && name.starts_with('-') {
        return Err(UsageError(format!("run has no option {name}; see gpumemtrace run --help")).into());
    }
    print_message(format_args!("gpumemtrace: cannot start {name}: {error}"));
    let exit = CliExit::Code(if not_found { 127 } else { 126 });
    Ok(FinishedCommand { exit, traces: Vec::new() })
}

/// Says why a command that ran left no trace.
fn explain_no_trace(expected: &ExpectedTraces) {
    let hint = if expected.is_relative { " (or changed folder: use --output)" } else { "" };
    match getrlimit(Resource::Fsize).current.filter(|limit| *limit < MIN_FILE_BYTES) {
        Some(limit) => print_message(format_args!(
            "gpumemtrace: no trace: the limit on file sizes (ulimit -f) of {limit} bytes is too low to record"
        )),
        None => print_message(format_args!("gpumemtrace: no trace: the command made no GPU call{hint}")),
    }
}

/// Writes the page of `--html`. A failure is one line on stderr: the exit code is the command's.
fn write_page(traces: &[PathBuf], here: &Path) {
    match html::write_page_of_run(traces) {
        Ok(page) => {
            let page = page.strip_prefix(here).unwrap_or(&page).to_owned();
            print_message(format_args!("gpumemtrace: wrote {}; open it in a browser", page.display()));
        }
        Err(error) => print_message(format_args!("gpumemtrace: no page: {error:#}")),
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}

/// The absolute path of `--output`; that of a folder ends with a slash. Each process then chooses
/// its file in it, because a launcher sets a rank for each of its processes. A name with a slash at
/// its end makes the folder. Any other missing folder may be a typing error, so it is refused now,
/// before the command has run for hours.
fn resolve_output(here: &Path, output: &Path) -> anyhow::Result<PathBuf> {
    let file = here.join(output);
    let kind = fs::metadata(&file).map(|facts| facts.file_type());
    if kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device()) {
        let shown = output.display();
        return Err(UsageError(format!("--output: {shown} is a device; a trace needs a file")).into());
    }
    let is_folder = names_folder(&file);
    if is_folder && !file.to_string_lossy().contains('%') {
        fs::create_dir_all(&file).map_err(|error| {
            UsageError(format!("--output: folder {} cannot be made: {error}", output.display()))
        })?;
    }
    let folder = if is_folder { &file } else { file.parent().unwrap_or(here) };
    if !folder.is_dir() && !folder.to_string_lossy().contains('%') {
        let shown = folder.strip_prefix(here).unwrap_or(folder).display();
        return Err(UsageError(format!("--output: folder {shown} does not exist; create it first, or name a new folder with a / at its end")).into());
    }
    Ok(if is_folder { file.join("") } else { file })
}

fn names_folder(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}
