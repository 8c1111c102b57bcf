//! Source lines in reports: only Python code that the run may have executed, whatever files a trace
//! names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;

const KEY: &str = "KEY_MATERIAL_1234";
const CODE: &str = "import torch\n\n\ndef fit(model):\n    MINE = torch.empty(1 << 20)\n\n\ndef other():\n    return KEY_MATERIAL_1234\n";

/// A folder with a project, and with files that no report may show.
struct Machine {
    root: tempfile::TempDir,
    host: String,
    user: u64,
}

impl Machine {
    fn new() -> Self {
        // `tempdir` has a name that begins with a dot.
        let root = tempfile::Builder::new().prefix("machine").tempdir().unwrap();
        let key = format!("-----BEGIN KEY-----\n{KEY}\n{KEY}\n{KEY}\n{KEY}\n");
        for (file, text) in [
            ("work/train.py", CODE),
            ("work/.env.py", &key),
            ("work/.git/hook.py", &key),
            ("work/key.pem", &key),
            ("work/key.py", &key),
            ("home/.ssh/id_ed25519", &key),
            ("home/settings.py", &key),
            ("venv/lib/python3.12/site-packages/lib.py", CODE),
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        std::os::unix::fs::symlink("../home/settings.py", root.path().join("work/link.py")).unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
        let user = u64::from(root.path().metadata().unwrap().uid());
        Self { root, host, user }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(file)
    }

    /// A trace with one call site, line 5 of `function` in `file`.
    fn trace(&self, file: &str, function: &str, change: impl FnOnce(&mut Synthetic)) -> PathBuf {
        let mut run = Synthetic::new();
        run.meta.set_text("host", self.host.clone());
        run.meta.set_number("user_id", self.user);
        run.meta.set_list("folders", vec![self.path("work").display().to_string()]);
        change(&mut run);
        let stack = run.frame(NodeId::NONE, file, function, 5);
        run.alloc(stack, 1 << 20);
        let path = self.path("run.trace");
        fs::write(&path, run.file(100)).unwrap();
        path
    }

    /// What reports and pages on the trace contain. They have a line that may be shown three times.
    fn outputs(&self, trace: &Path, options: &[&str]) -> String {
        let run = |arguments: &[&str]| {
            let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
            let done = command.env("GPUMEMTRACE_CACHE", "off").args(arguments).arg(trace).args(options);
            String::from_utf8(done.output().unwrap().stdout).unwrap()
        };
        let page = self.path("page.html");
        let _ = fs::remove_file(&page);
        let mut all = run(&["replay", "--peak", "--stacks"]) + &run(&["replay"]);
        run(&["html", "-o", page.to_str().unwrap()]);
        let page = fs::read_to_string(page).unwrap();
        all.push_str(&String::from_utf8(super::html::blob(&page, "data")).unwrap());
        all
    }
}

type Change = fn(&mut Synthetic);

#[test]
fn lines_of_the_run_and_of_libraries_are_shown() {
    let machine = Machine::new();
    let library = machine.path("venv/lib/python3.12/site-packages/lib.py");
    let mine = machine.path("work/train.py");
    for file in [mine.to_str().unwrap(), library.to_str().unwrap(), "train.py"] {
        let trace = machine.trace(file, "fit", |_| ());
        let shown = machine.outputs(&trace, &[]);
        assert_eq!(shown.matches("MINE = torch").count(), 3, "{file}: {shown}");
        assert!(!shown.contains("left out: "), "{file}");
    }
}

#[test]
fn other_files_are_not_shown_to_the_reader_of_a_report() {
    let machine = Machine::new();
    for (file, function, says_why) in [
        ("home/.ssh/id_ed25519", "fit", true),
        ("home/settings.py", "<module>", true),
        ("work/link.py", "<module>", true),
        ("work/../home/settings.py", "<module>", true),
        ("work/.env.py", "<module>", true),
        ("work/.git/hook.py", "<module>", true),
        ("work/key.pem", "<module>", false),
        ("work/key.py", "fit", false),
        ("work/train.py", "other", false),
        ("work/missing.py", "fit", false),
    ] {
        let trace = machine.trace(machine.path(file).to_str().unwrap(), function, |_| ());
        let shown = machine.outputs(&trace, &[]);
        assert!(!shown.contains(KEY) && !shown.contains("MINE"), "{file}: {shown}");
        assert_eq!(shown.contains("or not below the folder of the run"), says_why, "{file}: {shown}");
    }
}

#[test]
fn traces_of_others_show_source_lines_only_on_demand() {
    let machine = Machine::new();
    let mine = machine.path("work/train.py");
    let work = machine.path("work");
    let changes: [(&str, Change); 4] = [
        ("on another host", |run| run.meta.set_text("host", "elsewhere")),
        ("by another user", |run| run.meta.set_number("user_id", 4_000_000_000)),
        ("does not name the host and the user", |run| run.meta.set_text("user_id", "0")),
        ("not below the folder", |run| run.meta.set_list("folders", vec!["/".to_owned()])),
    ];
    for (why, change) in changes {
        let trace = machine.trace(mine.to_str().unwrap(), "fit", change);
        let shown = machine.outputs(&trace, &[]);
        assert!(!shown.contains("MINE") && shown.contains(why), "{why}: {shown}");
        assert!(shown.contains("--source DIR"), "{shown}");
        let asked = machine.outputs(&trace, &["--source", work.to_str().unwrap()]);
        assert_eq!(asked.matches("MINE = torch").count(), 3, "{why}: {asked}");
        let key = machine.path("home/settings.py");
        let trace = machine.trace(key.to_str().unwrap(), "<module>", change);
        assert!(!machine.outputs(&trace, &["--source", work.to_str().unwrap()]).contains(KEY), "{why}");
    }
}

#[test]
fn page_for_strangers_has_no_source_line_and_a_redacted_page_has_your_own() {
    let machine = Machine::new();
    let trace = machine.trace(machine.path("work/train.py").to_str().unwrap(), "fit", |_| ());
    let page_with = |options: &[&str]| {
        let page = machine.path("page.html");
        let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
        let command = command.env("GPUMEMTRACE_CACHE", "off").arg("html").arg(&trace).args(options);
        command.arg("-o").arg(&page).assert().success();
        let text = fs::read_to_string(page).unwrap();
        let data = String::from_utf8(super::html::blob(&text, "data")).unwrap();
        text + &data
    };
    assert!(page_with(&[]).contains("MINE = torch"));
    for options in [&["--no-source"][..], &["--no-source", "--redact"]] {
        let page = page_with(options);
        assert!(!page.contains("MINE") && page.contains("Source lines left out: --no-source"), "{options:?}");
    }
    assert!(page_with(&["--redact"]).contains("MINE = torch"));
}
