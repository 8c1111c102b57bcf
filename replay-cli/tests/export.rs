//! `export` for every format: outputs, windows, exit codes, determinism.
//!
//! The formats come from the command itself, so a new one is tested here without a row. Third-party
//! readers test the contents (`tests/suite/export`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use assert_cmd::Command;
use gpumemtrace_format::EventKind;
use gpumemtrace_synthetic::Synthetic;
use tempfile::TempDir;

/// Formats of several files, or written by another program. They have tests of their own.
const OTHER_FORMATS: [&str; 1] = ["parquet"];

fn command(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command
        .current_dir(folder)
        .env("LC_ALL", "C.UTF-8")
        .env("GPUMEMTRACE_CACHE", "off")
        .env_remove("COLUMNS")
        .env_remove("LD_PRELOAD");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A folder with `run.trace`: a training of 40 steps that leaks, with a mark and an error.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("run.trace"), training().file(100)).expect("disk space");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &str) -> Output {
        command(self.0.path()).args(words.split_whitespace()).output().expect("gpumemtrace runs")
    }

    /// Exports with these options; returns the file.
    fn export(&self, words: &str) -> Vec<u8> {
        let done = self.run(&format!("export {words} -o exported --force"));
        assert_eq!(done.status.code(), Some(0), "{words}: {}", text(&done.stderr));
        fs::read(self.path("exported")).expect("written")
    }

    fn formats(&self) -> Vec<String> {
        let script = text(&self.run("completions bash").stdout);
        let command = |line: &str| {
            line.trim().strip_prefix("gpumemtrace__subcmd__export,")?.strip_suffix(')').map(str::to_owned)
        };
        let formats = script.lines().filter_map(command);
        let formats: Vec<String> = formats.filter(|name| !OTHER_FORMATS.contains(&name.as_str())).collect();
        assert!(formats.iter().any(|name| name == "csv-sites"), "{formats:?}");
        formats
    }
}

fn training() -> Synthetic {
    Synthetic::train(40, |run, step, train| {
        let hook = run.frame(train, "/work/hooks.py", "Keeper.hook", 7);
        run.alloc(hook, 4 << 20);
        if step == 20 {
            run.frame(train, "", "middle", 1);
            let name = run.codes.iter().find(|code| code.name == "middle").expect("just added").id.0;
            run.event(EventKind::MARK, 0, 0, [2, u64::from(name)], hook);
            run.oom(hook, 1 << 40);
        }
    })
}

#[test]
fn equal_traces_give_equal_bytes() {
    let folder = Folder::new();
    let elsewhere = Folder::new();
    for format in folder.formats() {
        let first = folder.export(&format!("{format} run.trace"));
        assert!(!first.is_empty(), "{format}");
        assert_eq!(first, folder.export(&format!("{format} run.trace")), "{format}: written again");
        assert_eq!(first, elsewhere.export(&format!("{format} run.trace")), "{format}: in another folder");
        let to_stdout = folder.run(&format!("export {format} run.trace -o -")).stdout;
        assert_eq!(first, to_stdout, "{format}: to stdout");
    }
}

#[test]
fn default_output_is_beside_the_trace_and_named() {
    let folder = Folder::new();
    for format in folder.formats() {
        let before: Vec<_> = names(&folder);
        let done = folder.run(&format!("export {format} run.trace"));
        let new: Vec<_> = names(&folder).into_iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(new.len(), 1, "{format}: {new:?}");
        assert!(new[0].starts_with("run."), "{format}: {new:?}");
        assert!(text(&done.stdout).starts_with(&format!("{} (", new[0])), "{}", text(&done.stdout));
    }
}

#[test]
fn default_output_of_a_folder_has_its_whole_name() {
    let folder = Folder::new();
    fs::create_dir(folder.path("traces.v2")).unwrap();
    fs::rename(folder.path("run.trace"), folder.path("traces.v2/run.trace")).unwrap();
    let in_folder = |words: &str| {
        let done = command(&folder.path("traces.v2")).args(words.split_whitespace()).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let name = |said: &str| said.split_once(" (").expect("a size").0.to_owned();
    assert_eq!(name(&text(&folder.run("export folded traces.v2").stdout)), "traces.v2.folded");
    assert_eq!(name(&in_folder("export csv-sites .")), "../traces.v2.sites.csv");
    assert_eq!(name(&in_folder("html .")), "../traces.v2.html");
    let pattern = folder.run("html traces.v2/*.trace");
    assert_eq!(pattern.status.code(), Some(2), "{}", text(&pattern.stderr));
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.0.path()).expect("a folder");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

#[test]
fn every_format_takes_every_window() {
    let folder = Folder::new();
    for format in folder.formats() {
        let whole = folder.export(&format!("{format} run.trace"));
        for window in [
            "--since step:10 --until step:12",
            "--until peak",
            "--until end",
            "--around peak",
            "--around oom",
            "--around mark:middle",
            "--since step:10 --until step:10",
        ] {
            let part = folder.export(&format!("{format} run.trace {window}"));
            assert!(!part.is_empty() || window.ends_with("step:10"), "{format} {window}");
            if window == "--since step:10 --until step:12" {
                assert_ne!(part, whole, "{format} {window}");
            }
        }
    }
}

#[test]
fn wrong_use_is_one_sentence_and_writes_nothing() {
    let folder = Folder::new();
    fs::write(folder.path("kept"), "before").unwrap();
    for (words, code, said) in [
        ("export pickle run.trace -o kept", 2, "unrecognized subcommand 'pickle'"),
        ("export csv-sites nothing.trace -o kept", 5, "nothing.trace"),
        ("export csv-sites kept -o kept", 5, "kept"),
        ("export csv-sites run.trace --since step:99 -o kept", 2, "does not reach --since step:99"),
        ("export csv-sites run.trace --around mark:other -o kept", 2, "does not reach --around mark:other"),
        ("export csv-sites run.trace --since step:9 --until step:3 -o kept", 2, "--since lies after --until"),
        ("export csv-sites run.trace --since 1s --around peak -o kept", 2, "cannot be used with"),
        ("export csv-sites run.trace -o no/such/folder", 2, "choose another file with --output"),
        ("export csv-sites -o kept", 2, "<TRACE>"),
        ("export folded run.trac?", 2, "run.trac? is a pattern; name the output with --output"),
    ] {
        // Without --force, the file is kept in any case.
        let done = folder.run(&words.replace("-o kept", "-o kept --force"));
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{words}: {error}");
        assert!(error.replace("\n    ", " ").contains(said), "{words}: {error}");
        assert_eq!(fs::read(folder.path("kept")).unwrap(), b"before", "{words}");
    }
    let left: Vec<_> = names(&folder).into_iter().filter(|name| name.starts_with(".gpumemtrace")).collect();
    assert!(left.is_empty(), "temporary files are removed: {left:?}");
}

#[test]
fn existing_file_is_replaced_whole() {
    let folder = Folder::new();
    fs::write(folder.path("exported"), "x".repeat(10_000_000)).unwrap();
    let replaced = folder.export("csv-sites run.trace");
    assert!(replaced.starts_with(b"trace,rank,") && replaced.len() < 10_000_000);
}

#[test]
fn closed_pipe_is_not_an_error() {
    let folder = Folder::new();
    let binary = assert_cmd::cargo::cargo_bin("gpumemtrace");
    for format in folder.formats() {
        let mut child = std::process::Command::new(&binary)
            .current_dir(folder.0.path())
            .args(["export", &format, "run.trace", "-o", "-"])
            .env("GPUMEMTRACE_CACHE", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{format}: {}", text(&done.stderr));
        assert!(!text(&done.stderr).contains("panicked"), "{format}");
    }
}

#[test]
fn incomplete_trace_is_exported_with_exit_code_6() {
    let folder = Folder::new();
    let whole = fs::read(folder.path("run.trace")).unwrap();
    fs::write(folder.path("cut.trace"), &whole[..whole.len() * 3 / 4]).unwrap();
    for format in folder.formats() {
        let done = folder.run(&format!("export {format} cut.trace -o cut"));
        assert_eq!(done.status.code(), Some(6), "{format}: {}", text(&done.stderr));
        assert!(folder.path("cut").exists(), "{format}");
        fs::remove_file(folder.path("cut")).unwrap();
    }
}

#[test]
fn damage_at_any_place_never_panics() {
    let folder = Folder::new();
    let whole = fs::read(folder.path("run.trace")).unwrap();
    let formats = folder.formats();
    for (turn, at) in (0..whole.len()).step_by(whole.len() / 40).enumerate() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(folder.path("damaged.trace"), &damaged).unwrap();
        let format = &formats[turn % formats.len()];
        let done = folder.run(&format!("export {format} damaged.trace -o damaged --force"));
        assert!(matches!(done.status.code(), Some(0 | 5 | 6)), "{format} at {at}: {}", text(&done.stderr));
    }
}
