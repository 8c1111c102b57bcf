//! `gpumemtrace doctor`: checks whether this machine can be recorded.
//!
//! A recorder that silently misses half of the allocations is worse than none. Which calls it sees
//! depends on the loader, the driver, the interpreter and the file system. So doctor concludes
//! nothing from versions. It allocates a distinct size on each route to the driver, in a process
//! recorded like a user's. A route passes only if that size is in the trace. All files and
//! processes of the checks are gone afterwards.

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
use crate::render::{
    JsonRenderer, OutputChoice, OutputTable, RenderContext, Renderer, TextRenderer, print_document,
};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::{ColorChoice, Style};

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Python interpreter to check [default: python3 or python on PATH]
    #[arg(long, value_name = "PATH")]
    python: Option<OsString>,
    /// Trace file to check [default: GPUMEMTRACE_OUTPUT or run.trace]
    #[arg(long, short, value_name = "FILE")]
    output: Option<std::path::PathBuf>,
    #[command(flatten)]
    output_choice: OutputChoice<Diagnosis>,
}

impl OutputTable for Diagnosis {
    type Renderer = dyn Renderer<Self>;

    fn rows() -> &'static [&'static Self::Renderer] {
        &[&TextRenderer, &JsonRenderer]
    }
}

/// All checks. The fields are the keys of the JSON, in its order.
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

/// The result of one check.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
enum CheckVerdict {
    Ok,
    /// The component does not exist here, and may not be needed.
    Absent,
    /// Something would not be recorded.
    #[serde(rename = "bad")]
    Failed,
}

impl CheckVerdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Failed => "FAIL",
        }
    }
}

/// One check and its result.
#[derive(Serialize, Debug)]
struct DoctorCheck {
    name: String,
    /// The finding and, if the check failed, what to do.
    says: String,
    verdict: CheckVerdict,
}

impl DoctorCheck {
    fn new(name: impl Into<String>, verdict: CheckVerdict, says: impl Into<String>) -> Self {
        Self { name: name.into(), verdict, says: says.into() }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<CliExit> {
    let mut checks = Vec::new();
    let library = machine::check_library(&mut checks);
    machine::check_output(args.output.as_deref(), &mut checks);
    let has_driver = Platform::HOST == Platform::Linux && gpu::check_driver(&mut checks);
    if Platform::HOST == Platform::Linux {
        gpu::check_nvml(&mut checks);
    } else {
        let says = "no CUDA on macOS; recording of Metal calls is not checked";
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
    print_document(args.output_choice.renderer, &diagnosis, &context)?;
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
    let last = if is_well {
        "All checks passed."
    } else {
        "Some allocations would not be recorded: see the lines marked FAIL."
    };
    let _ = writeln!(out, "{last}");
    layout::finish_text(&out, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_points_at_failed_checks() {
        let checks = [
            DoctorCheck::new("library", CheckVerdict::Ok, "found"),
            DoctorCheck::new("dlsym", CheckVerdict::Failed, "not recorded"),
        ];
        let text = format_text(&checks, false, Style::PLAIN);
        assert_eq!(
            text,
            "ok      library  found\nFAIL    dlsym    not recorded\n\
             Some allocations would not be recorded: see the lines marked FAIL.\n"
        );
        assert!(format_text(&checks[..1], true, Style::PLAIN).ends_with("\nAll checks passed.\n"));
    }
}
