//! The driver, and every way to it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpumemtrace_format::EventKind;

use super::live_test::{Left, output_within, run};
use super::probe::ROUTES;
use super::{Check, Verdict};

/// Asks a process of its own: a broken driver must not take this one with it.
fn ask(what: &str) -> Result<String, String> {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    command.args(["doctor-probe", what]);
    let output = output_within(command, Duration::from_mins(1)).map_err(|error| format!("{error:#}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match (output.status.success(), text.is_empty()) {
        (true, _) => Ok(text),
        (false, false) => Err(text),
        (false, true) => Err(format!("asking it ended with {}", output.status)),
    }
}

/// Says what driver there is; true if it can be used.
pub(super) fn driver(checks: &mut Vec<Check>) -> bool {
    let (verdict, says) = match ask("driver") {
        Ok(says) => (Verdict::Well, says),
        Err(why) => (Verdict::Absent, format!("{why}; on a machine without a GPU that is all right")),
    };
    checks.push(Check::new("driver", verdict, says));
    verdict == Verdict::Well
}

/// Says whether NVML is there.
pub(super) fn nvml(checks: &mut Vec<Check>) {
    let (verdict, says) = match ask("nvml") {
        Ok(says) => (Verdict::Well, says),
        Err(why) => (Verdict::Absent, format!("{why}; on a machine without a GPU that is all right")),
    };
    checks.push(Check::new("NVML", verdict, says));
}

/// Allocates through each route in a traced process, and looks for each in the trace.
pub(super) fn routes(library: &Path, checks: &mut Vec<Check>) {
    let me = std::env::current_exe().unwrap_or_default();
    let arguments = [OsStr::new("doctor-probe"), OsStr::new("routes")];
    match run(library, me.as_os_str(), &arguments) {
        Ok(left) => judge_routes(&left, checks),
        Err(error) => checks.push(Check::new("routes", Verdict::Bad, format!("{error:#}"))),
    }
}

fn judge_routes(left: &Left, checks: &mut Vec<Check>) {
    for line in left.stderr.lines().filter(|line| line.starts_with("gpumemtrace:")) {
        checks.push(Check::new("recorder", Verdict::Bad, line.trim_start_matches("gpumemtrace: ")));
    }
    for route in ROUTES {
        let name = format!("route {}", route.name);
        let Some(outcome) =
            left.stdout.lines().find_map(|line| line.strip_prefix(route.key)?.strip_prefix(' '))
        else {
            let why =
                format!("the probe did not get that far{}", if left.succeeded { "" } else { ": it failed" });
            checks.push(Check::new(name, Verdict::Bad, why));
            continue;
        };
        if outcome != "0" {
            checks.push(Check::new(name, Verdict::Absent, format!("cannot be tried here ({outcome})")));
            continue;
        }
        let events = left.trace.as_ref().map(|trace| trace.events.as_slice()).unwrap_or_default();
        let allocated = events.iter().find(|event| {
            event.kind == EventKind::DEVICE_ALLOC && event.size == route.size_bytes && event.result == 0
        });
        let freed = allocated.is_some_and(|alloc| {
            events.iter().any(|event| {
                event.kind == EventKind::DEVICE_FREE && event.addr == alloc.addr && event.seq > alloc.seq
            })
        });
        checks.push(match (allocated.is_some(), freed) {
            (true, true) => Check::new(name, Verdict::Well, "seen"),
            (true, false) => Check::new(name, Verdict::Bad, "the allocation was seen, its free was not"),
            (false, _) => {
                Check::new(name, Verdict::Bad, "NOT seen: allocations made this way would be missing")
            }
        });
    }
}
