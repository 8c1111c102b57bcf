//! `gpumemtrace simulate`: runs an unmodified PyTorch program on a simulated GPU, recorded.
//!
//! The simulated CUDA libraries are made for the installed PyTorch and preloaded. glibc takes a
//! library that is already loaded for every later request of its name, so they come before NVIDIA's
//! own, and nothing is written into the program's environment.

pub(super) mod address_range;
pub(super) mod card;
mod libraries;
mod torch;
mod vary;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gpumemtrace_format::size_arg::parse_bytes;
use gpumemtrace_whatif::LargestAnswer;

use self::address_range::print_address_ranges;
use self::card::{SimulatedCard, parse_capability};
use self::libraries::{PreparedLibraries, prepare_libraries};
use self::torch::find_torch;
use self::vary::VariedArgument;
use super::run::python_hook::PythonHook;
use super::run::{CommandExtras, RunArgs, program, run_with};
use crate::exit::{CliExit, UsageError};
use crate::launch::platform::Platform;
use crate::render::OutputChoice;
use crate::terminal::stderr::print_message;
use crate::terminal::units::format_bytes;
use crate::trace::many::MAX_TOGETHER;
use crate::user_cache::user_cache;

/// The text of a file of the Python part.
macro_rules! python {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../python/gpumemtrace/_simulation/", $file))
    };
}
const PACKAGE_NAME: &str = "_gpumemtrace_simulation";
const PYTHON_FILES: &[(&str, &str)] = &[
    ("__init__.py", python!("__init__.py")),
    ("collectives.py", python!("collectives.py")),
    ("compilation.py", python!("compilation.py")),
    ("endless_loops.py", python!("endless_loops.py")),
    ("import_hook.py", python!("import_hook.py")),
    ("step_limit.py", python!("step_limit.py")),
    ("triggers.py", python!("triggers.py")),
    ("value_reads.py", python!("value_reads.py")),
];

#[derive(clap::Args)]
pub(crate) struct SimulateArgs {
    /// The card: a name such as H100, or a size such as 24GiB [default: H100]
    #[arg(long, value_name = "NAME|SIZE", value_parser = CardArgument::parse)]
    card: Option<CardArgument>,
    /// Compute capability of a card given as a size, such as 8.6 [default: 9.0]
    #[arg(long, value_name = "X.Y", value_parser = parse_capability)]
    capability: Option<(u32, u32)>,
    /// Number of GPUs that the program sees
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpu_count: u32,
    /// End the program after this many steps of an optimizer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// The largest tensor that is computed, and the largest copy that moves bytes
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_values)]
    values: u64,
    /// Let initializers of large weights on the CPU write nothing [default: where the host has not
    /// enough memory]
    #[arg(long)]
    skip_init: bool,
    /// Do not print the report of the trace at the end
    #[arg(long)]
    no_report: bool,
    /// Find the largest value of the program's argument NAME that the card holds
    ///
    /// The program runs once for each value that is tried, three steps each unless --steps is
    /// given, and keeps no trace. The value replaces {NAME} in the command, or the value of --NAME
    /// or NAME=; otherwise --NAME is added. With FIRST..LAST:STEP, only every STEPth value is
    /// tried.
    #[arg(long, value_name = "NAME=FIRST..LAST", value_parser = VariedArgument::parse, conflicts_with_all = [
        "no_report", "output", "stacks", "depth", "on_full", "memory", "rotate", "max_total_size", "label", "no_torch_details",
        "no_command_line", "holders", "holders_signal", "holders_limit", "html",
    ])]
    vary: Option<VariedArgument>,
    /// With --vary, settings to try in addition to the current ones, in the syntax of
    /// PYTORCH_ALLOC_CONF (repeatable) [default: expandable_segments:True]
    #[arg(long, value_name = "CONF", requires = "vary")]
    alloc_conf: Vec<String>,
    #[command(flatten)]
    output_choice: OutputChoice<LargestAnswer>,
    #[command(flatten)]
    run: RunArgs,
}

/// `--card`, as the user wrote it and as it is understood.
#[derive(Clone)]
struct CardArgument {
    text: String,
    card: SimulatedCard,
}

impl CardArgument {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.to_owned(), card: SimulatedCard::parse(text)? })
    }
}

impl SimulateArgs {
    /// The options that say how the GPU is simulated, for a command like this one.
    fn options_of_the_gpu(&self) -> Vec<String> {
        let mut options =
            vec![format!("--gpu-count={}", self.gpu_count), format!("--values={}", self.values)];
        options.extend(self.card.as_ref().map(|card| format!("--card={}", card.text)));
        options.extend(self.capability.map(|(major, minor)| format!("--capability={major}.{minor}")));
        options.extend(self.skip_init.then(|| "--skip-init".to_owned()));
        options
    }
}

/// True from PyTorch 2.3 on: before, its C interface does not tell the type of a tensor.
fn computes_values(torch_version: &str) -> bool {
    let mut numbers = torch_version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (2, 3)
}

fn parse_values(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected a size such as 64KiB or 16MiB".to_owned())
}

pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<CliExit> {
    if args.vary.is_none() && args.output_choice.is_named {
        return Err(UsageError(
            "simulate: --json needs --vary; gpumemtrace replay --json reads the trace".to_owned(),
        )
        .into());
    }
    if Platform::HOST != Platform::Linux || cfg!(not(target_arch = "x86_64")) {
        return Err(UsageError("simulate: the simulated GPU needs Linux on x86-64".to_owned()).into());
    }
    let mut card = match &args.card {
        Some(argument) => argument.card.clone(),
        None => SimulatedCard::assumed().map_err(UsageError)?,
    };
    if let Some(capability) = args.capability {
        card = card.with_capability(capability).map_err(|why| UsageError(format!("--capability: {why}")))?;
    }
    let here = std::env::current_dir().context("the current directory is gone")?;
    let command = program::resolve_command(&args.run.command, &here);
    if let Some(varied) = &args.vary {
        if args.card.is_none() {
            print_assumed(&card);
        }
        program::name_python(&args.run.command, &command);
        return vary::run(args, varied, card, &command);
    }
    let torch = find_torch(&command, &here)?;
    let libraries = prepare_libraries(&torch)?;
    let python = PythonHook::create(PACKAGE_NAME, PYTHON_FILES)
        .context("simulate: cannot prepare a temporary folder")?;
    let mut variables = card.variables();
    variables.push(("SIMGPU_DEVICES", args.gpu_count.to_string().into()));
    let has_values = computes_values(&torch.wheel.torch_version);
    variables.push(("SIMGPU_VALUES", if has_values { args.values } else { 0 }.to_string().into()));
    variables.push(("SIMGPU_NAME_MISSING", "1".into()));
    if args.skip_init {
        variables.push(("SIMGPU_SKIP_INIT", "1".into()));
    }
    variables.extend(compiler_variables(&libraries));
    if let Some(steps) = args.steps {
        variables.push(("GPUMEMTRACE_SIMULATE_STEPS", steps.to_string().into()));
    }
    let extras =
        CommandExtras { variables, preloaded: preload_list(libraries.files())?, python: Some(python) };
    let count = if args.gpu_count == 1 { String::new() } else { format!("{} x ", args.gpu_count) };
    print_message(format_args!(
        "gpumemtrace: simulating {count}{}, {}, for torch {}; {}",
        card.name,
        format_bytes(card.total_bytes),
        torch.wheel.torch_version,
        if has_values {
            "only small tensors are computed"
        } else {
            "no tensor is computed: that needs torch 2.3"
        }
    ));
    if args.card.is_none() {
        print_assumed(&card);
    }
    let finished = run_with(&args.run, &extras)?;
    if !args.no_report && !finished.traces.is_empty() {
        report(&finished.traces, &here);
        print_address_ranges(&finished.traces, &here);
    }
    Ok(finished.exit)
}

fn print_assumed(card: &SimulatedCard) {
    print_message(format_args!(
        "gpumemtrace: {} is assumed; name your card with --card, such as --card A100 or --card 24GiB",
        card.name
    ));
}

/// Variables of Triton and of PyTorch's compiler. Triton links its launchers with the driver in
/// this folder. Both cache kernels, some of them chosen by their speed, which here means nothing:
/// runs on a GPU must not use them.
fn compiler_variables(libraries: &PreparedLibraries) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> = Vec::new();
    if let Some(folder) = libraries.files().next().and_then(Path::parent) {
        variables.push(("TRITON_LIBCUDA_PATH", folder.into()));
    }
    if let Some(cache) = user_cache("simulated-kernels") {
        variables.push(("TRITON_CACHE_DIR", cache.join("triton").into()));
        variables.push(("TORCHINDUCTOR_CACHE_DIR", cache.join("inductor").into()));
    }
    variables
}

/// Prints the report of the traces. The exit code stays that of the program.
fn report(traces: &[PathBuf], here: &Path) {
    let command = if traces.len() > MAX_TOGETHER { "ranks" } else { "replay" };
    let shown = traces.iter().map(|trace| trace.strip_prefix(here).unwrap_or(trace));
    let started = std::env::current_exe()
        .and_then(|executable| std::process::Command::new(executable).arg(command).args(shown).status());
    if let Err(error) = started {
        print_message(format_args!("gpumemtrace: no report: {error}"));
    }
}

/// The value of `LD_PRELOAD` for these libraries.
fn preload_list<'a>(files: impl Iterator<Item = &'a Path>) -> anyhow::Result<OsString> {
    let mut list = OsString::new();
    for file in files {
        let bytes = file.as_os_str().as_encoded_bytes();
        if bytes.iter().any(|byte| Platform::Linux.separators().contains(byte)) {
            return Err(UsageError(format!(
                "{}: LD_PRELOAD cannot hold a path with a space or a colon; set XDG_CACHE_HOME to another folder",
                file.display()
            ))
            .into());
        }
        if !list.is_empty() {
            list.push(":");
        }
        list.push(file);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    #[test]
    fn vary_refuses_each_option_of_a_recording() {
        let simulate = SimulateArgs::augment_args(clap::Command::new("simulate"));
        let vary = simulate.get_arguments().find(|one| one.get_id() == "vary").unwrap();
        let refused: Vec<_> = simulate.get_arg_conflicts_with(vary).iter().map(|one| one.get_id()).collect();
        let run = RunArgs::augment_args(clap::Command::new("run"));
        let options = run.get_arguments().map(clap::Arg::get_id).filter(|id| *id != "command");
        assert_eq!(options.filter(|id| !refused.contains(id)).count(), 0, "refused: {refused:?}");
    }

    #[test]
    fn every_python_file_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/gpumemtrace/_simulation");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut there: Vec<String> = files
            .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        there.sort();
        let known: Vec<&str> = PYTHON_FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(there, known);
    }

    #[test]
    fn values_are_computed_from_2_3_on() {
        let versions = ["2.15.0+cu132", "2.3.1", "3.0.0a0", "2.2.2+cu121", "1.13.1", "?"];
        assert_eq!(versions.map(computes_values), [true, true, true, false, false, false]);
    }

    #[test]
    fn path_that_the_loader_would_split_is_refused() {
        let list = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            preload_list(paths.iter().map(PathBuf::as_path)).map_err(|error| error.to_string())
        };
        assert_eq!(
            list(&["/a/libcuda.so.1", "/a/libcudart.so.13"]),
            Ok("/a/libcuda.so.1:/a/libcudart.so.13".into())
        );
        assert!(list(&["/my cache/libcuda.so.1"]).unwrap_err().contains("XDG_CACHE_HOME"));
    }
}
