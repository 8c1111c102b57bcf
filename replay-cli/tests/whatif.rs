//! `gpumemtrace whatif` and `fit`: rows of several traces, and what their numbers are.

use assert_cmd::Command;
use serde_json::Value;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/cuda-train.trace");

/// What the command prints for these traces.
fn whatif(traces: &[&str], others: &[&str]) -> String {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    let done = command.arg("whatif").args(traces).args(others).output().expect("it runs");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("UTF-8")
}

#[test]
fn several_traces_have_one_answer_each() {
    let parse = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    let one = parse(whatif(&[GOLDEN], &["--json"]));
    let two = parse(whatif(&[GOLDEN, GOLDEN], &["--json"]));
    assert_eq!(two, Value::from(vec![one.clone(), one]));
}

#[test]
fn text_names_the_best_setting_of_all_traces() {
    let (single, text) = (whatif(&[GOLDEN], &[]), whatif(&[GOLDEN, GOLDEN], &[]));
    let last = "No setting that was tried for all 2 traces lowers the largest of their peaks.\n";
    assert_eq!(text, format!("{single}\n{single}\n{last}"));
    // The larger card changes nothing, but such rows do not count as a setting.
    let text = whatif(&[GOLDEN, GOLDEN], &["--card", "160GiB", "--alloc-conf", "expandable_segments:True"]);
    assert!(text.ends_with(last), "{text}");
}

/// The JSON of a command for the golden trace.
fn answer(command: &str, arguments: &[&str]) -> Value {
    let mut run = Command::cargo_bin("gpumemtrace").expect("our own binary");
    let done = run.arg(command).arg(GOLDEN).args(arguments).arg("--json").output().expect("it runs");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("JSON")
}

#[test]
fn driver_calls_of_the_recorded_run_are_those_of_the_trace() {
    let base = answer("whatif", &[])["base"].take();
    let events = answer("replay", &[])["traces"][0]["events"].take();
    assert_eq!(base["driver_calls"]["cudaMalloc"], events["device_alloc"]);
    let returned = base["driver_calls"]["cudaFree"].as_u64().unwrap_or(0);
    assert_eq!(Some(returned), events["segment_free"].as_u64());
    assert_eq!(base["segments_made"], events["segment_alloc"]);
    let [made, returned] =
        ["cudaMalloc", "cudaFree"].map(|name| base["driver_bytes"][name].as_u64().unwrap_or(0));
    assert_eq!(Some(made - returned), base["end_reserved_bytes"].as_u64());
    assert_eq!(base["first_failure"], Value::Null);
}

#[test]
fn first_failure_is_the_request_that_a_small_card_cannot_serve() {
    let rows = answer("fit", &["--alloc-conf", ""])["rows"].take();
    let [smallest, too_small] = &rows.as_array().expect("rows")[..] else {
        panic!("two rows of one setting")
    };
    assert_eq!((&smallest["ooms"], &smallest["first_failure"]), (&0.into(), &Value::Null));
    assert_eq!(too_small["ooms"], 1);
    let failure = &too_small["first_failure"];
    assert!(failure["request_bytes"].as_u64() > Some(0), "{failure}");
    assert!(failure["site"]["line"].as_u64() > Some(0) && failure["time_ns"].as_u64() > Some(0), "{failure}");
    assert!(failure["step"].is_u64(), "{failure}");
}

#[test]
fn refused_rows_say_why() {
    let setting = "expandable_segments:True,max_split_size_mb:64";
    let rows = answer("whatif", &["--torch", "2.4", "--alloc-conf", setting])["rows"].take();
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["setting"] == setting));
    let row = row.expect("its row");
    assert_eq!((&row["status"], &row["peak_reserved_bytes"]), (&"refused".into(), &Value::Null));
    let reason = row["reason"].as_str().expect("a reason");
    assert!(reason.contains("stops with an internal error"), "{reason}");
    let text = whatif(&[GOLDEN], &["--torch", "2.4", "--alloc-conf", setting]);
    assert!(text.contains("Not predicted, because"), "{text}");
}

#[test]
fn other_release_and_other_model_are_indicative() {
    let reasons = |arguments: &[&str]| {
        let rows = answer("whatif", arguments)["rows"].take();
        let rows = rows.as_array().expect("rows").clone();
        rows.into_iter().map(|row| row["reason"].as_str().unwrap_or("none").to_owned()).collect::<Vec<_>>()
    };
    for reason in reasons(&["--torch", "2.9", "--alloc-conf", "max_split_size_mb:64"]) {
        assert!(reason.contains("another release"), "{reason}");
    }
    for reason in reasons(&["--card", "t4", "--alloc-conf", "max_split_size_mb:64"]) {
        assert!(reason.contains("another model"), "{reason}");
    }
    for reason in reasons(&["--card", "160GiB", "--alloc-conf", "max_split_size_mb:64"]) {
        assert!(!reason.contains("another model"), "{reason}");
    }
}
