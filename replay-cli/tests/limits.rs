//! Memory and output of commands stay in proportion to the trace.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use gpumemtrace_format::{EventKind, MetaValue, NodeId};
use gpumemtrace_synthetic::Synthetic;

/// Runs a command with at most this much address space. Returns its exit code and output bytes.
fn run(folder: &Path, arguments: &str, max_kib: u64) -> (Option<i32>, usize, String) {
    let program = assert_cmd::cargo::cargo_bin("gpumemtrace");
    let done = Command::new("sh")
        .args(["-c", &format!("ulimit -v {max_kib}; exec {} {arguments}", program.display())])
        .current_dir(folder)
        .env("GPUMEMTRACE_CACHE", "off")
        .output()
        .expect("it runs");
    (done.status.code(), done.stdout.len(), String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Runs a command on a trace of 250 call sites below a chain of 3,000 frames: 750,000 frames in
/// stacks of reports.
fn expect_bounded_output(arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut run_of = Synthetic::new();
    let mut chain = NodeId::NONE;
    for depth in 0..3000 {
        chain = run_of.frame(chain, "/work/deep/down.py", "recurse", depth % 900 + 1);
    }
    for site in 0..250 {
        let stack = run_of.frame(chain, "/work/leaf.py", "leaf", site + 1);
        run_of.alloc(stack, 1 << 20);
    }
    fs::write(folder.path().join("run.trace"), run_of.file(1000)).unwrap();
    let (code, bytes, error) = run(folder.path(), arguments, 600 << 10);
    assert!(code == Some(0) && bytes < 1 << 30, "{bytes}: {error}");
}

#[test]
fn deep_stacks_of_a_report_are_cut() {
    expect_bounded_output("replay run.trace --json");
}

#[test]
fn deep_stacks_of_an_export_are_cut() {
    expect_bounded_output("export folded run.trace -o -");
}

#[test]
fn memory_is_in_proportion_to_distinct_stacks() {
    const STACKS: i32 = 50_000;
    let folder = tempfile::tempdir().unwrap();
    let mut run_of = Synthetic::new();
    for line in 0..STACKS {
        let file = format!("/work/part{}.py", line / 900);
        let stack = run_of.frame(NodeId::NONE, &file, "fit", line % 900 + 1);
        run_of.alloc(stack, 512);
    }
    fs::write(folder.path().join("run.trace"), run_of.file(1000)).unwrap();
    // The program itself, and 4 KiB for each stack.
    let (code, _, error) = run(folder.path(), "replay run.trace", (100 << 10) + 4 * STACKS as u64);
    assert_eq!(code, Some(0), "{error}");
}

/// 255 GPUs: each would have 4,096 intervals.
#[test]
fn exports_of_many_gpus_have_a_limited_number_of_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let mut run_of = Synthetic::new();
    let stack = run_of.frame(NodeId::NONE, "/work/train.py", "fit", 1);
    for round in 0..20 {
        for device in 0..255 {
            run_of.device = device;
            run_of.event(
                EventKind::DEVICE_ALLOC,
                (round * 255 + u64::from(device) + 1) << 32,
                512,
                [0, 0],
                stack,
            );
        }
    }
    assert!(matches!(run_of.meta.get("host"), Some(MetaValue::Text(_))));
    fs::write(folder.path().join("run.trace"), run_of.file(1000)).unwrap();
    let (code, bytes, error) = run(folder.path(), "export csv-timeline run.trace -o -", 2 << 20);
    assert!(code == Some(0) && bytes > 1000, "{error}");
    assert!(bytes < 32 << 20, "{bytes}");
}
