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
use std::io::Write;

use serde::Serialize;

use crate::exit::CliExit;
use crate::launch::platform::Platform;
use crate::render::{JsonRenderer, RenderContext, Renderer, TextRenderer, print_document, select_format};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::{ColorChoice, Style};

/// What `doctor` takes.
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
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

/// What `doctor` can print.
static DIAGNOSIS_RENDERERS: &[&dyn Renderer<Diagnosis>] = &[&TextRenderer, &JsonRenderer];

/// All that was found, with the keys of the JSON in the order in which they are printed.
#[derive(Serialize)]
struct Diagnosis {
    checks: Vec<DoctorCheck>,
    schema: &'static str,
    version: u32,
    well: bool,
}

impl Renderer<Diagnosis> for TextRenderer {
    fn render(
        &self,
        diagnosis: &Diagnosis,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        Ok(out.write_all(format_text(&diagnosis.checks, diagnosis.well, context.style).as_bytes())?)
    }
}

/// How one thing is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
enum CheckVerdict {
    /// It works.
    Ok,
    /// Not here, and perhaps not needed.
    Absent,
    /// It does not work; something will not be recorded.
    #[serde(rename = "bad")]
    Failed,
}

impl CheckVerdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Failed => "BAD",
        }
    }
}

/// One thing that was looked at.
#[derive(Serialize, Debug)]
struct DoctorCheck {
    name: String,
    /// What was found; where it is bad, what to do about it.
    says: String,
    verdict: CheckVerdict,
}

impl DoctorCheck {
    fn new(name: impl Into<String>, verdict: CheckVerdict, says: impl Into<String>) -> Self {
        Self { name: name.into(), verdict, says: says.into() }
    }
}

/// Does it.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<CliExit> {
    let mut checks = Vec::new();
    let library = machine::check_library(&mut checks);
    machine::check_output(args.output.as_deref(), &mut checks);
    let has_driver = Platform::HOST == Platform::Linux && gpu::check_driver(&mut checks);
    if Platform::HOST == Platform::Linux {
        gpu::check_nvml(&mut checks);
    } else {
        let says = "there is no CUDA on this system; whether Metal's calls are seen is not tried";
        checks.push(DoctorCheck::new("driver", CheckVerdict::Absent, says));
    }
    if let Some(library) = library {
        if has_driver {
            gpu::check_routes(&library, &mut checks);
        }
        python::check_python(args.python.as_deref(), &library, has_driver, &mut checks);
    }
    let is_well = checks.iter().all(|check| check.verdict != CheckVerdict::Failed);
    let diagnosis = Diagnosis { checks, schema: "gpumemtrace.doctor", version: 1, well: is_well };
    let context = RenderContext::new(Style::for_stdout(ColorChoice::Auto));
    print_document(select_format(DIAGNOSIS_RENDERERS, None, args.json), &diagnosis, &context)?;
    Ok(if is_well { CliExit::Done } else { CliExit::Findings })
}

fn format_text(checks: &[DoctorCheck], is_well: bool, style: Style) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in checks {
        let word = format!("{:<6}", check.verdict.word());
        let word = match check.verdict {
            CheckVerdict::Ok => word,
            CheckVerdict::Absent => style.dim(&word),
            CheckVerdict::Failed => style.warn(&word),
        };
        let _ = writeln!(out, "{word}  {:<width$}  {HANG}{}", check.name, check.says);
    }
    let absent = checks.iter().any(|check| check.verdict == CheckVerdict::Absent);
    let last = match (is_well, absent) {
        (true, false) => "Everything was seen.",
        (true, true) => "What is here was seen.",
        (false, _) => "Something would not be recorded: see the lines marked BAD.",
    };
    let _ = writeln!(out, "{last}");
    layout::finish_text(&out, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_thing_is_what_the_last_line_says() {
        let checks = [
            DoctorCheck::new("library", CheckVerdict::Ok, "found"),
            DoctorCheck::new("dlsym", CheckVerdict::Failed, "not seen"),
        ];
        let text = format_text(&checks, false, Style::PLAIN);
        assert_eq!(
            text,
            "ok      library  found\nBAD     dlsym    not seen\n\
             Something would not be recorded: see the lines marked BAD.\n"
        );
    }
}
