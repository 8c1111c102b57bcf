//! The chart of `--timeline`: steps on its axis, and growth that is visible.

use std::fs;

use assert_cmd::Command;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;

const MIB: u64 = 1 << 20;

/// The output of `replay run.trace` with these options for a run, on 80 columns.
fn replay(run: &Synthetic, options: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.trace"), run.file(1000)).unwrap();
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command.current_dir(folder.path()).env("LC_ALL", "C.UTF-8").env("COLUMNS", "80");
    let output = command.args(["replay", "run.trace"]).args(options).output().expect("gpumemtrace runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// 400 steps over `base` bytes that are live from the start. Each leaks `leaked` bytes. Start-up
/// takes as long as the steps, and teardown frees everything.
fn run_on_base(base: u64, leaked: u64) -> Synthetic {
    let mut has_begun = false;
    let mut run = Synthetic::train(400, |run, _, train| {
        if !has_begun {
            run.alloc(train, base);
            run.time_ns += 20_000_000;
            has_begun = true;
        }
        if leaked > 0 {
            run.alloc(train, leaked);
        }
    });
    run.time_ns += 20_000_000;
    run.release_all();
    run
}

/// The rows of the chart, top first, and the lines below it.
fn chart_of(text: &str) -> (Vec<Vec<char>>, Vec<&str>) {
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("GPU 0: ")).skip(1).collect();
    let axis = lines.iter().position(|line| line.trim_start().starts_with('+')).expect("an axis");
    let rows = lines[..axis].iter().map(|line| line.split_once('|').unwrap().1.chars().collect());
    (rows.collect(), lines[axis + 1..].to_vec())
}

/// How many rows each column fills.
fn heights(rows: &[Vec<char>]) -> Vec<usize> {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let is_filled = |row: &Vec<char>, column| row.get(column).is_some_and(|sign| !matches!(sign, ' ' | '─'));
    (0..width).map(|column| rows.iter().filter(|row| is_filled(row, column)).count()).collect()
}

#[test]
fn small_leak_rises_over_an_axis_of_steps() {
    let text = replay(&run_on_base(1024 * MIB, MIB / 4), &["--timeline"]);
    let (rows, below) = chart_of(&text);
    let heights = heights(&rows);
    assert!(heights.is_sorted(), "{text}");
    assert!(heights[heights.len() - 2] - heights[1] >= 6, "{text}");
    let labels: Vec<&str> = below[0].split("  ").map(str::trim).filter(|label| !label.is_empty()).collect();
    assert!(labels.len() >= 4 && labels.iter().all(|label| label.starts_with("step ")), "{text}");
    assert_eq!(
        (labels[0], *labels.last().unwrap()),
        ("step 1", "step 399"),
        "the last column has the peak: {text}"
    );
    assert!(below[1].contains("ms"), "{text}");
    assert!(text.contains("the axis begins at 1008.00 MiB, not at 0"), "{text}");
    assert!(text.contains("shown: step 1 to the end of the program"), "{text}");
}

#[test]
fn healthy_run_is_drawn_from_zero() {
    let text = replay(&run_on_base(1024 * MIB, 0), &["--timeline"]);
    let (rows, below) = chart_of(&text);
    assert!(below[0].contains("step 1 "), "{text}");
    assert!(heights(&rows).iter().all(|height| *height >= 11), "{text}");
    assert!(!text.contains("not at 0"), "{text}");
}

#[test]
fn run_without_steps_has_an_axis_of_time_over_the_whole_recording() {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/serve.py", "<module>", 3);
    run.alloc(line, MIB);
    run.time_ns += 5_000_000;
    run.alloc(line, MIB);
    run.time_ns += 5_000_000;
    run.release_all();
    let text = replay(&run, &["--timeline"]);
    let (_, below) = chart_of(&text);
    assert!(below[0].trim_end().ends_with("10 ms") && !text.contains("step"), "{text}");
    assert!(!text.contains("shown: "), "{text}");
}

#[test]
fn points_have_their_step_when_steps_are_known() {
    let text = replay(&run_on_base(MIB, MIB), &["--timeline", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let points = report["timeline"]["points"].as_array().unwrap();
    let steps: Vec<u64> = points.iter().map(|point| point["step"].as_u64().expect("a step")).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&400), "{steps:?}");
}
