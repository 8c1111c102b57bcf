//! The interpreter, and PyTorch in it: a few allocations whose lines and numbers are known beforehand.

use std::ffi::OsStr;
use std::path::Path;

use gpumemtrace_format::{EventKind, TrackerState};
use serde_json::Value;

use super::live_test::{Left, Trace, run};
use super::{Check, Verdict};
use crate::launch::platform::System;

const SCRIPT: &str = include_str!("probe.py");

/// Runs the script and compares what it says with what was recorded.
pub(super) fn check(python: Option<&OsStr>, library: &Path, has_driver: bool, checks: &mut Vec<Check>) {
    let candidates = match python {
        Some(python) => vec![python.to_owned()],
        None => vec!["python3".into(), "python".into()],
    };
    let mut failures = Vec::new();
    for candidate in candidates {
        match ask(library, &candidate, "torch") {
            Ok(torch) => {
                // Without PyTorch the frames can still be checked, if there is a driver to call.
                let alone = if has_driver { ask(library, &candidate, "driver") } else { Err(String::new()) };
                let best =
                    alone.as_ref().ok().filter(|probe| probe.facts["frames"].is_array()).unwrap_or(&torch);
                checks.extend(complaints(best));
                checks.push(judge_frames(best));
                judge_torch(&torch, checks);
                return;
            }
            Err(why) => failures.push(format!("{}: {why}", candidate.to_string_lossy())),
        }
    }
    let verdict = if python.is_some() { Verdict::Bad } else { Verdict::Absent };
    let says = format!("{}; give the interpreter with --python", failures.join("; "));
    checks.push(Check::new("Python", verdict, says));
}

/// What the script said, and what it left.
struct Probe {
    facts: Value,
    left: Left,
}

fn ask(library: &Path, python: &OsStr, what: &str) -> Result<Probe, String> {
    let arguments = [OsStr::new("-c"), OsStr::new(SCRIPT), OsStr::new(what)];
    let left = run(library, python, &arguments).map_err(|error| format!("{error:#}"))?;
    match serde_json::from_str(left.stdout.lines().last().unwrap_or_default()) {
        Ok(facts) => Ok(Probe { facts, left }),
        Err(_) => Err(left.stderr.lines().last().unwrap_or("it said nothing").to_owned()),
    }
}

fn complaints(probe: &Probe) -> impl Iterator<Item = Check> {
    let lines = probe.left.stderr.lines().filter_map(|line| line.strip_prefix("gpumemtrace: "));
    lines.map(|line| Check::new("recorder", Verdict::Bad, line))
}

fn judge_frames(probe: &Probe) -> Check {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let version = format!("{} ({})", text(&probe.facts["version"]), text(&probe.facts["executable"]));
    match (&probe.left.trace, probe.facts["frames"].as_array()) {
        (Some(trace), Some(frames)) => match same_frames(trace, frames) {
            Ok(()) => Check::new(
                "Python",
                Verdict::Well,
                format!("{version}: call sites are the interpreter's own"),
            ),
            Err(why) => Check::new("Python", Verdict::Bad, format!("{version}: {why}")),
        },
        (None, Some(_)) => {
            Check::new("Python", Verdict::Bad, format!("{version}: its allocation left no trace"))
        }
        (_, None) => {
            let why = "nothing here that it could allocate from, so its call sites could not be tried";
            Check::new("Python", Verdict::Absent, format!("{version}: {why}"))
        }
    }
}

fn judge_torch(probe: &Probe, checks: &mut Vec<Check>) {
    let torch = &probe.facts["torch"];
    let Some(name) = torch["version"].as_str() else {
        let check = match probe.facts["error"].as_str() {
            Some(error) => Check::new("PyTorch", Verdict::Bad, format!("it cannot be imported: {error}")),
            None => Check::new("PyTorch", Verdict::Absent, "not installed for this interpreter"),
        };
        checks.push(check);
        return;
    };
    let cuda = torch["cuda"].as_str();
    let Some(expected) = torch["allocations"].as_u64() else {
        let why = match (cuda, probe.facts["error"].as_str()) {
            (None, _) if System::HERE == System::MacOs => "what it has of Metal is not tried".to_owned(),
            (None, _) => "it is built without CUDA".to_owned(),
            (Some(_), Some(error)) => error.to_owned(),
            (Some(cuda), None) => format!("built for CUDA {cuda}, and it finds no device"),
        };
        checks.push(Check::new("PyTorch", Verdict::Absent, format!("{name}: {why}")));
        return;
    };
    let trace = probe.left.trace.as_ref();
    let events = trace.map(|trace| trace.events.as_slice()).unwrap_or_default();
    let seen = events.iter().filter(|event| event.kind == EventKind::BLOCK_ALLOC).count() as u64;
    let verdict = if seen == expected { Verdict::Well } else { Verdict::Bad };
    let says = format!("{name} for CUDA {}: {seen} of {expected} blocks seen", cuda.unwrap_or("unknown"));
    checks.push(Check::new("PyTorch", verdict, says));
    checks.extend(trace.and_then(judge_tracker));
    checks.extend(trace.map(judge_coverage));
    if let Some(runtime) = trace.and_then(|trace| trace.meta.text("cuda_runtime")) {
        checks.push(Check::new("CUDA runtime", Verdict::Well, format!("libcudart {runtime}")));
    }
}

/// How far PyTorch's own tracker is of help.
fn judge_tracker(trace: &Trace) -> Option<Check> {
    let state = trace.events.iter().rev().find(|event| event.kind == EventKind::TRACKER)?;
    Some(match TrackerState::from_number(state.aux[0]) {
        Some(TrackerState::Attached) => Check::new(
            "PyTorch's tracker",
            Verdict::Well,
            "attached: requested sizes, streams, pools and segments are recorded",
        ),
        state => Check::new(
            "PyTorch's tracker",
            Verdict::Absent,
            format!(
                "not attached ({}): blocks are recorded without what they asked for",
                state.map_or("unknown", TrackerState::name)
            ),
        ),
    })
}

/// Whether PyTorch called functions that allocate and are not recorded.
fn judge_coverage(trace: &Trace) -> Check {
    if trace.uncovered_calls == 0 {
        return Check::new("coverage", Verdict::Well, "no call of PyTorch's that allocates went unrecorded");
    }
    let names = trace.meta.list("uncovered").join(", ");
    let says = format!("{} calls that allocate went unrecorded: {names}", trace.uncovered_calls);
    Check::new("coverage", Verdict::Bad, says)
}

/// Compares the innermost frames of the probe's allocation with the traceback that the interpreter gave.
fn same_frames(trace: &Trace, frames: &[Value]) -> Result<(), String> {
    let report = trace.report.as_ref().ok_or("its trace could not be replayed")?;
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
        Some(found) => format!("call sites differ: recorded {found:?}, the interpreter says {expected:?}"),
    })
}
