//! The commands `compare` and `check`: outputs, exit codes, bad input.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;
use gpumemtrace_synthetic::Synthetic;
use serde_json::Value;
use tempfile::TempDir;

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        folder.put("clean.trace", &training(0, 0).file(100));
        folder.put("leaky.trace", &training(0, 4 << 20).file(100));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).expect("disk space");
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a file")
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_in(100, args)
    }

    /// Runs the command with this value of COLUMNS.
    fn run_in(&self, columns: usize, args: &[&str]) -> Output {
        let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
        command
            .env("COLUMNS", columns.to_string())
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TERM")
            .env("GPUMEMTRACE_CACHE", "off")
            .env_remove("LD_PRELOAD");
        command.current_dir(self.0.path()).args(args).output().expect("it starts")
    }

    /// Checks the exit code and that stderr is empty, and returns stdout.
    fn shows(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.is_empty(), "{errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Checks the exit code and that stdout is empty, and returns the only line on stderr.
    fn complains(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(output.stdout.is_empty());
        errors
    }

    fn json(&self, args: &[&str], code: i32) -> Value {
        serde_json::from_str(&self.shows(args, code)).expect("JSON")
    }
}

/// Twelve steps that allocate at line `10 + first`; a hook retains `kept` bytes in each.
fn training(first: i32, kept: u64) -> Synthetic {
    Synthetic::train(12, |run, _, train| {
        let work = run.frame(train, "/work/extra.py", "work", 10 + first);
        let block = run.alloc(work, 1 << 20);
        run.release(block, train);
        if kept > 0 {
            let hook = run.frame(train, "/work/hooks.py", "Keeper.hook", 7);
            run.alloc(hook, kept);
        }
    })
}

#[test]
fn comparison_texts_match_snapshots() {
    let folder = Folder::new();
    folder.put("moved.trace", &training(3, 0).file(70));
    insta::assert_snapshot!("compare_same", folder.shows(&["compare", "clean.trace", "moved.trace"], 0));
    insta::assert_snapshot!("compare", folder.shows(&["compare", "clean.trace", "leaky.trace"], 0));
    insta::assert_snapshot!("compare_back", folder.shows(&["compare", "leaky.trace", "clean.trace"], 0));
}

#[test]
fn exit_code_is_3_only_for_growth_that_fail_on_names() {
    let folder = Folder::new();
    let cases = [
        ("clean.trace", "leaky.trace", "growth", 3),
        ("clean.trace", "leaky.trace", "leaks", 3),
        ("clean.trace", "leaky.trace", "peak", 3),
        ("clean.trace", "leaky.trace", "oom", 0),
        ("clean.trace", "leaky.trace", "oom,leaks", 3),
        ("leaky.trace", "clean.trace", "growth,peak,leaks,oom", 0),
        ("leaky.trace", "clean.trace", "any", 3),
        ("clean.trace", "clean.trace", "any", 0),
    ];
    for (before, after, kind, code) in cases {
        folder.shows(&["compare", before, after, "--fail-on", kind], code);
    }
    folder.shows(&["replay", "leaky.trace", "--leaks", "--fail-on", "oom,leaks"], 3);
    folder.shows(&["replay", "clean.trace", "--leaks", "--fail-on", "leaks"], 0);
    assert_eq!(folder.run(&["compare", "clean.trace"]).status.code(), Some(2));
    assert_eq!(
        folder.run(&["compare", "clean.trace", "leaky.trace", "--fail-on", "leeks"]).status.code(),
        Some(2)
    );
}

#[test]
fn comparison_and_check_match_their_schemas() {
    let folder = Folder::new();
    let mut out_of_memory = training(5, 4 << 20);
    let line = out_of_memory.frame(gpumemtrace_format::NodeId::NONE, "/work/train.py", "big", 77);
    out_of_memory.oom(line, 40 << 30);
    folder.put("oom.trace", &out_of_memory.file(100));
    for (before, after) in
        [("clean.trace", "oom.trace"), ("oom.trace", "leaky.trace"), ("clean.trace", "clean.trace")]
    {
        let comparison = folder.json(&["compare", before, after, "--json"], 0);
        assert_eq!(crate::schema::violations("comparison", &comparison), [""; 0]);
        assert_eq!(comparison["differs"], before != after);
    }
    let comparison = folder.json(&["compare", "clean.trace", "oom.trace", "--json"], 0);
    assert_eq!(comparison["ooms"][0]["after"]["line"], 77);
    assert_eq!(comparison["lines"][0]["after"]["stack"][0]["function"], "Keeper.hook");
    folder.shows(&["check", "clean.trace", "--budget", "b.toml", "--write"], 0);
    for (trace, code) in [("clean.trace", 0), ("oom.trace", 3)] {
        let check = folder.json(&["check", trace, "--budget", "b.toml", "--json"], code);
        assert_eq!(crate::schema::violations("check", &check), [""; 0]);
        assert_eq!(check["passed"], code == 0);
    }
}

#[test]
fn unreadable_trace_is_exit_code_5_and_incomplete_trace_6() {
    let folder = Folder::new();
    folder.put("foreign.trace", b"\x7fELF and much more that is no trace at all, really");
    folder.put("cut.trace", &training(0, 0).file_without_end(100));
    assert!(
        folder.complains(&["compare", "clean.trace", "gone.trace"], 5).contains("gone.trace does not exist")
    );
    assert!(
        folder
            .complains(&["compare", "foreign.trace", "clean.trace"], 5)
            .contains("is not a gpumemtrace trace")
    );
    assert!(folder.shows(&["compare", "clean.trace", "cut.trace"], 6).contains("INCOMPLETE"));
    folder.shows(&["compare", "clean.trace", "cut.trace", "--fail-on", "any"], 6);
    folder.shows(&["check", "clean.trace", "--budget", "b.toml", "--write"], 0);
    assert!(
        folder
            .complains(&["check", "gone.trace", "--budget", "b.toml"], 5)
            .contains("gone.trace does not exist")
    );
    assert!(folder.shows(&["check", "cut.trace", "--budget", "b.toml"], 6).contains("INCOMPLETE"));
    assert!(folder.shows(&["check", "cut.trace", "--budget", "cut.toml", "--write"], 6).contains("too low"));
    assert!(
        folder
            .complains(&["check", "clean.trace", "--budget", "gone.toml"], 5)
            .contains("create it from this trace with --write")
    );
}

#[test]
fn written_budget_is_met_and_not_overwritten_without_force() {
    let folder = Folder::new();
    let write = ["check", "clean.trace", "--budget", "b.toml", "--write"];
    folder.shows(&write, 0);
    insta::assert_snapshot!("budget", folder.text("b.toml"));
    let written = folder.text("b.toml");
    assert!(folder.complains(&write, 2).contains("b.toml already exists; name another file, or add --force"));
    folder.put("b.toml", b"[peak]\nlive = 1\n");
    folder.shows(&[&write[..], &["--force"]].concat(), 0);
    assert_eq!(folder.text("b.toml"), written);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder.path("b.toml")).unwrap().permissions());
    folder.put("other", b"");
    let of_others =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(folder.path("other")).unwrap().permissions());
    assert_eq!(mode, of_others, "the umask applies");
    insta::assert_snapshot!("check", folder.shows(&["check", "clean.trace", "--budget", "b.toml"], 0));
    insta::assert_snapshot!("check_failed", folder.shows(&["check", "leaky.trace", "--budget", "b.toml"], 3));
}

#[test]
fn growth_that_may_be_a_leak_is_named_when_checked_and_when_written() {
    let folder = Folder::new();
    let maybe = Synthetic::train(31, |run, step, train| {
        if [10, 15, 20, 25].contains(&step) {
            let keep = run.frame(train, "/work/train.py", "keep", 70);
            run.alloc(keep, 64 << 20);
        }
    });
    folder.put("maybe.trace", &maybe.file(100));
    let written = folder.shows(&["check", "maybe.trace", "--budget", "b.toml", "--write"], 0);
    assert!(written.contains("what is or may be a leak: 256.00 MiB at /work/train.py:70"), "{written}");
    let checked = folder.shows(&["check", "maybe.trace", "--budget", "b.toml"], 0);
    assert!(checked.contains("256.00 MiB at /work/train.py:70 in keep() may be a leak"), "{checked}");
    let clean = folder.shows(&["check", "clean.trace", "--budget", "c.toml", "--write"], 0);
    assert!(!clean.contains("leak"), "{clean}");
}

#[test]
fn invalid_budget_is_one_line_and_exit_code_2() {
    let folder = Folder::new();
    for (text, expected) in [
        ("[peak]\nliev = 3\n", "b.toml: line 2: unknown field `liev`"),
        ("[peak]\nlive = 'much'\n", "a size, such as"),
        ("[peak\n", "b.toml: line 1: "),
        ("", "has no budget"),
    ] {
        folder.put("b.toml", text.as_bytes());
        // The budget is checked before the trace is opened, so the trace need not exist.
        let stderr = folder.complains(&["check", "gone.trace", "--budget", "b.toml"], 2);
        assert!(stderr.contains(expected), "{stderr}");
    }
    folder.put("b.toml", b"[peak]\nlive = 3\n");
    let both = ["check", "clean.trace", "--budget", "b.toml", "--markdown", "-", "--json"];
    assert!(folder.complains(&both, 2).contains("can write to stdout"));
}

#[test]
fn markdown_and_junit_are_written_to_their_files() {
    let folder = Folder::new();
    folder.put("b.toml", b"[peak]\nlive = '1 GiB'\n[leaks]\ncount = 0\n[[site]]\nmatch = 'gone.py'\npeak = { limit = 1, if_unknown = 'pass' }\n");
    let args = ["check", "leaky.trace", "--budget", "b.toml", "--markdown", "m.md", "--junit", "j.xml"];
    assert!(folder.shows(&args, 3).contains("FAIL     leaks.count"));
    insta::assert_snapshot!("check_markdown", folder.text("m.md"));
    insta::assert_snapshot!("check_junit", folder.text("j.xml"));
    let to_stdout = ["check", "leaky.trace", "--budget", "b.toml", "--markdown", "-"];
    assert_eq!(folder.shows(&to_stdout, 3), folder.text("m.md"));
    let mut unwritable = args;
    unwritable[5] = "no/such/folder.md";
    assert!(folder.complains(&unwritable, 2).contains("cannot write no/such/folder.md"));
}

#[test]
fn check_text_fits_the_terminal() {
    let folder = Folder::new();
    let lines_in = |columns: usize, args: &[&str]| {
        let text = String::from_utf8(folder.run_in(columns, args).stdout).expect("UTF-8");
        assert!(!text.is_empty());
        for line in text.lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        text.lines().count()
    };
    let write = ["check", "clean.trace", "--budget", "b.toml", "--write", "--force"];
    assert_eq!((lines_in(80, &write), lines_in(60, &write)), (1, 2));
    let check = ["check", "leaky.trace", "--budget", "b.toml"];
    let [narrow, usual, wide] = [60, 80, 150].map(|columns| lines_in(columns, &check));
    assert!(narrow > usual && usual >= wide, "{narrow} {usual} {wide}");
}
