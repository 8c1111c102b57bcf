//! Checks that trace and ring file contain every recorded event once and in order, however the
//! process ends.

#![allow(
    clippy::exit,
    clippy::print_stderr,
    reason = "a scenario ends its own process; a skipped check is printed"
)]

use std::os::unix::process::ExitStatusExt;

use gpumemtrace_format::{Counter, EndReason, EventKind};

use crate::scenarios::MANY;
use crate::support::{TraceLeftovers, command, ring_path, run};

fn traced(scenario: &str) -> (tempfile::TempDir, std::path::PathBuf, std::process::ExitStatus) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let status = run(scenario, &trace);
    (folder, trace, status)
}

#[test]
fn normal_exit_closes_the_trace_and_removes_the_ring_file() {
    let (_folder, trace, status) = traced("exit");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len() as u64, left.missing_events()), (MANY, 0));
    assert_eq!(left.end.as_ref().unwrap().reason, EndReason::Exit);
    assert!(!ring_path(&trace).exists());
    assert!(left.meta.number("pid").is_some());
    for (place, event) in &left.events {
        assert_eq!(event.addr, *place, "events must be in program order");
    }
}

#[test]
fn quick_exit_is_recorded_with_its_status() {
    let (_folder, trace, status) = traced("quick_exit");
    assert_eq!(status.code(), Some(7));
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len(), left.missing_events()), (1, 0));
    let reason = left.end.map(|end| end.reason).or(left.image.and_then(|image| image.end));
    assert_eq!(reason, Some(EndReason::QuickExit(7)));
}

#[test]
fn events_after_the_end_are_counted_in_the_finished_trace() {
    let (_folder, trace, status) = traced("events_after_end");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len(), left.missing_events()), (1, 0));
    assert_eq!(left.end.as_ref().unwrap().reason, EndReason::Exit);
    assert_eq!(left.counters().get(Counter::EventsAfterEnd), 500);
    assert!(!ring_path(&trace).exists());
}

#[test]
fn threads_wait_for_the_end_of_the_process_and_not_for_ever() {
    for (waits, late) in [(false, 1), (true, 11)] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("run.trace");
        let mut command = command("thread_after_last_handler", &trace);
        if waits {
            command.env("ENDS_LATE", "1");
        }
        assert!(command.status().unwrap().success());
        let left = TraceLeftovers::read(&trace);
        assert_eq!((left.events.len(), left.missing_events()), (1, 0));
        assert_eq!(left.counters().get(Counter::EventsAfterEnd), late);
    }
}

#[test]
fn sigkill_loses_no_event() {
    let (_folder, trace, status) = traced("killed");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len() as u64, left.missing_events()), (MANY, 0));
    assert!(left.end.is_none() && left.image.unwrap().end.is_none());
}

#[test]
fn call_in_flight_at_a_kill_is_recorded_as_in_flight() {
    let (_folder, trace, _) = traced("killed_in_calls");
    let left = TraceLeftovers::read(&trace);
    assert_eq!(left.missing_events(), 0);
    let free = left.events.values().find(|event| event.kind == EventKind::DEVICE_FREE).unwrap();
    assert!(free.in_flight && free.addr == 0x1000, "a free takes its sequence number before the call");
    assert_eq!(left.unplaced.len(), 1);
    let alloc = left.unplaced[0];
    assert!(alloc.in_flight && alloc.size == 4096 && alloc.kind == EventKind::DEVICE_ALLOC);
}

#[test]
fn events_of_sixty_four_threads_have_one_order() {
    let (_folder, trace, status) = traced("threads");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len(), left.missing_events()), (64 * 2000, 0));
    let mut next = [0u64; 64];
    for event in left.events.values() {
        let thread = (event.addr >> 32) as usize;
        assert_eq!(event.addr & 0xffff_ffff, next[thread], "events of a thread must be in program order");
        next[thread] += 1;
    }
}

#[test]
fn address_passed_between_threads_is_freed_in_between() {
    let (_folder, trace, status) = traced("reuse");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.missing_events(), left.unplaced.len()), (0, 0));
    assert_eq!(left.counters().get(Counter::DroppedEvents), 0);
    let mut owner_of_live = std::collections::HashMap::new();
    let (mut freed, mut passed_on) = (0, 0);
    let mut last_owner = std::collections::HashMap::new();
    for (place, event) in left.events.iter().filter(|(_, event)| event.result == 0) {
        assert!(!event.in_flight);
        if event.kind == EventKind::DEVICE_ALLOC {
            let before = owner_of_live.insert(event.addr, event.thread);
            assert_eq!(before, None, "{place}: allocated twice without a free in between");
            passed_on += u64::from(last_owner.get(&event.addr).is_some_and(|last| *last != event.thread));
        } else {
            let owner = owner_of_live.remove(&event.addr);
            assert_eq!(owner, Some(event.thread), "{place}: freed without being live");
            last_owner.insert(event.addr, event.thread);
            freed += 1;
        }
    }
    assert_eq!((freed, owner_of_live.len()), (64 * 1000, 0));
    assert!(passed_on > 100, "only {passed_on} addresses were reused by another thread");
}

#[test]
fn sixty_four_full_rings_stay_within_the_memory_limit() {
    let (_folder, trace, status) = traced("full_rings");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len(), left.missing_events()), (64 * 40_000, 0));
    assert!(left.counters().get(Counter::RingWaits) > 0, "no ring was ever full");
}

#[test]
fn smaller_memory_limit_loses_no_event() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let status = command("full_rings", &trace).env("GPUMEMTRACE_MEMORY", "32MiB").status().unwrap();
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len(), left.missing_events()), (64 * 40_000, 0));
}

#[test]
fn exit_while_threads_record_leaves_no_gap() {
    for _ in 0..10 {
        let (_folder, trace, status) = traced("exit_while_recording");
        assert!(status.success());
        let left = TraceLeftovers::read(&trace);
        assert!(left.events.len() > 1000);
        // The ring file stays if a thread was delayed inside a hook for longer than the recorder
        // waits.
        let allowed = if left.image.is_some() { 8 } else { 0 };
        assert!(left.missing_events() <= allowed, "{} events missing", left.missing_events());
        assert!(left.unplaced.len() <= 8, "at most one call in flight for each thread");
        assert_eq!(left.counters().get(Counter::DroppedEvents), 0);
    }
}

#[test]
fn program_that_closes_all_descriptors_keeps_files_and_trace() {
    let (folder, trace, status) = traced("closed_descriptors");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len() as u64, left.missing_events()), (MANY + 1, 0));
    assert_eq!(std::fs::metadata(folder.path().join("precious")).unwrap().len(), 0);
}

#[test]
fn forked_child_closes_no_file_of_the_program() {
    let (_folder, trace, status) = traced("child_files");
    assert!(status.success());
    assert_eq!(TraceLeftovers::read(&trace).missing_events(), 0);
}

#[test]
fn closed_stderr_does_not_end_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = command("exit", &folder.path().join("missing/run.trace"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = program.env("SIGPIPE_KILLS", "1").stderr(writer).status().unwrap();
    assert!(status.success(), "{status:?}");
}

#[test]
fn rings_of_ended_threads_are_reused() {
    let (_folder, trace, status) = traced("many_short_threads");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!(left.counters().get(Counter::DroppedEvents), 0);
    assert_eq!((left.events.len(), left.missing_events()), (400, 0));
}

#[test]
fn dropped_events_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let status = command("drop", &trace).env("GPUMEMTRACE_ON_FULL", "drop").status().unwrap();
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!(left.missing_events(), 0, "a dropped event takes no sequence number");
    let dropped = left.counters().get(Counter::DroppedEvents);
    assert_eq!(left.events.len() as u64 + dropped, 400_000);
    let waited = run("drop", &trace);
    assert!(waited.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!(
        (left.events.len(), left.counters().get(Counter::DroppedEvents)),
        (400_000, 0),
        "by default threads wait"
    );
}

#[test]
fn forks_while_recording_change_no_trace_and_leave_no_file() {
    let (folder, trace, status) = traced("forks");
    assert!(status.success());
    let left = TraceLeftovers::read(&trace);
    assert_eq!(left.missing_events(), 0);
    assert!(left.events.values().all(|event| event.size != 77), "a child wrote into its parent's trace");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a child left a file");
}

#[test]
fn child_of_a_parent_without_events_has_its_own_trace() {
    let (folder, trace, status) = traced("fork_first");
    assert!(status.success());
    assert_eq!(TraceLeftovers::read(&trace).events.len(), 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn nested_call_is_recorded_once() {
    let (_folder, trace, _) = traced("nested");
    let left = TraceLeftovers::read(&trace);
    assert_eq!((left.events.len(), left.counters().get(Counter::NestedCalls)), (1, 1));
}

#[test]
fn process_without_events_leaves_no_file() {
    let (folder, _, status) = traced("nothing");
    assert!(status.success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn missing_folder_prints_one_line_and_program_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let output = command("exit", &folder.path().join("missing/run.trace"))
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert!(output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("gpumemtrace")).collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(
        lines[0].contains("No such file or directory") && lines[0].contains("GPUMEMTRACE_OUTPUT"),
        "{stderr}"
    );
}

#[test]
fn file_size_limit_does_not_end_the_program() {
    // A file that grows beyond the limit raises SIGXFSZ. Its default action is to end the process.
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let output = limited("ulimit -f 200", "exit", &trace);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a failed start leaves no file");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.lines().filter(|line| line.contains("gpumemtrace")).count(), 1, "{stderr}");
}

#[test]
fn full_disk_stops_the_recording_not_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&disk)
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("GPUMEMTRACE_REQUIRE_ALL").is_none(), "cannot mount a small disk here");
        eprintln!("skipped: a full disk (cannot mount one here)");
        return;
    }
    let trace = disk.join("run.trace");
    let output = limited("true", "incompressible", &trace);
    let left = TraceLeftovers::read(&trace);
    let _ = std::process::Command::new("umount").arg(&disk).status();
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.lines().filter(|line| line.contains("gpumemtrace")).count(), 1, "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert_eq!(left.image.unwrap().end, Some(EndReason::Stopped));
    assert!(!left.events.is_empty(), "events that fit on the disk are recorded");
    for (expected, (place, _)) in left.events.iter().enumerate() {
        assert_eq!(expected as u64, *place, "no event is missing before the end");
    }
}

#[test]
fn disk_without_space_for_a_ring_does_not_end_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "none"])
        .arg(&disk)
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("GPUMEMTRACE_REQUIRE_ALL").is_none(), "cannot mount a small disk here");
        eprintln!("skipped: a full disk (cannot mount one here)");
        return;
    }
    let output = limited("true", "no_room_for_a_ring", &disk.join("run.trace"));
    let _ = std::process::Command::new("umount").arg(&disk).status();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no room for another thread's events"),
        "{output:?}"
    );
}

/// Runs a scenario after the shell command `limit`.
fn limited(limit: &str, scenario: &str, trace: &std::path::Path) -> std::process::Output {
    let program = command(scenario, trace);
    std::process::Command::new("bash")
        .args(["-c", &format!("{limit}; exec {}", shell_words(&program))])
        .envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap()
}

fn shell_words(command: &std::process::Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}
