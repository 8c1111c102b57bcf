//! `gpumemtrace html`: what the page contains, its limits, and bad input. `tests/suite/page/` opens
//! pages in a browser.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use base64::Engine as _;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/cuda-train.trace");

fn command() -> Command {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command.env("GPUMEMTRACE_CACHE", "off").env_remove("LD_PRELOAD");
    command
}

/// The exit code, and the page.
fn page_of(trace: &str, options: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("page.html");
    let done = command().args(["html", trace, "-o"]).arg(&output).args(options).output().expect("it runs");
    (done.status.code(), fs::read_to_string(output).expect("a page"))
}

pub(crate) fn blob(page: &str, id: &str) -> Vec<u8> {
    let begin = format!("<script type=\"application/octet-stream\" id=\"{id}\">");
    let from = page.find(&begin).expect("the blob") + begin.len();
    let text = page[from..].split('<').next().expect("its text");
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    miniz_oxide::inflate::decompress_to_vec(&bytes).expect("raw deflate")
}

fn data_of(page: &str) -> serde_json::Value {
    serde_json::from_slice(&blob(page, "data")).expect("JSON")
}

/// The columns of the blob, each as its values.
fn columns(page: &str) -> Vec<Vec<u64>> {
    let bytes = blob(page, "columns");
    let mut at = 0;
    let mut next = || {
        let mut value = 0u64;
        for shift in (0..).step_by(7) {
            value |= u64::from(bytes[at] & 0x7f) << shift;
            at += 1;
            if bytes[at - 1] & 0x80 == 0 {
                return (value, at == bytes.len());
            }
        }
        unreachable!("the loop has no end")
    };
    let mut columns = Vec::new();
    loop {
        let (count, mut is_last) = next();
        let mut values = Vec::new();
        let mut value = 0u64;
        for _ in 0..count {
            let (coded, ends) = next();
            is_last = ends;
            value = value.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg());
            values.push(value);
        }
        columns.push(values);
        if is_last {
            return columns;
        }
    }
}

fn column(columns: &[Vec<u64>], number: &serde_json::Value) -> Vec<u64> {
    columns[usize::try_from(number.as_u64().expect("a column")).expect("a small number")].clone()
}

/// A trace with names chosen by an attacker.
fn hostile_trace(folder: &Path) -> String {
    let mut run = Synthetic::new();
    let file = "/work/</script><script>alert(1)</script>.py";
    let line = run.frame(NodeId::NONE, file, "<img src=x onerror=alert(1)>", 3);
    run.alloc(line, 1 << 20);
    let path = folder.join("a<b>&\"c.trace");
    fs::write(&path, run.file(100)).expect("disk space");
    path.display().to_string()
}

#[test]
fn page_has_the_exact_report_and_is_the_same_each_time() {
    let (code, page) = page_of(GOLDEN, &[]);
    assert_eq!(code, Some(0));
    let parse = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).expect("JSON");
    let replay = |arguments: &[&str]| {
        let arguments = [&["replay", GOLDEN, "--json"], arguments].concat();
        parse(&command().args(arguments).output().expect("it runs").stdout)
    };
    let mut shown = parse(&blob(&page, "report"));
    let effects = shown.as_object_mut().expect("an object").remove("setting_effects");
    assert_eq!(shown, replay(&[]));
    assert_eq!(effects.as_ref(), replay(&["--fragmentation"]).get("setting_effects"));
    assert!(effects.is_some());
    assert_eq!(page_of(GOLDEN, &[]).1, page);
}

#[test]
fn each_setting_that_was_tried_has_a_curve() {
    let (_, page) = page_of(GOLDEN, &[]);
    let report: serde_json::Value = serde_json::from_slice(&blob(&page, "report")).expect("JSON");
    let effects = report["setting_effects"][0]["settings"].as_array().expect("settings");
    let cards = data_of(&page).to_string();
    assert!(effects.len() > 4 && cards.contains("Reserved memory over the run with each setting"));
    // One more is that of the recorded run.
    assert_eq!(cards.matches("\"heights\":[").count(), effects.len() + 1);
    for effect in effects {
        let setting = effect["setting"].as_str().expect("a name");
        assert!(cards.contains(&format!("[\"{setting}\"]")), "{setting}");
    }
}

#[test]
fn drawn_values_are_those_of_the_report() {
    let (_, page) = page_of(GOLDEN, &[]);
    let (data, columns) = (data_of(&page), columns(&page));
    let report: serde_json::Value = serde_json::from_slice(&blob(&page, "report")).expect("JSON");
    let device = &data["traces"][0]["devices"][0];
    let most = |number: &serde_json::Value| column(&columns, number).into_iter().max();
    let peak = &report["devices"][0]["peak"];
    assert_eq!(most(&device["series"]["live_max"]), peak["live_bytes"].as_u64());
    assert_eq!(most(&device["series"]["reserved_max"]), peak["reserved_bytes"].as_u64());
    assert_eq!(most(&device["series"]["device_max"]), peak["device_bytes"].as_u64());
    // The values of all call sites and of the others sum up in each bin.
    let bins = &device["bins"];
    let mut sums = column(&columns, &bins["others"]);
    for site in bins["sites"].as_array().expect("sites") {
        for (sum, bytes) in sums.iter_mut().zip(column(&columns, &site["bytes"])) {
            *sum += bytes;
        }
    }
    assert_eq!(sums, column(&columns, &bins["live"]));
    // The state at the peak has the same blocks, and every stack leads to the root.
    let states = device["keyframes"].as_array().expect("states");
    let at_peak = states.iter().find(|state| state["why"] == "peak").expect("the peak");
    assert_eq!(
        column(&columns, &at_peak["blocks"]["bytes"]).iter().sum::<u64>(),
        peak["live_bytes"].as_u64().unwrap()
    );
    let trace = &data["traces"][0];
    let parents = column(&columns, &trace["nodes"]["parent"]);
    for (index, parent) in parents.iter().enumerate() {
        assert!(*parent <= index as u64, "a parent comes before its children");
    }
    let stacks = column(&columns, &trace["stacks"]["node"]).len() as u64;
    assert!(column(&columns, &device["blocks"]["stack"]).iter().all(|stack| *stack < stacks));
}

#[test]
fn names_of_the_trace_are_never_markup() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, page) = page_of(&hostile_trace(folder.path()), &[]);
    assert_eq!(code, Some(0));
    assert!(!page.contains("alert(1)</script>") && !page.contains("<img"), "names are in blobs only");
    assert!(page.contains("<title>a&lt;b&gt;&amp;&quot;c.trace - gpumemtrace</title>"));
    assert_eq!(page.matches("<script").count(), 4, "three blobs and the page's own script");
    assert!(page.contains("default-src 'none'; script-src 'sha256-"));
}

#[test]
fn small_pages_merge_moments_and_say_so() {
    let mut run = Synthetic::new();
    let mut live = Vec::new();
    let mut dice = gpumemtrace_synthetic::dice::Dice::new(1);
    for round in 0..2000u64 {
        for line in 0..60 {
            let stack = run.frame(NodeId::NONE, "/work/a.py", "f", line + 1);
            let addr = run.alloc(stack, 512 * dice.within(1, 40_000));
            live.push((round + dice.within(1, 300), addr, stack));
        }
        run.time_ns += 1_000_000;
        for (_, addr, stack) in live.extract_if(.., |(until, ..)| *until <= round) {
            run.release(addr, stack);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.trace");
    fs::write(&path, run.file(1000)).expect("disk space");
    let path = path.display().to_string();
    let (_, whole) = page_of(&path, &["--max-size", "20MB"]);
    let (_, small) = page_of(&path, &["--max-size", "1MB"]);
    assert!(whole.len() > 1_000_000 && small.len() <= 1_000_000, "{} and {}", whole.len(), small.len());
    let bins = |page: &str| data_of(page)["traces"][0]["devices"][0]["blocks"]["bins"].as_u64();
    assert!(bins(&small) < bins(&whole));
    let note = |page: &str| data_of(page)["page_card"].to_string();
    assert!(note(&small).contains("moments of the flame graph are merged"), "{}", note(&small));
    assert!(note(&whole).contains("Nothing was merged or left out"), "{}", note(&whole));
}

#[test]
fn bad_input_is_one_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("missing/page.html");
    let cases: [(&[&str], i32, &str); 4] = [
        (&["html", "/nowhere/run.trace"], 5, "does not exist"),
        (&["html", GOLDEN, "--max-size", "1kB"], 2, "is not a size from 1MB to 20MB"),
        (&["html", GOLDEN, "-o", output.to_str().expect("UTF-8")], 2, "cannot write"),
        (&["html"], 2, "no trace is named"),
    ];
    for (args, code, sentence) in cases {
        let done = command().args(args).output().expect("it runs");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{message}");
        assert!(message.contains(sentence), "{message}");
    }
}
