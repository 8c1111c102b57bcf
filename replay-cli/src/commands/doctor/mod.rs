//! `gpumemtrace doctor`: what would be recorded on this machine, and the proof.
//!
//! Constraint: a tool that silently sees half of the allocations is worse than none, and what it can see depends on the
//! machine: the loader, the driver, the interpreter, the file system. Consequence: nothing is concluded from versions alone.
//! Each way to the driver is tried with an allocation of its own size, in a process traced as a user's would be, and counts as
//! seen only if that size is in the trace. Files and processes made for this are gone afterwards.

mod gpu;
mod live_test;
mod machine;
pub(crate) mod probe;
mod python;

use std::ffi::OsString;
use std::fmt::Write as _;

use serde_json::json;

use crate::exit::Exit;
use crate::launch::platform::System;
use crate::terminal::layout::{self, HANG};
use crate::terminal::style::{self as output, Color, Style};

/// What `doctor` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The interpreter that will run the program [default: python3, then python, from the PATH]
    #[arg(long, value_name = "PATH")]
    python: Option<OsString>,
    /// Where the trace will go [default: as the recorder would choose it]
    #[arg(long, short, value_name = "FILE")]
    output: Option<std::path::PathBuf>,
    /// One JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
}

/// How one thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It works.
    Well,
    /// Not here, and perhaps not needed.
    Absent,
    /// It does not work; something will not be recorded.
    Bad,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Absent => "absent",
            Self::Bad => "BAD",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
struct Check {
    name: String,
    verdict: Verdict,
    /// What was found; where it is bad, what to do about it.
    says: String,
}

impl Check {
    fn new(name: impl Into<String>, verdict: Verdict, says: impl Into<String>) -> Self {
        Self { name: name.into(), verdict, says: says.into() }
    }
}

/// Does it.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut checks = Vec::new();
    let library = machine::library(&mut checks);
    machine::output(args.output.as_deref(), &mut checks);
    let has_driver = System::HERE == System::Linux && gpu::driver(&mut checks);
    if System::HERE == System::Linux {
        gpu::nvml(&mut checks);
    } else {
        let says = "there is no CUDA on this system; whether Metal's calls are seen is not tried";
        checks.push(Check::new("driver", Verdict::Absent, says));
    }
    if let Some(library) = library {
        if has_driver {
            gpu::routes(&library, &mut checks);
        }
        python::check(args.python.as_deref(), &library, has_driver, &mut checks);
    }
    let is_well = checks.iter().all(|check| check.verdict != Verdict::Bad);
    let text = if args.json {
        as_json(&checks, is_well)
    } else {
        as_text(&checks, is_well, Style::of_stdout(Color::Auto))
    };
    output::print(&text)?;
    Ok(if is_well { Exit::Done } else { Exit::Findings })
}

fn as_json(checks: &[Check], is_well: bool) -> String {
    let checks: Vec<_> = checks
        .iter()
        .map(|check| json!({ "name": check.name, "verdict": check.verdict.word().to_lowercase(), "says": check.says }))
        .collect();
    format!(
        "{:#}\n",
        json!({ "schema": "gpumemtrace.doctor", "version": 1, "well": is_well, "checks": checks })
    )
}

fn as_text(checks: &[Check], is_well: bool, style: Style) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in checks {
        let word = format!("{:<6}", check.verdict.word());
        let word = match check.verdict {
            Verdict::Well => word,
            Verdict::Absent => style.dim(&word),
            Verdict::Bad => style.warn(&word),
        };
        let _ = writeln!(out, "{word}  {:<width$}  {HANG}{}", check.name, check.says);
    }
    let absent = checks.iter().any(|check| check.verdict == Verdict::Absent);
    let last = match (is_well, absent) {
        (true, false) => "Everything was seen.",
        (true, true) => "What is here was seen.",
        (false, _) => "Something would not be recorded: see the lines marked BAD.",
    };
    let _ = writeln!(out, "{last}");
    layout::finish(&out, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_thing_is_what_the_last_line_says() {
        let checks =
            [Check::new("library", Verdict::Well, "found"), Check::new("dlsym", Verdict::Bad, "not seen")];
        let text = as_text(&checks, false, Style::PLAIN);
        assert_eq!(
            text,
            "ok      library  found\nBAD     dlsym    not seen\n\
             Something would not be recorded: see the lines marked BAD.\n"
        );
    }
}
