//! The `gpumemtrace` command: parses the command line and calls one function per subcommand.
//!
//! Stdout holds only the report, stderr at most a few sentences. The exit code says how the command
//! ended (see `exit.rs`).
//!
//! It is a library because other crates use parts of it. Programs that write a format with
//! dependencies of their own use [`export`]; the fuzzers use the readers of untrusted files.
#![deny(unsafe_code)]

mod commands;
mod exit;
pub mod export;
mod follow;
mod help;
#[doc(hidden)]
pub mod launch;
mod metrics;
mod page;
mod render;
mod source;
#[doc(hidden)]
pub mod symbolize;
mod terminal;
mod trace;
mod user_cache;

use std::process::ExitCode;

pub use commands::export::folder::run_folder_exporter;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::exit::CliExit;
use crate::terminal::stderr::print_usage_error;

/// A GPU memory profiler for PyTorch and CUDA
///
/// Record a program with `gpumemtrace run -- python train.py`, then analyse its trace with
/// `gpumemtrace replay run.trace --leaks`.
#[derive(Parser)]
#[command(name = "gpumemtrace", version, arg_required_else_help = true, override_help = help::HELP, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    internal error
  2    wrong usage
  3    findings: what --fail-on names, an exceeded budget, or a failed check of doctor
  5    unreadable input
  6    incomplete trace
  130  interrupted
`run` and `simulate` exit with the exit code of the command they run.";

#[derive(Subcommand)]
enum Command {
    /// Analyse a trace: leaks, peak, timeline, fragmentation, out of memory
    Replay(commands::replay::ReplayArgs),
    #[command(about = "Compare two traces")]
    Compare(commands::compare::CompareArgs),
    /// Predict a run with other allocator settings, or on another card
    #[command(name = "whatif")]
    WhatIf(commands::whatif::WhatIfArgs),
    /// Find the smallest card that holds a run
    Fit(commands::fit::FitArgs),
    /// Check a trace against a memory budget
    Check(commands::check::CheckArgs),
    /// Compare the ranks of a job: any number of traces, or their summaries
    Ranks(commands::ranks::RanksArgs),
    /// Compare the runs of a folder over time: peaks, findings, and what grew between versions
    History(commands::history::HistoryArgs),
    /// Write an offline page with charts of a trace
    Html(commands::html::HtmlArgs),
    /// Write a trace in the format of another tool
    Export(commands::export::ExportArgs),
    /// Show what a trace contains
    Info(commands::info::InfoArgs),
    /// Print every record of a trace as text
    Dump(commands::dump::DumpArgs),
    /// Write a copy of a trace with the names of native functions
    Symbolize(commands::symbolize::SymbolizeArgs),
    /// Run a command and record its GPU memory
    Run(commands::run::RunArgs),
    /// Run a PyTorch program on a simulated GPU, and record its memory
    Simulate(commands::simulate::SimulateArgs),
    /// Serve the memory of running programs to Prometheus
    ServeMetrics(commands::serve_metrics::ServeMetricsArgs),
    /// Check whether this machine can be recorded
    Doctor(commands::doctor::DoctorArgs),
    /// Print the JSON Schema of a report
    Schema(commands::schema::SchemaArgs),
    /// Print completions for a shell
    Completions(commands::shell::CompletionsArgs),
    /// Print a manual page
    Man(commands::shell::ManArgs),
    #[command(hide = true)]
    LeakCandidates(commands::leak_candidates::LeakCandidatesArgs),
    #[command(hide = true)]
    DoctorProbe(commands::doctor::probe::ProbeArgs),
}

/// The definition of the command line, with the examples of its help.
fn command_line() -> clap::Command {
    help::with_examples(Cli::command())
}

/// Runs the command with the arguments of the process.
pub fn run_command() -> ExitCode {
    let parsed = command_line().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version arrive here too. A closed stdout is not an error.
            print_usage_error(command_line(), &error);
            return if error.use_stderr() { CliExit::Usage } else { CliExit::Done }.into();
        }
    };
    let result = match cli.command {
        Command::Replay(args) => commands::replay::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::WhatIf(args) => commands::whatif::run(&args),
        Command::Fit(args) => commands::fit::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::History(args) => commands::history::run(&args),
        Command::Ranks(args) => commands::ranks::run(&args),
        Command::Html(args) => commands::html::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Dump(args) => commands::dump::run(&args),
        Command::Symbolize(args) => commands::symbolize::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::ServeMetrics(args) => commands::serve_metrics::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Schema(args) => commands::schema::run(&args),
        Command::Completions(args) => commands::shell::completions(&args, command_line()),
        Command::Man(args) => commands::shell::man(&args, command_line()),
        Command::LeakCandidates(args) => commands::leak_candidates::run(&args),
        Command::DoctorProbe(args) => commands::doctor::probe::run(&args),
    };
    result.unwrap_or_else(|error| exit::report_error(&error)).into()
}
