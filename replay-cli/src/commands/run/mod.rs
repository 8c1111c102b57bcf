//! `gpumemtrace run`: start a command with the recorder in it, and say afterwards what to do with the trace.
//!
//! Constraint: the command must behave as if it had been started by itself. Consequence: its stdin, stdout and stderr are
//! ours, it stays in our process group (so a key pressed in the terminal reaches it directly), what is sent to us alone is
//! passed on, and we exit as it did. We print only to stderr, and only after it has ended; before it starts, one line at most: that it
//! cannot be recorded.

mod holders;
mod program;
mod traces;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context as _;
use clap::ValueEnum;
use gpumemtrace_cli::launch::injectable::HostFileSystem;
use gpumemtrace_format::amount;
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::{CliExit, UsageError};
use crate::launch::library::{check_preloadable, find_library};
use crate::launch::platform::Platform;
use crate::launch::preload;
use traces::{ExpectedTraces, finish_traces};

/// Smaller ones consist of headers.
const SMALLEST_PART: u64 = 64 << 10;

/// What `run` takes.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Where the trace goes, a file or a folder; %p is the process, %r the rank, %h the host [default: run.trace]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Which call stacks to record
    #[arg(long, value_enum)]
    stacks: Option<StacksArg>,
    /// Most frames of a stack; the outermost ones are left out [default: 256]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: Option<u32>,
    /// When the recorder cannot keep up: make the program wait, or drop events and count them
    #[arg(long, value_enum)]
    on_full: Option<OnFullArg>,
    /// What the recorder needs at most, 32MiB to 1GiB: more gets the program through longer bursts without waiting [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<String>,
    /// Write the trace in parts: begin another when one is so large or so old, such as 1GiB, 6h or 1GiB,6h
    #[arg(long, value_name = "AMOUNT", value_parser = parse_part_limit)]
    rotate: Option<String>,
    /// Keep about so much of the trace: the oldest parts are dropped, and counted, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    keep: Option<String>,
    /// Whether PyTorch's own tracker is attached: it tells what each tensor asked for, its stream and pool
    #[arg(long, value_enum)]
    tracker: Option<TrackerArg>,
    /// At its end, when memory runs out and at a signal, ask the program's Python who holds what leaks, and write that into the trace
    #[arg(long)]
    holders: bool,
    /// The signal at which --holders asks, too, such as USR1
    #[arg(long, value_name = "SIGNAL", requires = "holders", value_parser = holders::parse_signal)]
    holders_signal: Option<String>,
    /// Seconds that --holders may walk through the program's objects each time [default: 2]
    #[arg(long, value_name = "SECONDS", requires = "holders", value_parser = holders::parse_limit)]
    holders_limit: Option<String>,
    /// The command to run; of `train.py` and `-m package` Python's, with the Python that this command belongs to
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_part_limit(text: &str) -> Result<String, String> {
    let limit = amount::PartLimit::parse(text).ok_or("give a size, a time, or both: 1GiB, 6h, 1GiB,6h")?;
    match limit.bytes {
        Some(bytes) if bytes < SMALLEST_PART => Err("parts are at least 64KiB".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn parse_size(text: &str) -> Result<String, String> {
    match amount::bytes(text) {
        Some(bytes) if bytes >= 8 * SMALLEST_PART => Ok(text.to_owned()),
        Some(_) => Err("at least 512KiB are kept".to_owned()),
        None => Err("give a size such as 10GiB".to_owned()),
    }
}

fn parse_memory(text: &str) -> Result<String, String> {
    match amount::recorder_memory(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("give a size from 32MiB to 1GiB".to_owned()),
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum StacksArg {
    /// Python frames
    Python,
    /// Native frames
    Native,
    /// Python and native frames
    Both,
    /// None: sizes and times only
    None,
}

#[derive(Clone, Copy, ValueEnum)]
enum TrackerArg {
    /// Attached
    On,
    /// Left alone
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnFullArg {
    /// Wait: nothing is lost
    Block,
    /// Drop and count
    Drop,
}

/// Does it.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<CliExit> {
    let library = find_library()?;
    check_preloadable(&library, Platform::HOST)?;
    let here = std::env::current_dir().context("the current directory is gone")?;
    let program = program::resolve_command(&args.command, &here);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env_remove(program::PYTHON);
    let what = (program[0].as_os_str(), here.as_path());
    let (variables, blocker) =
        preload::environment(Platform::HOST, &library, what, &HostFileSystem, |name| std::env::var_os(name));
    if let Some(blocker) = &blocker {
        eprintln!("gpumemtrace: not recorded: {blocker}");
    }
    command.envs(variables);
    let given = args.output.clone().map(|output| resolve_output(&here, &output)).transpose()?;
    if let Some(output) = &given {
        command.env("GPUMEMTRACE_OUTPUT", output);
    }
    let expected = ExpectedTraces::new(&here, given);
    if let Some(stacks) = args.stacks.and_then(|stacks| stacks.to_possible_value()) {
        command.env("GPUMEMTRACE_STACKS", stacks.get_name());
    }
    if let Some(depth) = args.depth {
        command.env("GPUMEMTRACE_DEPTH", depth.to_string());
    }
    if let Some(tracker) = args.tracker.and_then(|tracker| tracker.to_possible_value()) {
        command.env("GPUMEMTRACE_TRACKER", tracker.get_name());
    }
    if let Some(on_full) = args.on_full.and_then(|on_full| on_full.to_possible_value()) {
        command.env("GPUMEMTRACE_ON_FULL", on_full.get_name());
    }
    let amounts = [
        ("GPUMEMTRACE_MEMORY", &args.memory),
        ("GPUMEMTRACE_ROTATE", &args.rotate),
        ("GPUMEMTRACE_KEEP", &args.keep),
    ];
    for (variable, value) in amounts {
        if let Some(value) = value {
            command.env(variable, value);
        }
    }
    let holders = args.holders.then(holders::HoldersHook::new).transpose()?;
    if let Some(hook) = &holders {
        hook.configure(&mut command, args.holders_signal.as_deref(), args.holders_limit.as_deref())?;
    }
    let before = expected.find_traces();
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGQUIT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ])
    .context("signals cannot be watched")?;
    let name = program[0].to_string_lossy().into_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            // As a shell would: 127 not found, 126 not executable.
            eprintln!("gpumemtrace: {name} cannot be started: {error}");
            let not_found = error.kind() == std::io::ErrorKind::NotFound;
            return Ok(CliExit::Code(if not_found { 127 } else { 126 }));
        }
    };
    let pid = child.id();
    std::thread::spawn(move || {
        for signal in &mut signals {
            // What the terminal sends reaches the command by itself; what is sent to us alone is passed on.
            let passed_on = match signal {
                signal_hook::consts::SIGTERM => Signal::TERM,
                signal_hook::consts::SIGHUP => Signal::HUP,
                _ => continue,
            };
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, passed_on);
            }
        }
    });
    let status = child.wait().with_context(|| format!("{name} cannot be waited for"))?;
    let new = finish_traces(&expected, &before, u64::from(pid), status, &here);
    // What is not recorded was said before.
    if new.is_empty() && !expected.patterns.is_empty() && blocker.is_none() {
        let elsewhere = if expected.is_relative {
            ", or made it in another folder (--output names a fixed one)"
        } else {
            ""
        };
        eprintln!("gpumemtrace: no trace was found: the command made no GPU call{elsewhere}");
    }
    if holders.is_some() {
        holders::warn_if_not_scanned(&new);
    }
    Ok(CliExit::Code(exit_code(status)))
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}

/// The file that `--output` names, in full: in a folder, the usual one. A folder that is not there is refused before the command
/// has run for hours.
fn resolve_output(here: &Path, output: &Path) -> anyhow::Result<PathBuf> {
    let path = here.join(output);
    let names_folder = output.as_os_str().as_encoded_bytes().ends_with(b"/");
    let file = if names_folder || path.is_dir() { path.join(default_trace_name()) } else { path };
    let folder = file.parent().unwrap_or(here);
    if !folder.is_dir() && !folder.to_string_lossy().contains('%') {
        let shown = folder.strip_prefix(here).unwrap_or(folder).display();
        return Err(UsageError(format!("--output: there is no folder {shown}; make it first")).into());
    }
    Ok(file)
}

/// As the recorder names a trace if nobody else does.
fn default_trace_name() -> &'static str {
    let has_rank = std::env::var_os("RANK").is_some_and(|rank| !rank.is_empty());
    if has_rank { "run.rank%r.trace" } else { "run.trace" }
}
