//! Files that commands write: the umask decides who reads them, files of others are kept, and
//! outputs of an earlier run are replaced.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use assert_cmd::Command;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/cuda-train.trace");
const EXPORTS: [&str; 10] = [
    "torch-snapshot",
    "torch-snapshot-json",
    "perfetto",
    "folded",
    "speedscope",
    "pprof",
    "firefox",
    "csv-sites",
    "csv-timeline",
    "svg",
];

/// The commands that write the file `OUT`, and whether they replace what an earlier run wrote.
fn writers() -> Vec<(String, bool)> {
    let budget = "check run.trace --budget budget.toml";
    let mut all: Vec<(String, bool)> =
        EXPORTS.iter().map(|format| (format!("export {format} run.trace -o OUT"), true)).collect();
    all.extend([
        ("html run.trace -o OUT".to_owned(), true),
        ("html run.trace --compare run.trace -o OUT".to_owned(), true),
        ("ranks run.trace -o OUT".to_owned(), true),
        (format!("{budget} --markdown OUT"), true),
        (format!("{budget} --junit OUT"), true),
        ("check run.trace --write --budget OUT".to_owned(), false),
        ("symbolize run.trace -o OUT".to_owned(), false),
    ]);
    all
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::copy(GOLDEN, folder.path().join("run.trace")).unwrap();
        let this = Self(folder);
        assert_eq!(this.run("check run.trace --write --budget budget.toml", "022").0, 0);
        this
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// The exit code and stderr.
    fn run(&self, arguments: &str, umask: &str) -> (i32, String) {
        let program = assert_cmd::cargo::cargo_bin("gpumemtrace");
        let done = Command::new("sh")
            .args(["-c", &format!("umask {umask}; exec {} {arguments}", program.display())])
            .current_dir(self.0.path())
            .env("GPUMEMTRACE_CACHE", "off")
            .output()
            .expect("it runs");
        (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stderr).into_owned())
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o777
    }
}

#[test]
fn umask_decides_who_may_read_an_output() {
    let folder = Folder::new();
    for (command, _) in writers() {
        for (umask, mode) in [("077", 0o600), ("022", 0o644), ("002", 0o664)] {
            let (code, error) = folder.run(&command.replace("OUT", umask), umask);
            assert_eq!((code, error.as_str()), (0, ""), "{command}");
            // The copy of a private trace is private.
            let mode = if command.starts_with("symbolize") { 0o600 } else { mode };
            assert_eq!(folder.mode(umask), mode, "{command}");
            fs::remove_file(folder.path(umask)).unwrap();
        }
    }
}

#[test]
fn only_outputs_of_the_same_command_are_replaced() {
    let folder = Folder::new();
    for (command, replaces_own) in writers() {
        let out = folder.path("out");
        fs::write(&out, "my own notes on gpumemtrace").unwrap();
        let command = command.replace("OUT", "out");
        let (code, error) = folder.run(&command, "022");
        assert_eq!(code, 2, "{command}: {error}");
        assert!(error.starts_with("gpumemtrace: out already exists"), "{command}: {error}");
        assert!(error.ends_with("; name another file, or add --force\n"), "{command}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(fs::read(&out).unwrap(), b"my own notes on gpumemtrace", "{command}");
        assert_eq!(folder.run(&format!("{command} --force"), "022").0, 0, "{command}");
        assert_ne!(fs::read(&out).unwrap(), b"my own notes on gpumemtrace", "{command}");
        let again = folder.run(&command, "022").0;
        assert_eq!(again, if replaces_own { 0 } else { 2 }, "{command}");
        // An empty file, as of `mktemp`, has nothing to lose.
        fs::write(&out, "").unwrap();
        assert_eq!(folder.run(&command, "022").0, 0, "{command}");
        fs::remove_file(&out).unwrap();
    }
    assert!(fs::read_dir(folder.0.path()).unwrap().count() == 2, "no temporary file is left");
}

#[test]
fn only_symbolize_replaces_a_trace() {
    let folder = Folder::new();
    let trace = fs::read(folder.path("run.trace")).unwrap();
    for (command, _) in writers() {
        let (code, error) = folder.run(&format!("{} --force", command.replace("OUT", "run.trace")), "022");
        let is_kept = !command.starts_with("symbolize");
        assert_eq!(code, if is_kept { 2 } else { 0 }, "{command}: {error}");
        if is_kept {
            let says = ["is a trace, which is kept; name another file", "is an input, and no summary"];
            assert!(says.iter().any(|says| error.contains(&format!("run.trace {says}"))), "{error}");
            assert_eq!(fs::read(folder.path("run.trace")).unwrap(), trace, "{command}");
        }
    }
}

#[test]
fn an_output_of_another_command_is_kept() {
    let folder = Folder::new();
    assert_eq!(folder.run("html run.trace -o out", "022").0, 0);
    for command in
        ["export svg run.trace -o out", "export csv-sites run.trace -o out", "symbolize run.trace -o out"]
    {
        let (code, error) = folder.run(command, "022");
        assert!(code == 2 && error.contains("out already exists"), "{command}: {error}");
    }
    let (code, error) = folder.run("html run.trace -o run.trace", "022");
    assert!(code == 2 && error.contains("run.trace already exists"), "{error}");
    assert_eq!(fs::read(folder.path("run.trace")).unwrap(), fs::read(GOLDEN).unwrap());
    // A copy, which has lost its attributes.
    fs::write(folder.path("copy"), fs::read(folder.path("out")).unwrap()).unwrap();
    assert_eq!(folder.run("html run.trace -o copy", "022").0, 0);
}

#[test]
fn links_stay_and_streams_are_written_to() {
    let folder = Folder::new();
    fs::create_dir(folder.path("far")).unwrap();
    std::os::unix::fs::symlink("far/page.html", folder.path("link")).unwrap();
    let (code, error) = folder.run("html run.trace -o link", "022");
    assert!(code == 2 && error.contains("link is a link to a file that does not exist"), "{error}");
    fs::write(folder.path("far/page.html"), "").unwrap();
    assert_eq!(folder.run("html run.trace -o link", "022").0, 0);
    assert!(
        folder.path("link").is_symlink() && fs::metadata(folder.path("far/page.html")).unwrap().len() > 1000
    );
    assert!(Path::new("/dev/full").exists());
    let (code, error) = folder.run("export svg run.trace -o /dev/full", "022");
    assert!(code != 0 && error.contains("cannot write /dev/full"), "{error}");
    let (code, error) = folder.run("export svg run.trace -o /dev/stdout | grep -q '<svg'", "022");
    assert_eq!((code, error.as_str()), (0, ""));
    let (code, error) = folder.run("html run.trace -o far", "022");
    assert!(code == 2 && error.contains("Is a directory") || error.contains("is a directory"), "{error}");
}
