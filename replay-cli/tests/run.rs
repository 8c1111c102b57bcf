//! `gpumemtrace run`: the command behaves as if it had been started directly.

use std::fs;

use assert_cmd::Command;
use gpumemtrace_synthetic::Synthetic;

/// Runs with an empty file as the library: the loader warns that it cannot preload it and goes on.
fn command(folder: &std::path::Path) -> Command {
    let library = folder.join("libgpumemtrace.so");
    fs::write(&library, b"").unwrap();
    let mut command = Command::cargo_bin("gpumemtrace").unwrap();
    command
        .env("GPUMEMTRACE_LIB", library)
        .current_dir(folder)
        .env_remove("LD_PRELOAD")
        .env_remove("GPUMEMTRACE_OUTPUT");
    command
}

#[test]
fn output_and_exit_code_are_those_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    for (script, code, out) in [
        ("echo hello", 0, "hello\n"),
        ("exit 41", 41, ""),
        ("kill -SEGV $$", 139, ""),
        ("kill -9 $$", 137, ""),
        ("kill -TERM $$", 143, ""),
    ] {
        let output = command(folder.path()).args(["run", "--", "sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), out);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("gpumemtrace: wrote"));
    }
    let missing = command(folder.path()).args(["run", "--", "no-such-command-here"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    let option = command(folder.path()).args(["run", "--force", "true"]).output().unwrap();
    assert_eq!(option.status.code(), Some(2));
    let says = String::from_utf8_lossy(&option.stderr).into_owned();
    assert_eq!(says, "gpumemtrace: run has no option --force; see gpumemtrace run --help\n");
}

#[test]
fn python_files_and_modules_run_in_python() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let [bin, environment] = ["bin", "environment/bin"].map(|name| here.join(name));
    for folder in [&bin, &environment] {
        fs::create_dir_all(folder).unwrap();
    }
    let write = |path: &std::path::Path, text: &str| {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    for path in [bin.join("python3"), bin.join("caller"), environment.join("python")] {
        let name = path.file_name().unwrap().display();
        write(&path, &format!("#!/bin/sh\necho {name} \"$@\" \"[$GPUMEMTRACE_PYTHON]\"\n"));
    }
    fs::write(here.join("train.py"), "").unwrap();
    write(&here.join("tool.py"), "#!/bin/sh\necho itself \"$@\"\n");
    let output = |variable: &str, value: Option<&std::path::Path>, arguments: &[&str]| {
        let mut run = command(here);
        let path = format!("{}:/usr/bin:/bin", bin.display());
        run.env("PATH", path)
            .env_remove("GPUMEMTRACE_PYTHON")
            .env_remove("VIRTUAL_ENV")
            .arg("run")
            .args(arguments);
        if let Some(value) = value {
            run.env(variable, value);
        }
        run.output().unwrap()
    };
    let stdout = |caller: Option<&std::path::Path>, arguments: &[&str]| {
        String::from_utf8(output("GPUMEMTRACE_PYTHON", caller, arguments).stdout).unwrap()
    };
    assert_eq!(stdout(None, &["train.py", "--epochs", "3"]), "python3 train.py --epochs 3 []\n");
    assert_eq!(stdout(None, &["-m", "pkg", "--output", "x"]), "python3 -m pkg --output x []\n");
    assert_eq!(stdout(None, &["--output", "y.trace", "--", "-m", "pkg"]), "python3 -m pkg []\n");
    assert_eq!(stdout(Some(&bin.join("caller")), &["train.py"]), "caller train.py []\n");
    assert_eq!(stdout(None, &["./tool.py", "1"]), "itself 1\n");
    // The active environment comes before `PATH`, unless it has no Python.
    let active = output("VIRTUAL_ENV", environment.parent(), &["train.py"]);
    assert_eq!(String::from_utf8_lossy(&active.stdout), "python train.py []\n");
    let named = format!("gpumemtrace: the Python is {}\n", environment.join("python").display());
    assert!(String::from_utf8_lossy(&active.stderr).starts_with(&named), "{active:?}");
    let stale = output("VIRTUAL_ENV", Some(&here.join("gone")), &["train.py"]);
    assert_eq!(String::from_utf8_lossy(&stale.stdout), "python3 train.py []\n");
}

#[test]
fn options_become_environment_variables_and_ld_preload_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $LD_PRELOAD; echo $GPUMEMTRACE_OUTPUT; echo $GPUMEMTRACE_STACKS; \
                  echo $GPUMEMTRACE_ON_FULL; echo $GPUMEMTRACE_MAX_TOTAL_SIZE; \
                  echo $GPUMEMTRACE_COMMAND_LINE";
    let output = command(folder.path())
        .env("LD_PRELOAD", "/other.so")
        .args([
            "run",
            "--output",
            "x.trace",
            "--stacks",
            "both",
            "--on-full",
            "drop",
            "--max-total-size",
            "10GiB",
            "--no-command-line",
            "--",
            "sh",
            "-c",
            script,
        ])
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let here = folder.path().canonicalize().unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(
        lines,
        [
            format!("{}:/other.so", here.join("libgpumemtrace.so").display()).as_str(),
            &here.join("x.trace").display().to_string(),
            "both",
            "drop",
            "10GiB",
            "off",
        ]
    );
}

#[test]
fn output_with_a_slash_at_its_end_makes_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, command_line: &str| {
        let output = command(folder.path())
            .args(["run", "-o", name, "--", "sh", "-c", command_line])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    fs::write(folder.path().join("trace"), Synthetic::train(2, |_, _, _| {}).file(1000)).unwrap();
    let (code, says) = run("new/traces/", "cp trace new/traces/run.trace");
    assert_eq!((code, says.contains("wrote new/traces/run.trace")), (Some(0), true), "{says}");
    // It may exist already.
    assert_eq!(run("new/traces/", "true").0, Some(0));
    fs::write(folder.path().join("file"), "").unwrap();
    let (code, says) = run("file/traces/", "touch ran");
    assert_eq!(code, Some(2), "{says}");
    assert!(says.starts_with("gpumemtrace: --output: folder file/traces/ cannot be made: "), "{says}");
    assert!(!folder.path().join("ran").exists(), "the command was not started");
}

#[test]
fn device_is_no_output_and_folder_from_the_environment_is() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        command(folder.path()).args(["run", "-o", "/dev/null", "--", "echo", "ran"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("/dev/null is a device; a trace needs a file"), "{errors}");

    fs::create_dir(folder.path().join("traces")).unwrap();
    let trace = Synthetic::train(2, |_, _, _| {}).file(1000);
    fs::write(folder.path().join("trace"), &trace).unwrap();
    let output = command(folder.path())
        .env("GPUMEMTRACE_OUTPUT", "traces")
        .args(["run", "--", "cp", "trace", "traces/run.trace"])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("wrote traces/run.trace"), "{errors}");
}

#[test]
fn wait_status_is_not_written_into_traces_of_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    // The traces have the process ID of neither the command nor of any child.
    let mut own = Synthetic::train(2, |_, _, _| {});
    own.meta.set_number("pid", 0x1234_5678);
    fs::write(folder.path().join("template"), own.file_without_end(1000)).unwrap();
    let script = r"
import os, signal
data = open('template', 'rb').read()
os.unlink('template')
open('other.trace', 'wb').write(data)
open('run.trace', 'wb').write(data)
os.kill(os.getpid(), signal.SIGSEGV)
";
    let output = command(folder.path()).args(["run", "--", "python3", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(139));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("wrote run.trace; next: gpumemtrace replay run.trace"), "{errors}");
    // The new trace is unchanged.
    let length = own.file_without_end(1000).len() as u64;
    assert_eq!(fs::metadata(folder.path().join("run.trace")).unwrap().len(), length);
}

#[test]
fn crash_is_written_into_the_trace_of_the_crashed_process() {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    assert_eq!(end_of_trace_with_own_pid(own.trim_end()), ("crashed".into(), "signal 11".into()));
}

#[cfg(target_os = "linux")]
#[test]
fn crash_is_not_written_into_a_trace_of_another_host() {
    // In a shared folder, its process may have the same ID.
    assert_eq!(end_of_trace_with_own_pid("elsewhere"), ("killed".into(), serde_json::Value::Null));
}

/// Runs a command that leaves a trace of its process ID and crashes. Returns how the trace ended.
fn end_of_trace_with_own_pid(host: &str) -> (serde_json::Value, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    // The process ID is not known beforehand, so the command encodes its own metadata block.
    let mut run = Synthetic::train(2, |_, _, _| {});
    run.meta.set_text("host", host);
    fs::write(folder.path().join("body"), run.file_without_end(1000)).unwrap();
    let script = r"
import os, signal, struct
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
name = b'pid'
payload = struct.pack('<QQ', 1, len(name)) + name + struct.pack('<IQ', 0, os.getpid())
head = b'GMTB' + bytes([1, 0, 0, 0]) + struct.pack('<III', len(payload), len(payload), crc32c(payload))
block = head + struct.pack('<I', crc32c(head)) + payload
open('run.trace', 'wb').write(open('body', 'rb').read() + block)
os.unlink('body')
os.kill(os.getpid(), signal.SIGSEGV)
";
    let output = command(folder.path()).args(["run", "--", "python3", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(139), "{}", String::from_utf8_lossy(&output.stderr));
    let output = command(folder.path()).args(["replay", "run.trace", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = &report["traces"][0];
    (trace["end"].clone(), trace["end_detail"].clone())
}

#[test]
fn only_files_the_recorder_may_have_named_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Synthetic::train(2, |_, _, _| {}).file(1000);
    fs::write(folder.path().join("trace"), &trace).unwrap();
    // Opening a pipe would block. A trace of another name belongs to another run.
    let script =
        "cp trace run.trace; cp trace run.rank1.trace; cp trace other.trace; mkfifo run.9.trace pipe";
    let output = command(folder.path())
        .args(["run", "--", "sh", "-c", script])
        .timeout(std::time::Duration::from_secs(20))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let wrote: Vec<&str> = errors.lines().filter(|line| line.contains("wrote")).collect();
    assert_eq!(wrote.len(), 2, "{errors}");
    assert!(wrote[0].contains("wrote run.rank1.trace;") && wrote[1].contains("wrote run.trace;"), "{errors}");
    let output = command(folder.path()).args(["run", "--", "true"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("no trace: the command made no GPU call (or changed folder: use --output)"),
        "{errors}"
    );
}

#[test]
fn output_folder_is_passed_to_the_recorder() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    let here = folder.path().canonicalize().unwrap();
    for given in ["out/", "out"] {
        let output = command(folder.path())
            .args(["run", "--output", given, "--", "sh", "-c", "echo $GPUMEMTRACE_OUTPUT"])
            .output()
            .unwrap();
        let expected = format!("{}/\n", here.join("out").display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
    let output =
        command(folder.path()).args(["run", "-o", "missing/run.trace", "--", "true"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--output: folder missing does not exist"), "{errors}");
}

#[test]
fn missing_library_is_a_usage_error() {
    let mut command = Command::cargo_bin("gpumemtrace").unwrap();
    let output = command.env("GPUMEMTRACE_LIB", "/no/such/lib.so").args(["run", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("cannot use /no/such/lib.so, which GPUMEMTRACE_LIB names")
    );
}

#[test]
fn library_path_with_space_is_refused_before_the_start() {
    let folder = tempfile::Builder::new().prefix("a space ").tempdir().unwrap();
    let output = command(folder.path()).args(["run", "--", "touch", "started"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot hold a path with a space"));
    assert!(!folder.path().join("started").exists());
}
