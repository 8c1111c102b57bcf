//! Runs a small program under the recorder, as a user would, and reads its trace.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::launch::injectable::HostFileSystem;
use anyhow::Context as _;
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::{Counter, Event, Meta};

use crate::launch::platform::Platform;
use crate::launch::{preload, sanitizer};
use crate::terminal::escape::escape_text;

/// Time limit of one test: importing PyTorch from a cold disk is slow.
const MAX_TEST_TIME: Duration = Duration::from_mins(3);

/// The output of a recorded program.
pub(super) struct LiveTestResult {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) succeeded: bool,
    /// The sanitizer runtime that was loaded before the library.
    pub(super) sanitizer: Option<String>,
    /// `None` if the program wrote no trace.
    pub(super) trace: Option<LiveTestTrace>,
}

/// The part of a trace that the checks need.
#[derive(Default)]
pub(super) struct LiveTestTrace {
    pub(super) meta: Meta,
    pub(super) events: Vec<Event>,
    /// Calls of allocating functions that the recorder counts but does not record.
    pub(super) uncovered_calls: u64,
    /// The JSON of `replay`; `None` if that failed.
    pub(super) report: Option<serde_json::Value>,
}

/// Runs a program with the library preloaded. Its trace goes to a temporary folder.
pub(super) fn run_live_test(
    library: &Path,
    program: &OsStr,
    arguments: &[&OsStr],
) -> anyhow::Result<LiveTestResult> {
    let folder = tempfile::Builder::new()
        .prefix("gpumemtrace-doctor-")
        .tempdir()
        .context("cannot create a temporary folder")?;
    let path = folder.path().join("run.trace");
    let here = std::env::current_dir().context("the current directory is gone")?;
    let variable = |name: &str| std::env::var_os(name);
    let (variables, blocker) =
        preload::environment(Platform::HOST, library, (program, &here), &HostFileSystem, variable);
    if let Some(blocker) = blocker {
        anyhow::bail!("{blocker}");
    }
    let preloaded = variables.iter().find(|(name, _)| *name == Platform::HOST.preload_variable());
    let sanitizer = preloaded.and_then(|(_, list)| sanitizer::runtime_before_recorder(list));
    let sanitizer = sanitizer.map(|runtime| runtime.to_string_lossy().into_owned());
    let mut command = Command::new(program);
    command.args(arguments).envs(variables).env("GPUMEMTRACE_OUTPUT", &path);
    for variable in ["GPUMEMTRACE_STACKS", "GPUMEMTRACE_ON_FULL", "RANK"] {
        command.env_remove(variable);
    }
    let output = output_with_timeout(command, MAX_TEST_TIME)?;
    let trace = match File::open(&path) {
        Ok(file) => Some(read_trace(file, &path)?),
        Err(_) => None,
    };
    Ok(LiveTestResult {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        succeeded: output.status.success(),
        sanitizer,
        trace,
    })
}

fn read_trace(file: File, path: &Path) -> anyhow::Result<LiveTestTrace> {
    let mut trace = LiveTestTrace::default();
    for item in TraceReader::new(file)? {
        match item {
            Item::Meta(meta) => trace.meta.merge(meta),
            Item::Events(events) => trace.events.extend(events),
            Item::End(end) => trace.uncovered_calls = end.counters.get(Counter::UncoveredCalls),
            _ => {}
        }
    }
    let replayed = Command::new(std::env::current_exe()?).args(["replay", "--json"]).arg(path).output()?;
    trace.report = serde_json::from_slice(&replayed.stdout).ok();
    Ok(trace)
}

/// Runs a command and collects its output. Kills it after `patience`.
pub(super) fn output_with_timeout(mut command: Command, patience: Duration) -> anyhow::Result<Output> {
    let name = escape_text(&command.get_program().to_string_lossy());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    // A full pipe would block the child, so both are drained while it runs.
    let mut pipes = (child.stdout.take(), child.stderr.take());
    let readers = std::thread::spawn(move || {
        let drain = |pipe: Option<&mut dyn std::io::Read>| {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        };
        std::thread::scope(|scope| {
            let stdout = pipes.0.as_mut();
            let first = scope.spawn(move || drain(stdout.map(|pipe| pipe as &mut dyn std::io::Read)));
            let second = drain(pipes.1.as_mut().map(|pipe| pipe as &mut dyn std::io::Read));
            (first.join().unwrap_or_default(), second)
        })
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("{name} did not finish within {} s", patience.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (stdout, stderr) = readers.join().unwrap_or_default();
    Ok(Output { status, stdout, stderr })
}
