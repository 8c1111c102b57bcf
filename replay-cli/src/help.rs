//! The help of the whole command: an example, and the subcommands in groups, on one screen. And the
//! examples of the subcommands.
//!
//! clap lists subcommands in one group. The test below compares this text with their definitions.

use clap::Command;

/// The heading of the options that many commands have, about how their output looks.
pub(crate) const DISPLAY: &str = "Display";

/// What `gpumemtrace --help` prints.
pub(crate) const HELP: &str = "\
A GPU memory profiler for PyTorch and CUDA

  gpumemtrace run -- python train.py     records a program into run.trace
  gpumemtrace replay run.trace --leaks   finds leaks, with the line

Usage: gpumemtrace <COMMAND> | --help | --version

Record       run            Run a command and record its GPU memory
             simulate       Run a program on a simulated GPU, and record it
Read         replay         Analyse a trace: leaks, peak, timeline, ...
             html           Write an offline page with charts of a trace
             compare        Compare two traces, or two runs rank by rank
             check          Check a trace against a memory budget
Many         ranks          Compare the ranks of a job
             history        Compare the runs of a folder over time
Plan         whatif         Predict other allocator settings, or another card
             fit            Find the smallest card that holds a run
Convert      export         Write a trace in the format of another tool
Trace files  info           Show what a trace contains
             dump           Print every record of a trace as text
             symbolize      Write a copy with the names of native functions
System       doctor         Check whether this machine can be recorded
             serve-metrics  Serve the memory of programs to Prometheus

Also: schema (of JSON reports), completions, man.
`gpumemtrace <COMMAND> --help` has the options, `gpumemtrace man` exit codes.
";

/// A command line of each command, which its help shows before the options. Those of `export` are
/// rows of its table of formats.
const EXAMPLES: &[(&str, &str)] = &[
    ("run", "run -o traces/ -- torchrun --nproc-per-node 8 train.py"),
    ("simulate", "simulate --card A100 --steps 20 -o sim.trace -- python train.py"),
    ("replay", "replay run.trace --leaks --peak"),
    ("html", "html run.trace --open"),
    ("compare", "compare before.trace after.trace --fail-on growth"),
    ("check", "check run.trace --budget gpu-memory.toml --junit gpu-memory.xml"),
    ("ranks", "ranks traces/ --html ranks.html"),
    ("history", "history archive/ --html history.html"),
    ("whatif", "whatif run.trace --card 24GiB --alloc-conf expandable_segments:True"),
    ("fit", "fit run.trace"),
    ("info", "info run.trace --verify"),
    ("dump", "dump run.trace --stacks"),
    ("symbolize", "symbolize run.trace -o named.trace"),
    ("doctor", "doctor --python .venv/bin/python"),
    ("serve-metrics", "serve-metrics traces/ --listen 127.0.0.1:9464"),
    ("schema", "schema report"),
    ("completions", "completions bash"),
    ("man", "man export perfetto | man -l -"),
];

/// Adds the examples to the commands.
pub(crate) fn with_examples(whole: Command) -> Command {
    EXAMPLES.iter().fold(whole, |whole, (name, example)| {
        whole.mut_subcommand(name, |command| {
            let about = command.get_long_about().or_else(|| command.get_about()).cloned().unwrap_or_default();
            command.long_about(format!("{about}\n\n  gpumemtrace {example}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use std::collections::BTreeSet;

    #[test]
    fn help_has_every_command_once_and_fits_one_screen() {
        let command = crate::Cli::command();
        let defined = command.get_subcommands().filter(|command| !command.is_hide_set());
        let defined: BTreeSet<&str> = defined.map(Command::get_name).collect();
        // A column of groups, one of commands, one of what they do.
        let rows = HELP.lines().skip_while(|line| !line.starts_with("Usage")).skip(2);
        let rows = rows.take_while(|line| !line.is_empty());
        let rows: Vec<&str> = rows.filter_map(|line| line[13..].split_whitespace().next()).collect();
        let others = HELP.lines().find_map(|line| line.strip_prefix("Also: ")).unwrap();
        let others = others.trim_end_matches('.').split(", ").filter_map(|words| words.split(' ').next());
        let shown: Vec<&str> = rows.into_iter().chain(others).collect();
        assert_eq!(shown.iter().copied().collect::<BTreeSet<_>>(), defined);
        assert_eq!(shown.len(), defined.len());
        assert!(HELP.lines().count() <= 30 && HELP.lines().all(|line| line.len() < 80));
    }

    #[test]
    fn every_command_has_an_example_that_it_accepts() {
        let whole = with_examples(crate::Cli::command());
        let commands = whole.get_subcommands().filter(|command| !command.is_hide_set());
        let names: BTreeSet<&str> =
            commands.map(Command::get_name).filter(|name| *name != "export").collect();
        assert_eq!(EXAMPLES.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), names);
        for (name, example) in EXAMPLES {
            let words = example.split(' ').take_while(|word| *word != "|");
            let parsed = whole.clone().try_get_matches_from(std::iter::once("gpumemtrace").chain(words));
            assert_eq!(parsed.expect(example).subcommand_name(), Some(*name));
        }
    }
}
