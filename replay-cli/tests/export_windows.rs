//! `export --around`: which part of a run a file holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use assert_cmd::Command;
use gpumemtrace_format::{Detail, EventKind, NodeId};
use gpumemtrace_synthetic::Synthetic;
use tempfile::TempDir;

const STEPS: u64 = 40;
/// The step that needs most memory, counted from 0 as the others.
const PEAK_STEP: u64 = 30;
const OOM_STEPS: [u64; 2] = [12, 25];
const MARK_STEP: u64 = 20;

/// A training with a peak, two errors and a mark in the middle of steps of their own.
fn training() -> Synthetic {
    Synthetic::train(STEPS, |run, step, train| {
        let hook = run.frame(train, "/work/hooks.py", "Keeper.hook", 7);
        if step == PEAK_STEP {
            let temporary = run.alloc(hook, 64 << 20);
            run.release(temporary, hook);
        }
        if OOM_STEPS.contains(&step) {
            run.oom(hook, 1 << 40);
            let last = run.events.last_mut().expect("just added");
            last.detail = Some(Detail { requested_bytes: 1 << 40, stream: 0, pool: 0 });
        }
        if step == MARK_STEP {
            run.frame(train, "", "middle", 1);
            let name = run.codes.iter().find(|code| code.name == "middle").expect("just added").id.0;
            run.event(EventKind::MARK, 0, 0, [2, u64::from(name)], hook);
        }
    })
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self::of(&training())
    }

    fn of(run: &Synthetic) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("run.trace"), run.file(100)).expect("disk space");
        Self(folder)
    }

    fn run(&self, words: &str) -> String {
        let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
        command.current_dir(self.0.path()).env("LC_ALL", "C.UTF-8").env("GPUMEMTRACE_CACHE", "off");
        let done = command.args(words.split_whitespace()).output().expect("gpumemtrace runs");
        // 6: a part lacks the events before it.
        assert!(
            matches!(done.status.code(), Some(0 | 6)),
            "{words}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).expect("UTF-8")
    }

    /// The intervals of `csv-timeline` with these options, each a row by column.
    fn timeline(&self, window: &str) -> Vec<BTreeMap<String, u64>> {
        let text = self.run(&format!("export csv-timeline run.trace {window} -o -"));
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
        let row = |line: &str| {
            let cells = names.iter().zip(line.split(','));
            cells.filter_map(|(name, cell)| Some(((*name).to_owned(), cell.parse().ok()?))).collect()
        };
        lines.map(row).collect()
    }
}

fn column(rows: &[BTreeMap<String, u64>], name: &str) -> BTreeSet<u64> {
    rows.iter().filter_map(|row| row.get(name).copied()).collect()
}

/// The step of each moment.
const MOMENTS: [(&str, u64); 3] = [("peak", PEAK_STEP), ("oom", OOM_STEPS[0]), ("mark:middle", MARK_STEP)];

#[test]
fn surroundings_are_the_step_before_and_the_step_after() {
    let folder = Folder::new();
    let peak = *column(&folder.timeline(""), "live_max_bytes").last().expect("a peak");
    for (moment, step) in MOMENTS {
        let around = folder.timeline(&format!("--around {moment}"));
        assert_eq!(column(&around, "step"), BTreeSet::from([step - 1, step, step + 1]), "{moment}");
        let same = folder.timeline(&format!("--since step:{} --until step:{}", step - 1, step + 2));
        assert_eq!(around, same, "{moment}");
        let has_peak = column(&around, "live_max_bytes").contains(&peak);
        assert_eq!(has_peak, moment == "peak", "{moment}");
    }
}

#[test]
fn events_are_those_of_the_part() {
    let folder = Folder::new();
    let count = |window: &str, event: &str| {
        folder.run(&format!("export torch-snapshot run.trace {window} -o part.pickle"));
        folder.run("dump part.pickle").matches(event).count()
    };
    let (oom, mark) = ("kind=oom", "kind=mark api=- dev=? addr=0x0 size=0 aux0=2");
    assert_eq!((count("", oom), count("", mark)), (2, 1), "the whole run");
    assert_eq!((count("--around oom", oom), count("--around oom", mark)), (1, 0));
    assert_eq!((count("--around mark:middle", oom), count("--around mark:middle", mark)), (0, 1));
    assert_eq!((count("--around peak", oom), count("--around peak", mark)), (0, 0));
}

#[test]
fn without_steps_the_part_is_a_tenth_of_the_run() {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 90);
    for number in 0..200 {
        run.alloc(main, 4096);
        if number == 60 {
            run.oom(main, 1 << 40);
        }
    }
    let folder = Folder::of(&run);
    let ends = |window: &str| {
        let rows = folder.timeline(window);
        let ends = (column(&rows, "begin_ns").first().copied(), column(&rows, "end_ns").last().copied());
        (ends.0.expect("a row"), ends.1.expect("a row"))
    };
    let (begin, end) = ends("--around oom");
    let tenth = ends("").1 / 10;
    assert!((end - begin).abs_diff(tenth) <= tenth / 50, "{begin} to {end}, not {tenth} long");
    let oom_ns = u64::midpoint(begin, end);
    let share = oom_ns as f64 / ends("").1 as f64;
    assert!((0.28..0.33).contains(&share), "the error is after 61 of 200 blocks: {share}");
}
