//! The `gpumemtrace` command: parses the line, calls one function per command, turns its answer into an exit code.
//!
//! Constraint: people and scripts read the result. Consequence: stdout holds the report and nothing else, stderr at most a
//! few sentences, and the exit code says what happened (see [`exit`]).
#![deny(unsafe_code)]
#![allow(clippy::print_stderr)] // The command's own messages; stdout goes through one writer.

mod commands;
mod exit;
mod follow;
mod launch;
mod render;
mod terminal;
mod trace;

use clap::{Parser, Subcommand};

use crate::exit::CliExit;

/// See every GPU memory allocation of a program, and the line that made it.
///
/// Record with `gpumemtrace run -- python train.py` (or `LD_PRELOAD=libgpumemtrace.so python train.py`),
/// then ask: `gpumemtrace replay run.trace --leaks`.
#[derive(Parser)]
#[command(name = "gpumemtrace", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 internal error, 2 wrong usage, 3 findings (with --fail-on; always with doctor), 4 budget \
exceeded, 5 unreadable input, 6 read but incomplete, 130 interrupted. `run` exits like the command it runs.";

#[derive(Subcommand)]
enum Command {
    /// Turn a trace into answers: leaks, peak, timeline, fragmentation, out-of-memory.
    Replay(commands::replay::ReplayArgs),
    /// Say what one run needs more or less than another: by line, by step and as a whole.
    Compare(commands::compare::CompareArgs),
    /// Hold a trace against budgets: peaks, gap, leaks, steps and lines.
    Check(commands::check::CheckArgs),
    /// Say what a trace is: who was traced, how it ended, what is in it.
    Info(commands::info::InfoArgs),
    /// Print every record as text, in order.
    Dump(commands::dump::DumpArgs),
    /// Write a copy of a trace that carries the names of native functions, for another machine.
    Symbolize(commands::symbolize::SymbolizeArgs),
    /// Run a command and record its GPU memory.
    Run(commands::run::RunArgs),
    /// Say what would be recorded on this machine, and prove it.
    Doctor(commands::doctor::DoctorArgs),
    /// Print completions for a shell.
    Completions(commands::shell::CompletionsArgs),
    /// Print the manual page.
    Man(commands::shell::ManArgs),
    #[command(name = "suspects", hide = true)]
    LeakCandidates(commands::leak_candidates::LeakCandidatesArgs),
    #[command(hide = true)]
    DoctorProbe(commands::doctor::probe::ProbeArgs),
}

fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, and a reader that has gone away is no reason to complain.
            let _ = error.print();
            return if error.use_stderr() { CliExit::Usage } else { CliExit::Done }.into();
        }
    };
    let result = match cli.command {
        Command::Replay(args) => commands::replay::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Dump(args) => commands::dump::run(&args),
        Command::Symbolize(args) => commands::symbolize::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Completions(args) => commands::shell::completions::<Cli>(&args),
        Command::Man(args) => commands::shell::man::<Cli>(&args),
        Command::LeakCandidates(args) => commands::leak_candidates::run(&args),
        Command::DoctorProbe(args) => commands::doctor::probe::run(&args),
    };
    result.unwrap_or_else(|error| exit::report_error(&error)).into()
}
