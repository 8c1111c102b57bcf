//! Text layout of any report (width, harmful characters, file names), and the filters of `replay`.

use std::fs;

use assert_cmd::Command;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;
use unicode_width::UnicodeWidthStr;

struct Folder(TempDir);

impl Folder {
    fn with(runs: &[(&str, &Synthetic)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, run) in runs {
            fs::write(folder.path().join(name), run.file(100)).expect("disk space");
        }
        Self(folder)
    }

    /// Runs the command with COLUMNS set to `width`; empty means unset. Returns exit code, stdout
    /// and stderr.
    fn run(&self, args: &[&str], width: &str) -> (i32, String, String) {
        let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
        command.env("COLUMNS", width).env("LC_ALL", "C.UTF-8").env("GPUMEMTRACE_CACHE", "off");
        for name in ["TERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        let output = command.current_dir(self.0.path()).args(args).output().expect("gpumemtrace runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
    }

    fn json(&self, args: &[&str]) -> Value {
        let (code, out, errors) = self.run(&[args, &["--json"]].concat(), "80");
        assert!(code == 0 || code == 3, "{errors}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(crate::schema::violations("report", &report), Vec::<String>::new());
        report
    }
}

/// A training run with a leak in this file and function, and an out-of-memory error.
fn named(file: &str, function: &str, steps: u64) -> Synthetic {
    let file = format!("/work/{file}.py");
    let mut run = Synthetic::train(steps, |run, _, train| {
        let line = run.frame(train, &file, function, 7);
        run.alloc(line, 3 << 20);
    });
    let line = run.frame(NodeId::NONE, &file, function, 99);
    run.oom(line, 8 << 30);
    run.meta.set_list("command", vec!["python".to_owned(), file.clone()]);
    run.meta
        .set_list("notes", vec![format!("a note on {function} that is long enough for two lines of {file}")]);
    run
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn texts_fit_their_width_without_harmful_characters(
        folders in "([a-z字é]{1,30}/){0,8}", file in "[a-z字\u{1b}\u{9b}\u{202e}\n\u{7f}]{1,16}", function in "[a-z<>字\u{1b}\u{85}\r ]{1,60}",
        width in 40usize..200, units in prop::sample::select(vec!["auto", "bytes", "MiB", "GB"]),
    ) {
        let run = named(&format!("{folders}{file}"), &function, 12);
        let folder = Folder::with(&[("a.trace", &run), ("b.trace", &named("other", "f", 20))]);
        let columns = width.to_string();
        let commands: [&[&str]; 8] = [
            &["replay", "a.trace"], &["replay", "a.trace", "--leaks"], &["replay", "a.trace", "--timeline"],
            &["replay", "a.trace", "--peak", "--stacks"], &["replay", "a.trace", "--fragmentation", "--oom"],
            &["replay", "a.trace", "b.trace", "--since", "step:3", "--top", "2"], &["replay", "a.trace", "--peak", "--site", "other.py"],
            &["compare", "a.trace", "b.trace"],
        ];
        for args in commands {
            let (code, shown, errors) = folder.run(&[args, &["--units", units]].concat(), &columns);
            prop_assert!(code == 0, "{args:?}: {errors}");
            for line in shown.lines() {
                prop_assert!(line.width() <= width, "{} > {width} in {args:?}: {line:?}", line.width());
                let harmful = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
                prop_assert!(!line.contains(harmful), "{args:?}: {line:?}");
            }
        }
        let (_, shown, _) = folder.run(&["replay", "a.trace", "--peak"], &columns);
        let written_out = |c: char| match c {
            '\n' => "\\n".to_owned(),
            c if c.is_control() || c == '\u{202e}' => c.escape_unicode().to_string(),
            c => c.to_string(),
        };
        let last: String = file.chars().map(written_out).collect();
        let squeezed: String = shown.chars().filter(|c| !c.is_whitespace()).collect();
        prop_assert!(squeezed.contains(&format!("{last}.py:7")), "{shown}");
        for args in [&["replay", "a.trace", "--json"][..], &["info", "a.trace"], &["dump", "a.trace", "--stacks"]] {
            let (_, shown, _) = folder.run(args, &columns);
            prop_assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{args:?}");
        }
    }
}

#[test]
fn piped_text_is_neither_wrapped_nor_shortened_without_columns() {
    let file = format!("{}model", "a_long_folder/".repeat(20));
    let folder = Folder::with(&[("a.trace", &named(&file, "keep", 12))]);
    let full = format!("/work/{file}.py:7 in keep()");
    for args in [&["--leaks"][..], &["--peak", "--stacks"]] {
        let args = [&["replay", "a.trace"], args].concat();
        let (_, piped, _) = folder.run(&args, "");
        assert!(piped.lines().any(|line| line.contains(&full)), "{piped}");
        let (_, narrow, _) = folder.run(&args, "80");
        assert!(narrow.lines().all(|line| line.width() <= 80), "{narrow}");
        assert!(narrow.lines().count() > piped.lines().count(), "{narrow}");
    }
    let (_, chart, _) = folder.run(&["replay", "a.trace", "--timeline"], "");
    let axis = chart.lines().find(|line| line.contains("+---")).expect("a chart");
    assert_eq!(axis.width(), 80, "{chart}");
}

#[test]
fn filtered_reports_match_schema_and_add_up() {
    let folder = Folder::with(&[("a.trace", &named("model", "keep", 30))]);
    let whole = folder.json(&["replay", "a.trace"]);
    assert!(whole.get("omitted").is_none() && whole.get("filters").is_none());
    let peak = |report: &Value| report["peak"][0].clone();
    for args in [&["--top", "2"][..], &["--site", "model.py"], &["--site", "Net.*", "--top", "1"]] {
        let part = folder.json(&[&["replay", "a.trace"], args].concat());
        let shown: u64 =
            peak(&part)["sites"].as_array().unwrap().iter().map(|s| s["bytes"].as_u64().unwrap()).sum();
        let out = peak(&part)["omitted"]["bytes"].as_u64().unwrap();
        assert_eq!(Some(shown + out), peak(&whole)["live_bytes"].as_u64(), "{args:?}");
        assert!(part["filters"].is_object());
    }
    let other = folder.json(&["replay", "a.trace", "--site", "Net.forward"]);
    assert_eq!(other["leaks"].as_array().unwrap().len(), 0);
    assert_eq!(other["omitted"]["leaks"]["count"], 1);
    assert_eq!(other["omitted"]["leaks"]["bytes"], whole["leaks"][0]["bytes"]);
    assert!(!other["verdicts"].as_array().unwrap().iter().any(|verdict| verdict["kind"] == "leak"));
    // --fail-on ignores findings that a filter hides.
    let fails = ["replay", "a.trace", "--fail-on", "leaks"];
    assert_eq!(folder.run(&fails, "80").0, 3);
    assert_eq!(folder.run(&[&fails[..], &["--site", "Net.forward"]].concat(), "80").0, 0);
    assert_eq!(folder.run(&[&fails[..], &["--site", "train"]].concat(), "80").0, 3, "also by its caller");
    let since = folder.json(&["replay", "a.trace", "--since", "step:10", "--leaks"]);
    assert_eq!(
        (&since["traces"][0]["since"]["step"], &since["filters"]["since"]),
        (&10.into(), &"step:10".into())
    );
}

#[test]
fn compare_and_check_take_display_options() {
    let folder =
        Folder::with(&[("a.trace", &named("model", "keep", 12)), ("b.trace", &named("model", "other", 30))]);
    let (code, shown, errors) =
        folder.run(&["compare", "a.trace", "b.trace", "--top", "1", "--units", "kib"], "200");
    assert_eq!(code, 0, "{errors}");
    assert!(shown.contains("(--top N lists more)") && shown.contains("KiB"), "{shown}");
    assert!(!shown.contains("MiB"), "{shown}");
    let (_, colored, _) = folder.run(&["compare", "a.trace", "b.trace", "--color", "always"], "80");
    assert!(colored.contains("\u{1b}[1m"));
    assert_eq!(folder.run(&["check", "a.trace", "--budget", "b.toml", "--write"], "80").0, 0);
    let check = ["check", "b.trace", "--budget", "b.toml", "--top", "1", "--units", "bytes"];
    let (code, shown, errors) = folder.run(&check, "200");
    assert_eq!(code, 3, "{errors}");
    assert!(shown.contains("and 1") && !shown.contains("MiB") && !shown.contains("KiB"), "{shown}");
}

#[test]
fn filters_for_things_that_do_not_exist_are_one_line_errors() {
    let mut ranked = named("model", "keep", 5);
    ranked.meta.set_number("rank", 3);
    let folder = Folder::with(&[("a.trace", &named("model", "keep", 12)), ("b.trace", &ranked)]);
    for (args, says) in [
        (&["--gpu", "4"][..], "GPU 4 is not in the trace: there are 0"),
        (&["--since", "step:99"], "step:99 was not reached"),
        (&["--since", "100s"], "no event follows 100s; the trace covers"),
        (&["--stream", "0"], "trace tracker was not attached"),
        (&["--rank", "1"], "there are ranks 3; without a rank: a.trace"),
        (&["--top", "0"], "--top"),
        (&["--units", "ells"], "--units"),
        (&["--color", "green"], "--color"),
    ] {
        let (code, shown, errors) = folder.run(&[&["replay", "a.trace", "b.trace"], args].concat(), "80");
        assert_eq!((code, &*shown), (2, ""), "{args:?}: {errors}");
        assert!(errors.contains(says), "{args:?}: {errors}");
        assert!(errors.lines().count() == 1 || errors.starts_with("error:"), "{errors}");
    }
    let (code, shown, errors) = folder.run(&["replay", "a.trace", "b.trace", "--rank", "3"], "80");
    assert_eq!(code, 0, "{errors}");
    assert!(
        shown.starts_with("b.trace") && !shown.contains("a.trace:") && errors.contains("a.trace"),
        "{errors}"
    );
    let (code, _, errors) = folder.run(&["replay", "a.trace", "--site", "other.py:1"], "80");
    assert_eq!((code, errors.lines().count()), (0, 1), "{errors}");
}
