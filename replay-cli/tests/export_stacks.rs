//! Exports of stacks: folded, speedscope, pprof and firefox. Hostile names, windows, sampling, and
//! equal bytes for equal traces. `tests/suite/export/` has them read by third parties.

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;
use serde_json::Value;

const FORMATS: [&str; 4] = ["folded", "speedscope", "pprof", "firefox"];
/// Separators of the formats, line breaks, escapes, digits at the end, and names that are empty.
const NAMES: [&str; 9] = [
    "a;b",
    "line\nbreak\r\u{2028}",
    "\u{1b}[31mred\u{7}",
    "ends in 12 34",
    "",
    "  ",
    "# c",
    "\0\"\\</script>",
    "é 字",
];
/// Allocations and frees of a profile for Firefox.
const MAX_ROWS: usize = 300_000;

/// A run with hostile names of functions and files. Its blocks are 1,000, 2,000... bytes.
fn hostile_run() -> Synthetic {
    let mut run = Synthetic::new();
    let mut caller = NodeId::NONE;
    for (name, size) in NAMES.iter().zip(1..) {
        caller = run.frame(caller, &format!("/work/{name}.py"), name, 3);
        run.alloc(caller, size * 1000);
        let temporary = run.alloc(caller, 4096);
        run.release(temporary, caller);
    }
    run
}

/// The names as formats with strings hold them.
fn shown_names() -> [&'static str; 9] {
    NAMES.map(|name| if name.is_empty() { "(unknown function)" } else { name })
}

fn write_trace(folder: &Path, name: &str, run: &Synthetic) -> String {
    let path = folder.join(name);
    std::fs::write(&path, run.file(100)).expect("a trace");
    path.display().to_string()
}

fn gpumemtrace(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::cargo_bin("gpumemtrace").expect("the command");
    command.args(arguments).timeout(Duration::from_mins(5)).output().expect("its output")
}

/// The bytes of an export, and what it prints on stderr.
fn export(format: &str, trace: &str, options: &[&str]) -> (Vec<u8>, String) {
    let output = gpumemtrace(&[&["export", format, trace, "--output", "-"], options].concat());
    let notes = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{format}: {notes}");
    (output.stdout, notes)
}

fn export_json(format: &str, trace: &str, options: &[&str]) -> Value {
    serde_json::from_slice(&export(format, trace, options).0).expect("JSON")
}

/// Sum of the values of folded stacks.
fn folded_sum(trace: &str, options: &[&str]) -> u64 {
    let (bytes, _) = export("folded", trace, options);
    let text = String::from_utf8(bytes).expect("text");
    let values = text.lines().map(|line| line.rsplit_once(' ').expect("a value").1);
    values.map(|value| value.parse::<u64>().expect("a number")).sum()
}

fn report(trace: &str) -> Value {
    let output = gpumemtrace(&["replay", trace, "--json"]);
    serde_json::from_slice(&output.stdout).expect("a report")
}

fn column(table: &Value, name: &str) -> Vec<f64> {
    table[name].as_array().expect("a column").iter().map(|value| value.as_f64().expect("a number")).collect()
}

#[test]
fn hostile_names_stay_in_their_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = write_trace(folder.path(), "run.trace", &hostile_run());
    let peak = report(&trace)["peak"][0]["live_bytes"].as_u64().expect("a peak");

    let (folded, _) = export("folded", &trace, &[]);
    let folded = String::from_utf8(folded).expect("text");
    assert!(!folded.contains(|c: char| c.is_control() && c != '\n'), "{folded:?}");
    let depths: Vec<usize> = folded.lines().map(|line| line.matches(';').count() + 1).collect();
    assert_eq!(depths.iter().max(), Some(&NAMES.len()), "{folded}");
    assert_eq!(folded_sum(&trace, &[]), peak);

    let speedscope = export_json("speedscope", &trace, &[]);
    let frames = speedscope["shared"]["frames"].as_array().expect("frames");
    let names: Vec<&str> = frames.iter().filter_map(|frame| frame["name"].as_str()).collect();
    assert!(shown_names().iter().all(|name| names.contains(name)), "{names:?}");
    assert_eq!(speedscope["profiles"][0]["endValue"], peak);

    let firefox = export_json("firefox", &trace, &[]);
    let strings = firefox["shared"]["stringArray"].as_array().expect("strings");
    assert!(shown_names().iter().all(|name| strings.iter().any(|string| string == name)), "{strings:?}");
}

#[test]
fn equal_traces_give_equal_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = write_trace(folder.path(), "run.trace", &hostile_run());
    for format in FORMATS {
        let first = export(format, &trace, &[]);
        assert!(!first.0.is_empty());
        for _ in 0..3 {
            assert!(export(format, &trace, &[]) == first, "{format}");
        }
    }
}

#[test]
fn values_of_a_window_are_those_of_its_events() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Synthetic::new();
    let stack = run.frame(NodeId::NONE, "/work/a.py", "f", 1);
    let start_ns = run.time_ns;
    let kept = run.alloc(stack, 1 << 20);
    let since_ns = run.time_ns - start_ns;
    let first = run.alloc(stack, 2 << 20);
    run.release(first, stack);
    run.alloc(stack, 4 << 20);
    let until_ns = run.time_ns - start_ns;
    run.release(kept, stack);
    run.alloc(stack, 64 << 20);
    let trace = write_trace(folder.path(), "run.trace", &run);
    // The recording starts before the first event.
    let offset_ns = start_ns - 1_000_000_000;
    let since = format!("{}ns", since_ns + offset_ns);
    let until = format!("{}ns", until_ns + offset_ns);
    let sum = |value: &str| folded_sum(&trace, &["--since", &since, "--until", &until, "--weight", value]);
    assert_eq!(sum("peak"), 5 << 20);
    assert_eq!(sum("end"), 5 << 20);
    assert_eq!(sum("allocated"), 6 << 20);

    let profile = export_json("firefox", &trace, &["--since", &since, "--until", &until]);
    let rows = &profile["threads"][0]["nativeAllocations"];
    // The block that is live at the begin comes first.
    let expected = [1 << 20, 2 << 20, -(2 << 20), 4 << 20].map(f64::from);
    assert_eq!(column(rows, "weight"), expected);
}

#[test]
fn many_events_are_sampled_and_said_to_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Synthetic::new();
    let small = run.frame(NodeId::NONE, "/work/a.py", "small", 1);
    let large = run.frame(NodeId::NONE, "/work/a.py", "large", 2);
    for round in 0..160_000u64 {
        let stack = if round % 100 == 0 { large } else { small };
        let block = run.alloc(stack, if round % 100 == 0 { 32 << 20 } else { 2048 });
        if round % 1000 != 999 {
            run.release(block, stack);
        }
    }
    let trace = write_trace(folder.path(), "run.trace", &run);
    let (bytes, notes) = export("firefox", &trace, &[]);
    assert!(notes.contains("sampled by size"), "{notes:?}");
    let profile: Value = serde_json::from_slice(&bytes).expect("JSON");
    assert!(profile["meta"]["extra"].to_string().contains("sampled by size"));
    let rows = &profile["threads"][0]["nativeAllocations"];
    let weights = column(rows, "weight");
    assert!((MAX_ROWS / 2..=MAX_ROWS).contains(&weights.len()), "{} rows", weights.len());
    let allocated: f64 = weights.iter().filter(|weight| **weight > 0.0).sum();
    let exact = folded_sum(&trace, &["--weight", "allocated"]) as f64;
    assert!((allocated / exact - 1.0).abs() < 0.01, "{allocated} of {exact}");
    // Every free has its allocation, with the same weight.
    let mut live = std::collections::BTreeMap::new();
    for (weight, address) in weights.iter().zip(column(rows, "memoryAddress")) {
        if *weight >= 0.0 {
            assert!(live.insert(address as u64, *weight).is_none());
        } else {
            assert_eq!(live.remove(&(address as u64)), Some(-*weight));
        }
    }
    // Whole files of this trace stay exact.
    assert_eq!(folded_sum(&trace, &[]), report(&trace)["peak"][0]["live_bytes"].as_u64().expect("a peak"));
}

#[test]
fn run_without_memory_gives_files_that_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = write_trace(folder.path(), "run.trace", &Synthetic::new());
    for format in FORMATS {
        let (bytes, notes) = export(format, &trace, &[]);
        assert_eq!(bytes.is_empty(), format == "folded", "{format}");
        assert!(notes.contains("empty"), "{format}: {notes:?}");
    }
}

#[test]
fn options_and_weights_that_a_format_lacks_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = write_trace(folder.path(), "run.trace", &hostile_run());
    for (format, option, value, said) in [
        ("pprof", "--weight", "leaked", "invalid value 'leaked'"),
        ("firefox", "--weight", "peak", "unexpected argument '--weight'"),
        ("folded", "--torch-profile", "profile.json", "unexpected argument '--torch-profile'"),
        ("perfetto", "--max-events", "9", "unexpected argument '--max-events'"),
        ("csv-timeline", "--user-code", "site-packages/mine", "unexpected argument '--user-code'"),
        ("svg", "--run-name", "job", "unexpected argument '--run-name'"),
    ] {
        let output = gpumemtrace(&["export", format, &trace, "--output", "-", option, value]);
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said) && output.stdout.is_empty(), "{error}");
    }
}
