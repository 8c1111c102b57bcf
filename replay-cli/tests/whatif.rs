//! `gpumemtrace whatif` for several traces.

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
    let text = whatif(&[GOLDEN, GOLDEN], &["--card", "160GiB", "--set", "expandable_segments:True"]);
    assert!(text.ends_with(last), "{text}");
}
