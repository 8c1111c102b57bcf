//! `replay --follow` on a trace that the test writes piece by piece, like a recorder.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::event_block;
use gpumemtrace_synthetic::{Synthetic, ring_file};

struct Follower {
    process: Child,
    lines: BufReader<ChildStderr>,
}

impl Follower {
    fn start(path: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(assert_cmd::cargo::cargo_bin("gpumemtrace"))
            .args(["replay", "--follow"])
            .args(arguments)
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap());
        Self { process, lines }
    }

    /// Reads lines of stderr until one contains all parts, and returns it.
    fn wait_for(&mut self, parts: &[&str]) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no line has {parts:?} in it:\n{seen}");
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            seen += &line;
        }
    }

    /// Waits for the end: the report, the rest of stderr and the exit code.
    fn end(mut self) -> (String, String, Option<i32>) {
        let (mut report, mut rest) = (String::new(), String::new());
        self.process.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        self.lines.read_to_string(&mut rest).unwrap();
        (report, rest, self.process.wait().unwrap().code())
    }
}

fn replayed(path: &Path) -> (String, Option<i32>) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("gpumemtrace"));
    let output = command.arg("replay").arg(path).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

/// A training run that leaks 4 MiB per step.
fn leaky(steps: u64) -> Synthetic {
    Synthetic::train(steps, |run, _, train| {
        let hook = run.frame(train, "/work/hooks.py", "Keeper.hook", 7);
        run.alloc(hook, 4 << 20);
    })
}

fn events_block(run: &Synthetic, events: std::ops::Range<usize>) -> Vec<u8> {
    let mut events = run.events[events].to_vec();
    events.sort_by_key(|event| (event.thread, event.seq));
    encode_block(BlockKind::EVENTS, &event_block::encode(&events, 0).payload, 3)
}

/// The trace without its events and its END block.
fn definitions(run: &Synthetic) -> Vec<u8> {
    run.file_of(&[], 1000)
}

/// The END block of the trace.
fn end(run: &Synthetic) -> Vec<u8> {
    run.file(1000)[run.file_without_end(1000).len()..].to_vec()
}

#[test]
fn run_is_followed_from_before_its_start_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let run = leaky(40);
    let mut follower = Follower::start(&path, &[]);
    follower.wait_for(&["does not exist or is empty; waiting"]);
    let hidden = folder.path().join("hidden");
    let mut file = File::create(&hidden).unwrap();
    file.lock().unwrap();
    let (half, most) = (run.events.len() / 2, run.events.len() - 50);
    file.write_all(&[definitions(&run), events_block(&run, 0..half)].concat()).unwrap();
    std::fs::rename(&hidden, &path).unwrap();
    follower.wait_for(&[
        &format!("{half} events"),
        "; step ",
        "GPU 0: driver ",
        "; allocated ",
        ", reserved ",
    ]);
    // The ring holds events that are in no block yet, and some that are in both.
    let ring = folder.path().join("run.trace.ring");
    std::fs::write(&ring, ring_file(&run.events[half - 20..most], most as u64)).unwrap();
    follower.wait_for(&[&format!("{most} events")]);
    let rest = events_block(&run, half..run.events.len());
    let (torn, rest) = rest.split_at(100);
    file.write_all(torn).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    file.write_all(rest).unwrap();
    let line = follower.wait_for(&[&format!("{} events", run.events.len())]);
    let allocated = run.events.last().unwrap().aux[0];
    let allocated = format!("allocated {:.2} MiB", allocated as f64 / f64::from(1 << 20));
    assert!(line.contains(&allocated), "{line} does not contain {allocated}");
    std::fs::remove_file(ring).unwrap();
    file.write_all(&end(&run)).unwrap();
    drop(file);
    let (report, _, code) = follower.end();
    assert_eq!((report, code), replayed(&path));
    assert_eq!(code, Some(0));
}

/// Sends SIGINT to the follower.
fn interrupt(follower: &Follower) {
    let process = rustix::process::Pid::from_child(&follower.process);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
}

#[test]
fn finding_of_a_running_program_is_that_of_replay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let run = leaky(40);
    let file = File::create(&path).unwrap();
    file.lock().unwrap();
    (&file).write_all(&run.file_without_end(1000)).unwrap();
    let ring = ring_file(&[], run.events.len() as u64);
    std::fs::write(folder.path().join("run.trace.ring"), ring).unwrap();
    let mut follower = Follower::start(&path, &[]);
    let finding = "Likely leak: +4.00 MiB/step (1 block) at /work/hooks.py:7 in Keeper.hook()";
    let news = follower.wait_for(&["gpumemtrace: ", finding]);
    let (report, _) = replayed(&path);
    assert!(report.contains(finding), "{news}{report}");
    // Nothing changes, so no more lines come. Ctrl-C ends following with the report so far.
    interrupt(&follower);
    let (report_so_far, rest, code) = follower.end();
    assert_eq!((report_so_far, code), (report, Some(0)), "{rest}");
}

#[test]
fn traces_of_a_folder_are_followed_as_they_appear() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, run: &Synthetic| {
        let file = File::create(folder.path().join("hidden")).unwrap();
        file.lock().unwrap();
        (&file).write_all(&run.file_without_end(1000)).unwrap();
        std::fs::rename(folder.path().join("hidden"), folder.path().join(name)).unwrap();
        file
    };
    let (first, second) = (leaky(20), leaky(30));
    std::fs::write(folder.path().join("yesterday.trace"), first.file(1000)).unwrap();
    let mut follower = Follower::start(folder.path(), &[]);
    follower
        .wait_for(&["no running program writes a trace in", " (1 finished trace left out); waiting for one"]);
    let mut files = vec![write("rank0.trace", &first)];
    follower.wait_for(&[&format!("{} events", first.events.len())]);
    files.push(write("rank1.trace", &second));
    follower.wait_for(&["rank1.trace: ", &format!("{} events", second.events.len())]);
    files.iter_mut().zip([&first, &second]).for_each(|(file, run)| file.write_all(&end(run)).unwrap());
    drop(files);
    let (report, _, code) = follower.end();
    std::fs::remove_file(folder.path().join("yesterday.trace")).unwrap();
    assert_eq!((report, code), replayed(folder.path()));
}

#[test]
fn killed_run_ends_following_and_its_ring_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let run = leaky(20);
    let (half, all) = (run.events.len() / 2, run.events.len());
    let file = File::create(&path).unwrap();
    file.lock().unwrap();
    (&file).write_all(&[definitions(&run), events_block(&run, 0..half)].concat()).unwrap();
    std::fs::write(folder.path().join("run.trace.ring"), ring_file(&run.events[half..], all as u64)).unwrap();
    let mut follower = Follower::start(&path, &[]);
    follower.wait_for(&[&format!("{all} events")]);
    drop(file);
    let (report, _, code) = follower.end();
    assert!(report.contains("killed"), "{report}");
    assert_eq!((report, code), replayed(&path));
}

#[test]
fn free_lock_of_another_host_does_not_end_following() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let run = leaky(20);
    let (half, all) = (run.events.len() / 2, run.events.len());
    let mut file = File::create(&path).unwrap();
    file.write_all(&[definitions(&run), events_block(&run, 0..half)].concat()).unwrap();
    let mut follower = Follower::start(&path, &[]);
    follower.wait_for(&[&format!("{half} events")]);
    follower.wait_for(&["no new events in ", "the report follows after 60 s without events"]);
    file.write_all(&[events_block(&run, half..all), end(&run)].concat()).unwrap();
    let (report, rest, code) = follower.end();
    assert!(rest.contains(&format!("{all} events")), "{rest}");
    assert_eq!((report, code), replayed(&path));
}

#[test]
fn truncated_or_replaced_trace_is_followed_from_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let runs = [leaky(40), leaky(20), leaky(10)];
    let mut file = File::create(&path).unwrap();
    file.lock().unwrap();
    file.write_all(&runs[0].file_without_end(1000)).unwrap();
    let mut follower = Follower::start(&path, &["--json"]);
    follower.wait_for(&[&format!("{} events", runs[0].events.len())]);
    file.set_len(0).unwrap();
    follower.wait_for(&["was truncated"]);
    std::os::unix::fs::FileExt::write_all_at(&file, &runs[1].file_without_end(1000), 0).unwrap();
    follower.wait_for(&[&format!("{} events", runs[1].events.len())]);
    let hidden = folder.path().join("hidden");
    std::fs::write(&hidden, runs[2].file(1000)).unwrap();
    std::fs::rename(&hidden, &path).unwrap();
    follower.wait_for(&["was replaced by the trace of another run"]);
    let (report, _, code) = follower.end();
    assert!(report.starts_with('{'), "stdout holds more than the report: {report}");
    assert!(report.contains("\"block_alloc\""));
    assert_eq!(code, Some(0));
}

#[test]
fn removed_or_invalid_trace_ends_following() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace");
    let file = File::create(&path).unwrap();
    file.lock().unwrap();
    (&file).write_all(&leaky(3).file_without_end(1000)).unwrap();
    let mut follower = Follower::start(&path, &[]);
    follower.wait_for(&["events"]);
    std::fs::remove_file(&path).unwrap();
    let (_, rest, code) = follower.end();
    assert!(rest.contains("was removed while --follow read it"), "{rest}");
    assert_eq!(code, Some(5));
    std::fs::write(&path, "something else entirely").unwrap();
    let (_, rest, code) = Follower::start(&path, &[]).end();
    assert!(rest.contains("is not a gpumemtrace trace"), "{rest}");
    assert_eq!(code, Some(5));
}

#[test]
fn interrupt_before_there_is_a_trace_exits_with_130() {
    let folder = tempfile::tempdir().unwrap();
    let mut follower = Follower::start(&folder.path().join("run.trace"), &[]);
    follower.wait_for(&["waiting"]);
    interrupt(&follower);
    let (report, _, code) = follower.end();
    assert_eq!((report.as_str(), code), ("", Some(130)));
}
