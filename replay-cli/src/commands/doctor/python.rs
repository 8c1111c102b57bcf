//! Checks the interpreter and its PyTorch: allocations with known call sites and counts.

use std::ffi::OsStr;
use std::path::Path;

use gpumemtrace_format::{EventKind, TrackerState};
use serde_json::Value;

use super::live_test::{LiveTestResult, LiveTestTrace, run_live_test};
use super::{CheckVerdict, DoctorCheck};
use crate::launch::platform::Platform;
use crate::terminal::escape::escape_text;

const SCRIPT: &str = include_str!("probe.py");

/// Runs the probe script and compares its output with the trace.
pub(super) fn check_python(
    python: Option<&OsStr>,
    library: &Path,
    has_driver: bool,
    checks: &mut Vec<DoctorCheck>,
) {
    let candidates = match python {
        Some(python) => vec![python.to_owned()],
        None => vec!["python3".into(), "python".into()],
    };
    let mut failures = Vec::new();
    for candidate in candidates {
        match run_python_probe(library, &candidate, "torch") {
            Ok(torch) => {
                // Without PyTorch, an allocation through ctypes still checks the frames.
                let alone = if has_driver {
                    run_python_probe(library, &candidate, "driver")
                } else {
                    Err(String::new())
                };
                let best =
                    alone.as_ref().ok().filter(|probe| probe.facts["frames"].is_array()).unwrap_or(&torch);
                checks.extend(recorder_warnings(best));
                checks.extend(best.left.sanitizer.as_deref().map(describe_sanitizer));
                checks.push(judge_frames(best));
                judge_torch(&torch, checks);
                return;
            }
            Err(why) => failures.push(format!("{}: {why}", escape_text(&candidate.to_string_lossy()))),
        }
    }
    let verdict = if python.is_some() { CheckVerdict::Failed } else { CheckVerdict::Absent };
    let says = format!("{}; name the interpreter with --python", failures.join("; "));
    checks.push(DoctorCheck::new("Python", verdict, says));
}

/// The facts that the script printed, and its trace.
struct PythonProbe {
    facts: Value,
    left: LiveTestResult,
}

fn run_python_probe(library: &Path, python: &OsStr, what: &str) -> Result<PythonProbe, String> {
    let arguments = [OsStr::new("-c"), OsStr::new(SCRIPT), OsStr::new(what)];
    let left = run_live_test(library, python, &arguments).map_err(|error| format!("{error:#}"))?;
    match serde_json::from_str(left.stdout.lines().last().unwrap_or_default()) {
        Ok(facts) => Ok(PythonProbe { facts, left }),
        Err(_) => Err(left.stderr.lines().last().unwrap_or("the interpreter printed nothing").to_owned()),
    }
}

fn recorder_warnings(probe: &PythonProbe) -> impl Iterator<Item = DoctorCheck> {
    let lines = probe.left.stderr.lines().filter_map(|line| line.strip_prefix("gpumemtrace: "));
    lines.map(|line| DoctorCheck::new("recorder", CheckVerdict::Failed, line))
}

fn describe_sanitizer(runtime: &str) -> DoctorCheck {
    let says = format!(
        "{} comes before the recorder, as it must; with LD_PRELOAD instead of gpumemtrace run, name it first",
        escape_text(runtime)
    );
    DoctorCheck::new("sanitizer", CheckVerdict::Ok, says)
}

fn judge_frames(probe: &PythonProbe) -> DoctorCheck {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let version = format!("{} ({})", text(&probe.facts["version"]), text(&probe.facts["executable"]));
    match (&probe.left.trace, probe.facts["frames"].as_array()) {
        (Some(trace), Some(frames)) => match compare_frames(trace, frames) {
            Ok(()) => DoctorCheck::new(
                "Python",
                CheckVerdict::Ok,
                format!("{version}: recorded call sites match the interpreter's"),
            ),
            Err(why) => DoctorCheck::new("Python", CheckVerdict::Failed, format!("{version}: {why}")),
        },
        (None, Some(_)) => DoctorCheck::new(
            "Python",
            CheckVerdict::Failed,
            format!("{version}: its allocation was not recorded"),
        ),
        (_, None) => {
            let why = "call sites not checked, because there is neither a driver nor PyTorch";
            DoctorCheck::new("Python", CheckVerdict::Absent, format!("{version}: {why}"))
        }
    }
}

fn judge_torch(probe: &PythonProbe, checks: &mut Vec<DoctorCheck>) {
    let torch = &probe.facts["torch"];
    let Some(name) = torch["version"].as_str() else {
        let check = match probe.facts["error"].as_str() {
            Some(error) => {
                DoctorCheck::new("PyTorch", CheckVerdict::Failed, format!("import torch failed: {error}"))
            }
            None => DoctorCheck::new("PyTorch", CheckVerdict::Absent, "not installed for this interpreter"),
        };
        checks.push(check);
        return;
    };
    let cuda = torch["cuda"].as_str();
    let Some(expected) = torch["allocations"].as_u64() else {
        let why = match (cuda, probe.facts["error"].as_str()) {
            (None, _) if Platform::HOST == Platform::MacOs => "Metal is not checked".to_owned(),
            (None, _) => "built without CUDA".to_owned(),
            (Some(_), Some(error)) => error.to_owned(),
            (Some(cuda), None) => format!("built for CUDA {cuda}, finds no GPU"),
        };
        checks.push(DoctorCheck::new("PyTorch", CheckVerdict::Absent, format!("{name}: {why}")));
        return;
    };
    let trace = probe.left.trace.as_ref();
    let events = trace.map(|trace| trace.events.as_slice()).unwrap_or_default();
    let recorded = events.iter().filter(|event| event.kind == EventKind::BLOCK_ALLOC).count() as u64;
    let verdict = if recorded == expected { CheckVerdict::Ok } else { CheckVerdict::Failed };
    let says =
        format!("{name} for CUDA {}: {recorded} of {expected} blocks recorded", cuda.unwrap_or("unknown"));
    checks.push(DoctorCheck::new("PyTorch", verdict, says));
    checks.extend(trace.and_then(judge_tracker));
    checks.extend(trace.map(judge_coverage));
    if let Some(runtime) = trace.and_then(|trace| trace.meta.text("cuda_runtime")) {
        checks.push(DoctorCheck::new("CUDA runtime", CheckVerdict::Ok, format!("libcudart {runtime}")));
    }
}

/// Checks whether PyTorch's trace tracker was attached; `None` if the trace has no such event.
fn judge_tracker(trace: &LiveTestTrace) -> Option<DoctorCheck> {
    let state = trace.events.iter().rev().find(|event| event.kind == EventKind::TRACKER)?;
    Some(match TrackerState::from_number(state.aux[0]) {
        Some(TrackerState::Attached) => DoctorCheck::new(
            "PyTorch's tracker",
            CheckVerdict::Ok,
            "attached: requested sizes, streams, pools and segments are recorded",
        ),
        state => DoctorCheck::new(
            "PyTorch's tracker",
            CheckVerdict::Absent,
            format!(
                "not attached ({}): requested sizes, streams, pools and segments are not recorded",
                state.map_or("unknown", TrackerState::name)
            ),
        ),
    })
}

/// Checks whether PyTorch called allocating functions that are not recorded.
fn judge_coverage(trace: &LiveTestTrace) -> DoctorCheck {
    if trace.uncovered_calls == 0 {
        return DoctorCheck::new(
            "coverage",
            CheckVerdict::Ok,
            "every allocating driver call of PyTorch was recorded",
        );
    }
    let names = trace.meta.list("uncovered").join(", ");
    let says = format!("{} allocating driver calls were not recorded: {names}", trace.uncovered_calls);
    DoctorCheck::new("coverage", CheckVerdict::Failed, says)
}

/// Compares the recorded stack of the probe's allocation with the interpreter's own frames.
fn compare_frames(trace: &LiveTestTrace, frames: &[Value]) -> Result<(), String> {
    let report = trace.report.as_ref().ok_or("gpumemtrace replay failed on its trace")?;
    let sites = report["peak"].as_array().into_iter().flatten();
    let sites = sites.flat_map(|peak| peak["sites"].as_array().into_iter().flatten());
    let expected: Vec<(String, u64)> = frames
        .iter()
        .map(|frame| (frame[0].as_str().unwrap_or_default().to_owned(), frame[1].as_u64().unwrap_or(0)))
        .collect();
    let mut nearest = None;
    for site in sites {
        let stack = site["site"]["stack"].as_array().into_iter().flatten();
        let found: Vec<(String, u64)> = stack
            .filter(|frame| frame["kind"] == "python")
            .map(|frame| {
                let name = frame["function"].as_str().unwrap_or_default();
                (name.rsplit('.').next().unwrap_or(name).to_owned(), frame["line"].as_u64().unwrap_or(0))
            })
            .collect();
        if found == expected {
            return Ok(());
        }
        nearest = nearest.or(Some(found));
    }
    Err(match nearest {
        None => "no call site was recorded".to_owned(),
        Some(found) => format!("call sites differ: recorded {found:?}, expected {expected:?}"),
    })
}
