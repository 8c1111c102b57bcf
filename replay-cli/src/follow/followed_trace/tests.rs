use super::*;
use gpumemtrace_format::block::{BlockKind, encode_block, file_header};
use std::fs::{File, OpenOptions};
use std::io::Write;

const ID: &str = "0123456789abcdef0123456789abcdef";

fn block(number: u64) -> Vec<u8> {
    let mut meta = Meta::default();
    meta.set_number("n", number);
    encode_block(BlockKind::META, &meta.encode(), 3)
}

fn head(id: &str, part: Option<u64>) -> Vec<u8> {
    let mut meta = Meta::default();
    meta.set_text("trace_id", id);
    if let Some(part) = part {
        meta.set_number("part", part);
    }
    [&file_header()[..], &encode_block(BlockKind::META, &meta.encode(), 3)].concat()
}

/// A folder with a trace in parts, written as a recorder does.
struct FakeRecorder {
    folder: tempfile::TempDir,
    number: u64,
}

impl FakeRecorder {
    fn new() -> Self {
        let this = Self { folder: tempfile::tempdir().unwrap(), number: 1 };
        std::fs::write(this.path("run.01234567.stacks.trace"), head(ID, None)).unwrap();
        std::fs::write(this.trace(), head(ID, Some(1))).unwrap();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn trace(&self) -> PathBuf {
        self.path("run.trace")
    }

    fn part(&self, number: u64) -> PathBuf {
        self.path(&format!("run.01234567.part{number}.trace"))
    }

    /// Appends a block with this number to a file.
    fn write(&self, name: &str, number: u64) {
        let mut file: File = OpenOptions::new().append(true).open(self.path(name)).unwrap();
        file.write_all(&block(number)).unwrap();
    }

    /// Starts the next part.
    fn rotate(&mut self) {
        let next = self.part(self.number + 1);
        std::fs::write(&next, head(ID, Some(self.number + 1))).unwrap();
        std::fs::hard_link(self.trace(), self.part(self.number)).unwrap();
        std::fs::rename(next, self.trace()).unwrap();
        self.number += 1;
    }
}

fn numbers(trace: &mut FollowedTrace) -> (TailChange, Vec<u64>) {
    let mut numbers = Vec::new();
    let found = trace.poll(&mut |item| {
        if let Item::Meta(meta) = item {
            numbers.extend(meta.number("n"));
        }
    });
    (found.unwrap(), numbers)
}

#[test]
fn parts_are_read_once_in_order_after_their_definitions() {
    let mut recorder = FakeRecorder::new();
    recorder.write("run.trace", 1);
    recorder.rotate();
    recorder.write("run.trace", 2);
    recorder.write("run.01234567.stacks.trace", 100);
    let mut trace = FollowedTrace::open(&recorder.trace()).unwrap().unwrap();
    assert_eq!(numbers(&mut trace), (TailChange::More, vec![100, 1, 2]));
    assert_eq!(numbers(&mut trace), (TailChange::Nothing, vec![]));
    // Two parts fill up before the next poll; the first of them still grew before that.
    recorder.write("run.trace", 3);
    recorder.rotate();
    recorder.write("run.trace", 4);
    recorder.rotate();
    recorder.write("run.trace", 5);
    recorder.write("run.01234567.stacks.trace", 101);
    assert_eq!(numbers(&mut trace), (TailChange::More, vec![101, 3, 4, 5]));
    assert!(!trace.take_gap());
}

#[test]
fn dropped_part_is_read_if_open_and_else_reported_as_gap() {
    let mut recorder = FakeRecorder::new();
    recorder.write("run.trace", 1);
    recorder.rotate();
    std::fs::remove_file(recorder.part(1)).unwrap();
    let mut trace = FollowedTrace::open(&recorder.trace()).unwrap().unwrap();
    assert!(trace.take_gap() && !trace.take_gap());
    recorder.write("run.trace", 2);
    recorder.rotate();
    std::fs::remove_file(recorder.part(2)).unwrap();
    recorder.write("run.trace", 3);
    assert_eq!(numbers(&mut trace), (TailChange::More, vec![2, 3]));
    assert!(!trace.take_gap());
    recorder.rotate();
    recorder.write("run.trace", 4);
    recorder.rotate();
    std::fs::remove_file(recorder.part(4)).unwrap();
    recorder.write("run.trace", 5);
    assert_eq!(numbers(&mut trace), (TailChange::More, vec![5]));
    assert!(trace.take_gap());
}

#[test]
fn other_run_is_reported_and_short_absence_tolerated() {
    let recorder = FakeRecorder::new();
    let mut trace = FollowedTrace::open(&recorder.trace()).unwrap().unwrap();
    assert_eq!(numbers(&mut trace), (TailChange::More, vec![]));
    let aside = recorder.path("aside");
    std::fs::rename(recorder.trace(), &aside).unwrap();
    assert_eq!(numbers(&mut trace).0, TailChange::Nothing);
    std::fs::rename(&aside, recorder.trace()).unwrap();
    recorder.write("run.trace", 1);
    assert_eq!(numbers(&mut trace), (TailChange::More, vec![1]));
    std::fs::write(&aside, head("00000000000000000000000000000000", Some(2))).unwrap();
    std::fs::rename(&aside, recorder.trace()).unwrap();
    assert_eq!(numbers(&mut trace).0, TailChange::Replaced);
    std::fs::remove_file(recorder.trace()).unwrap();
    let changes: Vec<TailChange> = (0..MAX_GONE_POLLS).map(|_| numbers(&mut trace).0).collect();
    assert_eq!(changes.last(), Some(&TailChange::Gone));
}
