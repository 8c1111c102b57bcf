//! The text of reports, as snapshots and by width.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;
use tempfile::TempDir;

/// Runs the command in a folder without COLUMNS.
fn command(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command
        .current_dir(folder)
        .env("LC_ALL", "C.UTF-8")
        .env("GPUMEMTRACE_CACHE", "off")
        .env_remove("COLUMNS")
        .env_remove("TERM")
        .env_remove("LD_PRELOAD");
    command
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(command.output().expect("gpumemtrace runs").stdout).expect("UTF-8")
}

/// Compares a text with its snapshot in `snapshots/reports`.
macro_rules! assert_report {
    ($name:literal, $text:expr) => {
        insta::with_settings!({ snapshot_path => "snapshots/reports", prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($name, $text);
        });
    };
}

/// The text of `replay run.trace` with these options on 100 columns.
fn report(folder: &TempDir, options: &[&str]) -> String {
    stdout(command(folder.path()).env("COLUMNS", "100").args(["replay", "run.trace"]).args(options))
}

/// Twelve steps. A hook leaks `leaked` bytes in each; everything is freed at the end.
fn leaking_run(leaked: u64) -> Synthetic {
    let mut run = Synthetic::train(12, |run, _, train| {
        let file = format!("{}nn/modules/module.py", gpumemtrace_synthetic::TORCH);
        let call = run.frame(train, &file, "Module._call_impl", 201);
        let hook = run.frame(call, "/work/hooks.py", "Keeper.hook", 7);
        if leaked > 0 {
            run.alloc(hook, leaked);
        }
    });
    run.release_all();
    run
}

#[test]
fn report_texts_match_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.trace"), leaking_run(4 << 20).file(100)).unwrap();
    assert_report!("summary", report(&folder, &[]));
    assert_report!("summary_verbose", report(&folder, &["-v"]));
    assert_report!("leaks", report(&folder, &["--leaks"]));
    assert_report!("timeline", report(&folder, &["--timeline"]));
    assert_report!("peak", report(&folder, &["--peak"]));
    assert_report!("fragmentation", report(&folder, &["--fragmentation"]));
    assert_report!("oom_none", report(&folder, &["--oom"]));
    assert_report!("at_step", report(&folder, &["--at", "step:3", "--oom"]));
    assert_report!("at_peak_and_end", report(&folder, &["--at", "peak", "--at", "end", "--oom"]));
    assert_report!("filtered", report(&folder, &["--site", "train.py", "--top", "2"]));
}

#[test]
fn texts_without_leaks_match_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    fs::write(&path, Synthetic::train(9, |_, _, _| {}).file(100)).unwrap();
    assert_report!("no_problems", report(&folder, &[]));
    assert_report!("no_leaks", report(&folder, &["--leaks"]));
    fs::write(&path, Synthetic::train(3, |_, _, _| {}).file_without_end(100)).unwrap();
    assert_report!("few_steps_incomplete", report(&folder, &[]));
    assert_report!("no_leaks_few_steps", report(&folder, &["--leaks"]));
    let mut failing = Synthetic::train(3, |_, _, _| {});
    let line = failing.frame(NodeId::NONE, "/work/train.py", "big", 77);
    failing.alloc(line, 8 << 30);
    failing.oom(line, 40 << 30);
    fs::write(&path, failing.file(100)).unwrap();
    assert_report!("oom", report(&folder, &["--oom"]));
    assert_report!("summary_oom", report(&folder, &[]));
}

#[test]
fn header_is_printed_once_for_several_sections() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.trace"), leaking_run(4 << 20).file(100)).unwrap();
    let text = report(&folder, &["--leaks", "--peak", "--timeline", "--fragmentation", "--oom"]);
    assert_eq!(text.matches("run.trace: python train.py").count(), 1, "{text}");
    assert!(text.lines().nth(2) == Some(""), "{text}");
}

#[test]
fn ranks_side_by_side_fit_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..4)
        .map(|rank| {
            let mut run = leaking_run(if rank == 1 { 1023 << 20 } else { 0 });
            run.meta.set_number("rank", rank);
            run.meta.set_number("world_size", 4);
            let name = format!("run.rank{rank}.trace");
            fs::write(folder.path().join(&name), run.file(100)).unwrap();
            name
        })
        .collect();
    // Without COLUMNS, lines are not wrapped: this checks the width of the table itself.
    let text = stdout(command(folder.path()).arg("replay").args(&names));
    let table: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("Side by side")).take(5).collect();
    assert_eq!(table.len(), 5, "{text}");
    for (rank, row) in table[1..].iter().enumerate() {
        assert!(row.starts_with(&format!("  rank {rank} ")), "{row}");
    }
    for line in table {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_report!("ranks", text);
}
