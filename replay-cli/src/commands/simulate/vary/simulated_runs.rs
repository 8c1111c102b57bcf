//! Runs a program with `gpumemtrace simulate`, once for each value and setting.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context as _;
use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_replay::report::{RefusedRequest, Report};
use gpumemtrace_replay::{Section, analyse, report};
use gpumemtrace_whatif::{FailedRequest, FailedWhat, ReservedRange, ValueRun};

use super::VariedArgument;
use crate::commands::simulate::SimulateArgs;
use crate::commands::simulate::address_range::range_of_trace;
use crate::exit::UsageError;
use crate::render::wording::alloc_conf_of;
use crate::terminal::escape::escape_text;
use crate::terminal::stderr::print_message;
use crate::trace::find::{TRACES, find_files};
use crate::trace::open::TraceSource;

/// The end of the program's output, which is shown with an error.
const SHOWN_OUTPUT_BYTES: u64 = 4096;
const SHOWN_OUTPUT_LINES: usize = 5;

/// A program whose argument varies, and how it is simulated.
pub(super) struct SimulatedProgram<'a> {
    args: &'a SimulateArgs,
    command: &'a [OsString],
    varied: &'a VariedArgument,
    steps: u32,
    folder: &'a Path,
    executable: PathBuf,
    /// The version of PyTorch, once a run has recorded it.
    pub(super) torch: Option<TorchVersion>,
    runs: u32,
}

/// The traces of one run, which are deleted with it.
pub(super) struct RunFolder {
    traces: Vec<PathBuf>,
    folder: PathBuf,
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // What stays is deleted with the temporary folder that contains it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl RunFolder {
    /// The range of the trace with the highest peak of all orders; `None` if no address can decide.
    pub(super) fn reserved_range(&self) -> anyhow::Result<Option<ReservedRange>> {
        let mut highest: Option<ReservedRange> = None;
        for trace in &self.traces {
            let range = range_of_trace(trace)?;
            if range.map(|range| range.most_bytes) > highest.map(|range| range.most_bytes) {
                highest = range;
            }
        }
        Ok(highest)
    }
}

impl<'a> SimulatedProgram<'a> {
    pub(super) fn new(
        args: &'a SimulateArgs,
        command: &'a [OsString],
        varied: &'a VariedArgument,
        steps: u32,
        folder: &'a Path,
    ) -> anyhow::Result<Self> {
        let executable = std::env::current_exe().context("cannot find this executable")?;
        Ok(Self { args, command, varied, steps, folder, executable, torch: None, runs: 0 })
    }

    /// Runs the program with a value.
    ///
    /// # Errors
    ///
    /// The program fails for another reason than too little GPU memory, or uses no GPU memory.
    pub(super) fn run(&mut self, value: u64, setting: Option<&str>) -> anyhow::Result<(ValueRun, RunFolder)> {
        self.runs += 1;
        let folder = self.folder.join(self.runs.to_string());
        fs::create_dir(&folder).context("simulate: cannot make a temporary folder")?;
        let command = self.varied.command_with(self.command, value);
        let output = folder.join("output");
        let status = self.start(&command, setting, &folder, &output)?;
        // Without a trace, the program used no GPU memory.
        let traces = find_files(std::slice::from_ref(&folder), TRACES).unwrap_or_default();
        let run_folder = RunFolder { traces, folder };
        let recordings = run_folder.traces.iter().map(|trace| Recording::read(trace));
        let recordings: Vec<Recording> = recordings.collect::<anyhow::Result<_>>()?;
        let run = run_of_recordings(value, &recordings, status.success());
        let text: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let text = escape_text(&text.join(" "));
        if run.fits && !status.success() {
            print_last_output(&output);
            let end = describe_end(status);
            return Err(UsageError(format!("simulate: {text}: {end}, and not for lack of GPU memory")).into());
        }
        if run.peak_allocated_bytes == 0 && run.fits {
            return Err(UsageError(format!("simulate: {text}: PyTorch used no GPU memory")).into());
        }
        let traces = recordings.iter().flat_map(|recording| &recording.report.traces);
        let mut versions = traces.filter_map(|info| TorchVersion::parse(info.torch.as_deref()?).ok());
        self.torch = self.torch.or_else(|| versions.next());
        Ok((run, run_folder))
    }

    fn start(
        &self,
        program: &[OsString],
        setting: Option<&str>,
        folder: &Path,
        output: &Path,
    ) -> anyhow::Result<ExitStatus> {
        let mut command = Command::new(&self.executable);
        command.args(["simulate", "--no-report", "--steps", &self.steps.to_string()]);
        command.args(self.args.options_of_the_gpu());
        command.arg("--output").arg(folder).arg("--").args(program);
        if let Some(setting) = setting {
            let torch = self.torch.map(|version| version.to_string()).unwrap_or_default();
            command.env(alloc_conf_of(&torch), setting);
        }
        let file = File::create(output).context("simulate: cannot write a temporary file")?;
        let error = file.try_clone().context("simulate: cannot write a temporary file")?;
        let status = command.stdin(std::process::Stdio::null()).stdout(file).stderr(error).status();
        status.context("simulate: cannot start gpumemtrace simulate")
    }
}

/// What the trace of one process says.
struct Recording {
    report: Report,
    /// A request of a library such as cuBLAS, which does not use PyTorch's allocator.
    last_refused_request: Option<RefusedRequest>,
}

impl Recording {
    fn read(trace: &Path) -> anyhow::Result<Self> {
        let (file, ring) = TraceSource::find(trace)?;
        let analysis = file.with_input(ring, analyse)?;
        let last_refused_request = analysis.last_refused_request();
        Ok(Self { report: report(&[analysis], &[Section::Oom]), last_refused_request })
    }

    /// The first request that no memory was left for. Libraries may go on without theirs, so their
    /// requests count only if the program failed.
    fn first_failure(&self, has_succeeded: bool) -> Option<FailedRequest> {
        let oom = self.report.oom.iter().flatten().min_by_key(|oom| oom.time_ns);
        let of_pytorch = oom.map(|oom| FailedRequest {
            what: FailedWhat::Block,
            request_bytes: oom.requested_bytes,
            site: Some(oom.site.clone()),
            time_ns: oom.time_ns,
            step: oom.step.unwrap_or(0) as u32,
        });
        let of_library = self.last_refused_request.as_ref().filter(|_| !has_succeeded);
        of_pytorch.or_else(|| {
            of_library.map(|request| FailedRequest {
                what: FailedWhat::Library,
                request_bytes: request.requested_bytes,
                site: Some(request.site.clone()),
                time_ns: request.time_ns,
                step: request.step.unwrap_or(0),
            })
        })
    }
}

/// What all processes of a run needed.
fn run_of_recordings(value: u64, recordings: &[Recording], has_succeeded: bool) -> ValueRun {
    let devices = || recordings.iter().flat_map(|recording| &recording.report.devices);
    let failures = recordings.iter().filter_map(|recording| recording.first_failure(has_succeeded));
    let first_failure = failures.min_by_key(|failure| failure.time_ns);
    let headroom = devices().map(|device| {
        let used = device.peak.device_bytes?.checked_add(device.residual_bytes?)?;
        Some(device.total_bytes?.saturating_sub(used))
    });
    ValueRun {
        value,
        fits: first_failure.is_none(),
        peak_allocated_bytes: devices().filter_map(|device| device.peak.live_bytes).max().unwrap_or(0),
        peak_reserved_bytes: devices().filter_map(|device| device.peak.reserved_bytes).max().unwrap_or(0),
        peak_reserved_range: None,
        headroom_bytes: headroom.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().min()),
        first_failure,
    }
}

fn describe_end(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("failed with exit code {code}"),
        None => "was killed".to_owned(),
    }
}

/// Prints the last lines that the program printed.
fn print_last_output(output: &Path) {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(output)?;
        let bytes = file.metadata()?.len();
        file.seek(SeekFrom::Start(bytes.saturating_sub(SHOWN_OUTPUT_BYTES)))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let is_of_program = |line: &&str| !line.trim().is_empty() && !line.starts_with("gpumemtrace: ");
    let lines: Vec<&str> = text.lines().rev().filter(is_of_program).take(SHOWN_OUTPUT_LINES).collect();
    for line in lines.iter().rev() {
        print_message(format_args!("  {}", escape_text(line)));
    }
}
