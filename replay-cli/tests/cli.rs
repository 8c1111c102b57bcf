//! The command line: formats, exit codes, bad input, damaged traces.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;
use gpumemtrace_format::block::{BlockKind, encode_block, file_header};
use gpumemtrace_format::ring::{HEADER_BYTES, RingLayout, encode_header};
use gpumemtrace_format::{EventKind, Meta, NodeId, PyNode, definitions, event_block};
use gpumemtrace_synthetic::{Synthetic, in_flight, ring_file};
use tempfile::TempDir;

fn command() -> Command {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command
        .env("COLUMNS", "200")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("TERM")
        .env("GPUMEMTRACE_CACHE", "off")
        .env_remove("NO_COLOR")
        .env_remove("LD_PRELOAD");
    command
}

fn run(args: &[&str]) -> Output {
    command().args(args).output().expect("gpumemtrace runs")
}

/// The text without line breaks inside sentences.
fn sentences(bytes: &[u8]) -> String {
    text(bytes).replace("\n    ", " ")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).expect("disk space");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Twelve steps that leak in a hook; everything is freed at the end.
fn leaky() -> Synthetic {
    let mut run = Synthetic::train(12, |run, _, train| {
        let call = run.frame(
            train,
            &format!("{}nn/modules/module.py", gpumemtrace_synthetic::TORCH),
            "Module._call_impl",
            201,
        );
        let hook = run.frame(call, "/work/hooks.py", "Keeper.hook", 7);
        run.alloc(hook, 4 << 20);
    });
    run.release_all();
    run
}

#[test]
fn json_is_printed_with_every_section_and_text_is_the_default() {
    let folder = Folder::new();
    let path = folder.put("run.trace", &leaky().file(100));
    for sections in [&[][..], &["--leaks"], &["--timeline", "--peak"]] {
        let stdout = |format: &[&str]| run(&[&["replay", &path], sections, format].concat()).stdout;
        assert!(serde_json::from_slice::<serde_json::Value>(&stdout(&["--json"])).is_ok(), "{sections:?}");
        assert!(!stdout(&[]).starts_with(b"{"), "{sections:?}");
    }
    for wrong in [&["--format", "json"][..], &["--json", "--json"]] {
        assert_eq!(run(&[&["replay", &path], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn exit_code_is_3_for_findings_only_with_fail_on() {
    let folder = Folder::new();
    let (clean, leak) = (
        folder.put("clean.trace", &Synthetic::train(9, |_, _, _| {}).file(100)),
        folder.put("leak.trace", &leaky().file(100)),
    );
    for (args, code) in [
        (vec!["replay", &clean], 0),
        (vec!["replay", &leak], 0),
        (vec!["replay", &leak, "--fail-on", "leaks"], 3),
        (vec!["replay", &leak, "--fail-on", "any", "--json"], 3),
        (vec!["replay", &leak, "--fail-on", "oom"], 0),
        (vec!["replay", &clean, &leak, "--fail-on", "leaks"], 3),
        (vec!["info", &leak], 0),
        (vec!["dump", &leak, "--stacks"], 0),
        (vec!["--help"], 0),
        (vec!["replay", "--help"], 0),
        (vec!["--version"], 0),
        (vec!["replay"], 2),
        (vec!["replay", &leak, "--frobnicate"], 2),
        (vec![], 2),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn unreadable_input_is_one_line_and_exit_code_5() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let empty = folder.put("empty.trace", b"");
    let foreign = folder.put("foreign.trace", b"\x7fELF and much more that is no trace at all, really");
    let short = folder.put("short.trace", b"gpumtrc");
    let mut newer = leaky().file(100);
    newer[8] = 9;
    let crc = crc32c::crc32c(&newer[..12]);
    newer[12..16].copy_from_slice(&crc.to_le_bytes());
    let newer = folder.put("newer.trace", &newer);
    let locked = folder.put("locked.trace", &leaky().file(100));
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    let missing = folder.path("missing.trace").display().to_string();
    let directory = folder.0.path().display().to_string();
    for (path, says) in [
        (&empty, "is empty"),
        (&foreign, "is not a gpumemtrace trace"),
        (&short, "is empty"),
        (&newer, "use a newer one"),
        (&missing, "does not exist"),
        (&directory, "is a directory"),
        (&"/dev/null".to_owned(), "is not a regular file"),
    ] {
        for command in ["replay", "info", "dump"] {
            if command == "replay" && path == &directory {
                continue; // Its traces are read.
            }
            let output = run(&[command, path]);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(5), "{command} {path}: {errors}");
            assert!(errors.contains(says) && errors.contains(path.as_str()), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
            assert!(output.stdout.is_empty());
        }
    }
    // Root can read any file.
    if fs::File::open(&locked).is_err() {
        assert_eq!(run(&["replay", &locked]).status.code(), Some(5));
    }
}

#[test]
fn damage_at_any_byte_is_exit_code_5_or_6() {
    let folder = Folder::new();
    let sound = Synthetic::train(3, |_, _, _| {}).file(40);
    let mut seen = std::collections::BTreeSet::new();
    for at in (0..sound.len()).step_by(sound.len() / 25) {
        let mut flipped = sound.clone();
        flipped[at] ^= 0x10;
        for bytes in [&flipped[..], &sound[..at]] {
            let path = folder.put("bad.trace", bytes);
            for section in ["--leaks", "--json"] {
                let output = run(&["replay", &path, section]);
                let code = output.status.code().expect("no signal");
                assert!(code == 5 || code == 6, "at {at}: {code} {}", text(&output.stderr));
                assert!(!text(&output.stderr).contains("panicked"));
                seen.insert(code);
                if code == 6 && section == "--leaks" {
                    assert!(text(&output.stdout).contains("INCOMPLETE"));
                }
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn killed_trace_is_complete_with_its_ring_file_only() {
    let folder = Folder::new();
    let run_ = leaky();
    let cut = run_.events.len() - 60;
    let path = folder.put("run.trace", &run_.file_of(&run_.events[..cut], 100));
    let output = run(&["replay", &path]);
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stdout).contains(".ring"), "{}", text(&output.stdout));
    let mut rest = run_.events[cut - 10..].to_vec();
    let mut call = run_.events[0];
    call.kind = EventKind::DEVICE_ALLOC;
    rest.push(in_flight(call));
    folder.put("run.trace.ring", &ring_file(&rest, run_.events.len() as u64));
    let output = run(&["replay", &path, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["traces"][0]["end"], "killed");
    assert_eq!(report["traces"][0]["losses"]["dropped_events"], 0);
    assert_eq!(report["traces"][0]["losses"]["in_flight_calls"], 1);
    // A file of this name that is no ring file.
    folder.put("run.trace.ring", b"nonsense");
    let output = run(&["replay", &path]);
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stdout).contains("ring file"));
    // While the recorder holds the lock, the program is running.
    folder.put("run.trace.ring", &ring_file(&rest, run_.events.len() as u64));
    let held = fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let report: serde_json::Value =
        serde_json::from_slice(&run(&["replay", &path, "--json"]).stdout).unwrap();
    assert_eq!(report["traces"][0]["end"], "running");
}

/// Checks that `replay` exits with 6 and that the head of its report contains this loss.
fn assert_incomplete(path: &str, loss: &str) {
    for section in [None, Some("--leaks"), Some("--peak")] {
        let mut args = vec!["replay", path];
        args.extend(section);
        let output = run(&args);
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(6), "{shown}");
        let head: Vec<&str> = shown.lines().take(12).collect();
        assert!(head.join("\n").contains(loss), "{shown}");
    }
    assert_eq!(run(&["info", path]).status.code(), Some(6));
}

#[test]
fn unknown_event_kinds_and_times_are_reported_as_losses() {
    let folder = Folder::new();
    let mut strange = leaky();
    strange.events[40].kind = EventKind(77);
    strange.events[41].kind = EventKind(78);
    assert_incomplete(&folder.put("kinds.trace", &strange.file(100)), "2 events are of unknown kinds");
    let mut late = leaky();
    late.events[40].time_ns += 3_600_000_000_000;
    late.events[41].time_ns = 5;
    let path = folder.put("times.trace", &late.file(100));
    assert_incomplete(&path, "2 events with times outside the run");
    let report: serde_json::Value =
        serde_json::from_slice(&run(&["replay", &path, "--timeline", "--json"]).stdout).unwrap();
    let times: Vec<u64> = report["timeline"]["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["time_ns"].as_u64().unwrap())
        .collect();
    assert!(times.iter().all(|time| *time < 1_000_000), "{times:?}");
}

#[test]
fn undefined_frames_are_reported_as_losses() {
    let folder = Folder::new();
    let mut run_ = leaky();
    run_.nodes.pop();
    let path = folder.put("run.trace", &run_.file(100));
    let output = run(&["replay", &path]);
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("1 stack frame is not defined in the file"));
}

#[test]
fn truncated_or_damaged_metadata_is_reported_as_a_loss() {
    let folder = Folder::new();
    let run_ = leaky();
    let mut more = Meta::default();
    more.set_text("torch", "2.15.0");
    let block = encode_block(BlockKind::META, &more.encode(), 3);
    let mut file = run_.file_of(&run_.events, 100);
    let whole = file.len();
    file.extend(&block);
    folder.put("run.trace.ring", &ring_file(&[], run_.events.len() as u64));
    for cut in [whole + 5, whole + 24, file.len() - 1] {
        assert_incomplete(&folder.put("run.trace", &file[..cut]), "ends inside a file block of metadata");
    }
    let mut flipped = file.clone();
    flipped[whole + 30] ^= 1;
    assert_incomplete(&folder.put("run.trace", &flipped), "damage at byte");
    // The process was killed in the middle of a block of events. The ring file has its events.
    let half = &run_.events[100..];
    let mut killed = run_.file_of(&run_.events[..100], 100);
    killed.extend(&encode_block(BlockKind::EVENTS, &event_block::encode(half, 0).payload, 3)[..50]);
    folder.put("run.trace.ring", &ring_file(half, run_.events.len() as u64));
    let path = folder.put("run.trace", &killed);
    assert_eq!(run(&["replay", &path]).status.code(), Some(0));
}

#[test]
fn decompression_bomb_of_definitions_is_read_in_bounded_memory() {
    let folder = Folder::new();
    let mut file = file_header().to_vec();
    for round in 0..110u32 {
        let nodes: Vec<PyNode> = (0..50_000)
            .map(|id| PyNode { id: NodeId(round * 50_000 + id + 1), ..PyNode::default() })
            .collect();
        file.extend(encode_block(BlockKind::PY_NODES, &definitions::encode_py_nodes(&nodes), 3));
    }
    assert!(file.len() < 100_000);
    let path = folder.put("bomb.trace", &file);
    let script =
        format!("ulimit -v 700000; {} replay {path}", assert_cmd::cargo::cargo_bin("gpumemtrace").display());
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(sentences(&output.stdout).contains("more definitions than a file of this size can need"));
}

#[test]
fn pipes_are_refused_without_blocking() {
    let folder = Folder::new();
    let make = |name: &str| {
        let path = folder.path(name).display().to_string();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    };
    let pipe = make("pipe");
    for command_ in ["replay", "info", "dump"] {
        let output =
            command().args([command_, &pipe]).timeout(std::time::Duration::from_secs(20)).output().unwrap();
        assert_eq!(output.status.code(), Some(5));
        assert!(text(&output.stderr).contains("is not a regular file"));
    }
    let path = folder.put("run.trace", &leaky().file(100));
    make("run.trace.ring");
    let output =
        command().args(["replay", &path]).timeout(std::time::Duration::from_secs(20)).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stdout).contains("the ring file is not a regular file"));
}

#[test]
fn ring_file_is_checked_before_it_is_read() {
    let folder = Folder::new();
    let path = folder.put("run.trace", &leaky().file(100));
    // A sparse file of a terabyte, then a header that announces a terabyte.
    let huge = fs::File::create(folder.path("run.trace.ring")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let output = run(&["replay", &path]);
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("is not a gpumemtrace ring file"));
    let mut page = vec![0; 4096];
    let claims = RingLayout::uniform(1 << 20, 1 << 20);
    page[..HEADER_BYTES].copy_from_slice(&encode_header(gpumemtrace_synthetic::TRACE_ID, 1, &claims));
    folder.put("run.trace.ring", &page);
    let output = run(&["replay", &path]);
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stdout).contains("more than any recorder makes"));
}

#[test]
fn dump_prints_every_record_in_its_fixed_format() {
    let folder = Folder::new();
    let mut run_ = Synthetic::new();
    let main = run_.frame(NodeId::NONE, "/work/my train.py", "<module>", 3);
    let line = run_.frame(main, "/work/a.py", "f", 5);
    run_.event(EventKind::DEVICE_ALLOC, 0x7f00_0000_0000, 512, [0; 2], line);
    run_.event(EventKind(77), 0, 0, [1, 2], NodeId::NONE);
    run_.device = 0xff;
    run_.event(EventKind::DEVICE_FREE, 0x7f00_0000_0000, 0, [0; 2], line);
    run_.events[2].result = 1;
    let mut waiting = run_.events[0];
    waiting.seq = 3;
    run_.thread = 12;
    let file = run_.file_without_end(100);
    let path = folder.put("run.trace", &file);
    folder.put("run.trace.ring", &ring_file(&[in_flight(waiting)], 3));
    let output = run(&["dump", &path, "--stacks"]);
    // Kind 77 is unknown.
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stdout));
    let lines: Vec<String> =
        text(&output.stdout).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert_eq!(
        lines,
        [
            "seq=0 time_ns=1000001000 tid=77 kind=device_alloc api=cuMemAlloc_v2 dev=0 addr=0x7f0000000000 size=512 aux0=0 aux1=0 rc=0 python=2 native=0",
            "seq=1 time_ns=1000002000 tid=77 kind=kind_77 api=- dev=0 addr=0x0 size=0 aux0=1 aux1=2 rc=0 python=0 native=0",
            "seq=2 time_ns=1000003000 tid=77 kind=device_free api=cuMemAlloc_v2 dev=? addr=0x7f0000000000 size=0 aux0=0 aux1=0 rc=1 python=2 native=0",
            "seq=? time_ns=1000001000 tid=77 kind=device_alloc api=cuMemAlloc_v2 dev=0 addr=0x7f0000000000 size=512 aux0=0 aux1=0 rc=0 python=2 native=0 in_flight",
            "code id=1 file=\"/work/my train.py\" name=<module> line=1",
            "code id=2 file=/work/a.py name=f line=1",
            "frame id=1 parent=0 file=\"/work/my train.py\" line=3 function=<module> link=c",
            "frame id=2 parent=1 file=/work/a.py line=5 function=f link=python",
        ]
    );
}

#[test]
fn closed_stdout_is_not_an_error() {
    let folder = Folder::new();
    let path = folder.put("run.trace", &Synthetic::train(500, |_, _, _| {}).file(1000));
    let binary = assert_cmd::cargo::cargo_bin("gpumemtrace");
    let script = format!("{} dump {path} | head -n 1; echo ${{PIPESTATUS[0]}}", binary.display());
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(text(&output.stdout).ends_with("\n0\n"), "{}", text(&output.stdout));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn info_text_matches_snapshot() {
    let folder = Folder::new();
    let mut run_ = Synthetic::train(3, |_, _, _| {});
    let line = run_.frame(NodeId::NONE, "/work/train.py", "big", 77);
    run_.alloc(line, 8 << 30);
    run_.oom(line, 40 << 30);
    fs::write(folder.path("run.trace"), run_.file(100)).unwrap();
    insta::assert_snapshot!(
        "info",
        text(&command().current_dir(folder.0.path()).args(["info", "run.trace"]).output().unwrap().stdout)
    );
}

#[test]
fn json_report_matches_its_schema() {
    let folder = Folder::new();
    let mut run_ = leaky();
    let line = run_.frame(NodeId::NONE, "/work/train.py", "big", 77);
    run_.oom(line, 40 << 30);
    let path = folder.put("run.trace", &run_.file(100));
    for sections in [
        &[][..],
        &["--leaks"],
        &["--timeline", "--peak"],
        &["--peak", "--blocks"],
        &["--fragmentation", "--oom"],
    ] {
        let mut args = vec!["replay", &path, "--json"];
        args.extend(sections);
        let report: serde_json::Value = serde_json::from_slice(&run(&args).stdout).unwrap();
        let errors = crate::schema::violations("report", &report);
        assert!(errors.is_empty(), "{sections:?}: {errors:#?}");
        assert_eq!(report["schema"], "gpumemtrace.report");
        let has = |name: &str| report.get(name).is_some();
        assert!(has("traces") && has("devices"));
        assert_eq!(has("leaks"), sections.is_empty() || sections.contains(&"--leaks"));
        assert_eq!(has("oom"), sections.is_empty() || sections.contains(&"--oom"));
        assert_eq!(has("verdicts"), sections.is_empty());
    }
    let report: serde_json::Value =
        serde_json::from_slice(&run(&["replay", &path, "--json"]).stdout).unwrap();
    insta::assert_snapshot!("leaks_json", serde_json::to_string_pretty(&report["leaks"]).unwrap());
}

#[test]
fn newest_trace_of_the_folder_is_the_default() {
    let folder = Folder::new();
    let in_folder = |args: &[&str]| {
        let output = command().current_dir(folder.0.path()).args(args).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, errors) = in_folder(&["replay"]);
    let none = "gpumemtrace: no trace is named, and this folder has none: gpumemtrace run -- python train.py records one\n";
    assert_eq!((code, &*errors), (Some(2), none));
    folder.put("new.trace", &leaky().file(100));
    let (code, report, errors) = in_folder(&["replay"]);
    assert!(code == Some(0) && report.starts_with("new.trace: "), "{report}");
    assert_eq!(errors, "gpumemtrace: reading new.trace\n");
    let old = fs::File::options().write(true).open(folder.put("old.trace", &leaky().file(100))).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let (_, _, errors) = in_folder(&["replay", "--leaks"]);
    assert_eq!(errors, "gpumemtrace: reading new.trace, the newest of 2 here\n");
    assert_eq!(in_folder(&["html"]).0, Some(0));
    assert!(folder.0.path().join("new.html").exists());
    assert_eq!(in_folder(&["check", "--budget", "budget.toml", "--write"]).0, Some(0));
}
