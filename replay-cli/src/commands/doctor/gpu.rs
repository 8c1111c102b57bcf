//! Checks of the driver, and of every route to its functions.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpumemtrace_format::EventKind;

use super::live_test::{LiveTestResult, output_with_timeout, run_live_test};
use super::probe::DRIVER_ROUTES;
use super::{CheckVerdict, DoctorCheck};

/// Runs `doctor-probe` in a process of its own, because a broken driver may crash it.
fn run_probe(what: &str) -> Result<String, String> {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    command.args(["doctor-probe", what]);
    let output =
        output_with_timeout(command, Duration::from_mins(1)).map_err(|error| format!("{error:#}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match (output.status.success(), text.is_empty()) {
        (true, _) => Ok(text),
        (false, false) => Err(text),
        (false, true) => Err(format!("the probe ended with {}", output.status)),
    }
}

/// Names the driver and its GPUs; true if the driver works.
pub(super) fn check_driver(checks: &mut Vec<DoctorCheck>) -> bool {
    let (verdict, says) = match run_probe("driver") {
        Ok(says) => (CheckVerdict::Ok, says),
        Err(why) => (CheckVerdict::Absent, format!("{why} (expected on a machine without a GPU)")),
    };
    checks.push(DoctorCheck::new("driver", verdict, says));
    verdict == CheckVerdict::Ok
}

/// Checks whether NVML can be loaded and initialised.
pub(super) fn check_nvml(checks: &mut Vec<DoctorCheck>) {
    let (verdict, says) = match run_probe("nvml") {
        Ok(says) => (CheckVerdict::Ok, says),
        Err(why) => (CheckVerdict::Absent, format!("{why} (expected on a machine without a GPU)")),
    };
    checks.push(DoctorCheck::new("NVML", verdict, says));
}

/// Allocates on each route in a recorded process, and looks for each allocation in the trace.
pub(super) fn check_routes(library: &Path, checks: &mut Vec<DoctorCheck>) {
    let me = std::env::current_exe().unwrap_or_default();
    let arguments = [OsStr::new("doctor-probe"), OsStr::new("routes")];
    match run_live_test(library, me.as_os_str(), &arguments) {
        Ok(left) => judge_routes(&left, checks),
        Err(error) => checks.push(DoctorCheck::new("routes", CheckVerdict::Failed, format!("{error:#}"))),
    }
}

fn judge_routes(left: &LiveTestResult, checks: &mut Vec<DoctorCheck>) {
    for line in left.stderr.lines().filter(|line| line.starts_with("gpumemtrace:")) {
        checks.push(DoctorCheck::new(
            "recorder",
            CheckVerdict::Failed,
            line.trim_start_matches("gpumemtrace: "),
        ));
    }
    for route in DRIVER_ROUTES {
        let name = format!("route {}", route.name);
        let Some(outcome) =
            left.stdout.lines().find_map(|line| line.strip_prefix(route.key)?.strip_prefix(' '))
        else {
            let why = if left.succeeded { "the probe skipped it" } else { "the probe failed before it" };
            checks.push(DoctorCheck::new(name, CheckVerdict::Failed, why));
            continue;
        };
        if outcome != "0" {
            checks.push(DoctorCheck::new(
                name,
                CheckVerdict::Absent,
                format!("cannot be checked here ({outcome})"),
            ));
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
            (true, true) => DoctorCheck::new(name, CheckVerdict::Ok, "recorded"),
            (true, false) => {
                DoctorCheck::new(name, CheckVerdict::Failed, "the allocation was recorded, its free was not")
            }
            (false, _) => DoctorCheck::new(
                name,
                CheckVerdict::Failed,
                "not recorded: allocations on this route would be missing",
            ),
        });
    }
}
