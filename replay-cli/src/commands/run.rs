//! `gpumemtrace run`: start a command with the recorder in it, and say afterwards what to do with the trace.
//!
//! Constraint: the command must behave as if it had been started by itself. Consequence: its stdin, stdout and stderr are
//! ours, it stays in our process group (so a key pressed in the terminal reaches it directly), what is sent to us alone is
//! passed on, and we exit as it did. We print only to stderr, and only after it has ended.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::SystemTime;

use anyhow::Context as _;
use clap::ValueEnum;
use gpumemtrace_format::Meta;
use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::reader::{Item, TraceReader};
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::{Exit, Refused};

const LIBRARY: &str = "libgpumemtrace.so";
const ZSTD_LEVEL: i32 = 3;

/// What `run` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the trace goes; %p is the process, %r the rank, %h the host [default: run.trace]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Which call stacks to record
    #[arg(long, value_enum)]
    stacks: Option<Stacks>,
    /// When the recorder cannot keep up: make the program wait, or drop events and count them
    #[arg(long, value_enum)]
    on_full: Option<OnFull>,
    /// The command to run
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stacks {
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
enum OnFull {
    /// Wait: nothing is lost
    Block,
    /// Drop and count
    Drop,
}

/// Does it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let library = find_library()?;
    let here = std::env::current_dir().context("the current directory is gone")?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("LD_PRELOAD", preload(&library));
    let output = args.output.clone().or_else(|| std::env::var_os("GPUMEMTRACE_OUTPUT").map(PathBuf::from));
    let output = here.join(output.unwrap_or_else(|| PathBuf::from("run.trace")));
    if args.output.is_some() {
        command.env("GPUMEMTRACE_OUTPUT", &output);
    }
    if let Some(stacks) = args.stacks.and_then(|stacks| stacks.to_possible_value()) {
        command.env("GPUMEMTRACE_STACKS", stacks.get_name());
    }
    if let Some(on_full) = args.on_full.and_then(|on_full| on_full.to_possible_value()) {
        command.env("GPUMEMTRACE_ON_FULL", on_full.get_name());
    }
    let folder = output.parent().unwrap_or(&here).to_owned();
    let before = traces_in(&folder);
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGQUIT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ])
    .context("signals cannot be watched")?;
    let name = args.command[0].to_string_lossy().into_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            // As a shell would: 127 not found, 126 not executable.
            eprintln!("gpumemtrace: {name} cannot be started: {error}");
            let not_found = error.kind() == std::io::ErrorKind::NotFound;
            return Ok(Exit::Of(if not_found { 127 } else { 126 }));
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
    finish(&folder, &before, u64::from(pid), status, &here);
    Ok(Exit::Of(code_of(status)))
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}

/// The library beside this command.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("GPUMEMTRACE_LIB") {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| {
            Refused(format!("GPUMEMTRACE_LIB names {}, which cannot be used: {error}", path.display())).into()
        });
    }
    let executable = std::env::current_exe().context("this executable cannot be found")?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    places.iter().find_map(|place| place.canonicalize().ok()).ok_or_else(|| {
        Refused(format!(
            "{LIBRARY} is neither beside {} nor in ../lib from there; set GPUMEMTRACE_LIB to it",
            executable.display()
        ))
        .into()
    })
}

/// Ours first; what the user preloads stays.
fn preload(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(old) = std::env::var_os("LD_PRELOAD").filter(|old| !old.is_empty()) {
        list.push(":");
        list.push(old);
    }
    list
}

/// Identity and time of each trace in a folder.
fn traces_in(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(PathBuf, u64, SystemTime)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let facts = path.metadata().ok().filter(fs::Metadata::is_file)?;
            // The name is the user's choice: what counts is how the file begins.
            let is_trace = TraceReader::new(File::open(&path).ok()?).is_ok();
            is_trace.then(|| (path, facts.ino(), facts.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
        })
        .collect();
    found.sort();
    found
}

/// Says which traces are new, and writes into the command's own how it ended.
fn finish(folder: &Path, before: &[(PathBuf, u64, SystemTime)], pid: u64, status: ExitStatus, here: &Path) {
    for (path, inode, modified) in traces_in(folder) {
        let is_old = before.iter().any(|(_, known, when)| *known == inode && *when == modified);
        if is_old || is_locked(&path) {
            continue;
        }
        if let Err(error) = note_status(&path, pid, status) {
            eprintln!("gpumemtrace: {}: how the command ended could not be noted: {error:#}", path.display());
        }
        let shown = path.strip_prefix(here).unwrap_or(&path).display();
        eprintln!("gpumemtrace: wrote {shown}; next: gpumemtrace replay {shown}");
    }
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_err())
}

/// Appends what only we can know: how the process with this id ended.
fn note_status(path: &Path, pid: u64, status: ExitStatus) -> anyhow::Result<()> {
    let mut meta = Meta::default();
    for item in TraceReader::new(File::open(path)?)?.without_events() {
        match item {
            Item::Meta(more) => meta.merge(more),
            // Whatever is put behind a half-written block would be taken for its other half.
            Item::Cut { .. } => return Ok(()),
            _ => {}
        }
    }
    if meta.number("pid") != Some(pid) {
        return Ok(());
    }
    let text = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => return Ok(()),
    };
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.try_lock()?;
    let mut note = Meta::default();
    note.set_text("wait_status", text);
    file.write_all(&encode_block(BlockKind::META, &note.encode(), ZSTD_LEVEL))?;
    Ok(())
}
