//! `gpumemtrace-parquet` with many traces, traces without ranks, and folders without a name.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use gpumemtrace_format::Meta;
use gpumemtrace_synthetic::Synthetic;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use tempfile::TempDir;

fn run_of(pid: u64, rank: Option<u64>) -> Synthetic {
    let mut run = Synthetic::train(3, |run, _, train| {
        let block = run.alloc(train, 1 << 20);
        run.release(block, train);
    });
    run.meta.set_number("pid", pid);
    run.meta.set_number("started_unix_ns", 1_795_880_000_000_000_000 + pid);
    run.meta.set_text("trace_id", format!("{pid:032x}"));
    if let Some(rank) = rank {
        run.meta.set_number("rank", rank);
    }
    run
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn add(&self, name: &str, run: &Synthetic) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, run.file(100)).unwrap();
    }

    /// Exports with these arguments in a folder below. Returns stderr.
    fn export_in(&self, below: &str, words: &str, code: i32) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumemtrace-parquet"));
        command.current_dir(self.path().join(below)).env("GPUMEMTRACE_CACHE", "off").env_remove("LD_PRELOAD");
        let done = command.arg("parquet").args(words.split_whitespace()).output().unwrap();
        let error = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(code), "{words}: {error}");
        error
    }

    fn export(&self, words: &str, code: i32) -> String {
        self.export_in("", words, code)
    }

    /// A column of the table `runs` by the name of the partition, such as `run=job/rank=0`.
    fn runs(&self, archive: &str, column: &str) -> BTreeMap<String, Field> {
        let mut found = BTreeMap::new();
        for run in fs::read_dir(self.path().join(archive).join("runs")).unwrap().flatten() {
            for rank in fs::read_dir(run.path()).unwrap().flatten() {
                let file = File::open(rank.path().join("part-0.parquet")).unwrap();
                let reader = SerializedFileReader::new(file).unwrap();
                let row = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
                let value = row.get_column_iter().find(|(name, _)| *name == column).unwrap().1.clone();
                let name = [run.file_name(), rank.file_name()].map(|name| name.into_string().unwrap());
                found.insert(name.join("/"), value);
            }
        }
        found
    }

    /// The traces of a run by rank.
    fn traces(&self, archive: &str) -> BTreeMap<u64, String> {
        let rank = |name: &str| name.rsplit_once('=').unwrap().1.parse().unwrap();
        let traces = self.runs(archive, "trace").into_iter();
        traces.map(|(name, trace)| (rank(&name), trace.to_string().replace('"', ""))).collect()
    }
}

#[test]
fn many_traces_keep_their_ranks_beside_a_launcher() {
    let folder = Folder::new();
    for rank in 0..20 {
        folder.add(&format!("job/run.rank{rank:02}.trace"), &run_of(100 + rank, Some(rank)));
    }
    // By path, the launcher comes before the ranks.
    folder.add("job/run.launcher.trace", &run_of(1, None));
    folder.add("job/run.again.trace", &run_of(2, Some(3)));
    for _ in 0..2 {
        let notes = folder.export("job --run-name job -o archive", 0);
        assert_eq!(notes.lines().count(), 1, "{notes}");
        let mut expected: BTreeMap<u64, String> =
            (0..20).map(|rank| (rank, format!("job/run.rank{rank:02}.trace"))).collect();
        // Of the two processes with rank 3, the one that started first has it.
        expected.insert(3, "job/run.again.trace".to_owned());
        expected.insert(20, "job/run.launcher.trace".to_owned());
        expected.insert(21, "job/run.rank03.trace".to_owned());
        assert_eq!(folder.traces("archive"), expected);
    }
}

#[test]
fn nodes_without_ranks_continue_the_numbers_of_the_run() {
    let folder = Folder::new();
    for (node, pid) in [(0, 11), (0, 12), (1, 21), (1, 22)] {
        folder.add(&format!("node{node}/run.{pid}.trace"), &run_of(pid, None));
    }
    for _ in 0..2 {
        for node in [1, 0] {
            folder.export(&format!("node{node} --run-name ray -o archive"), 0);
        }
        let pids = [21, 22, 11, 12].map(|pid| format!("node{}/run.{pid}.trace", pid / 10 - 1));
        assert_eq!(folder.traces("archive").into_values().collect::<Vec<_>>(), pids);
    }
}

#[test]
fn another_process_is_wrong_usage_and_changes_nothing() {
    let folder = Folder::new();
    folder.add("one/run.trace", &run_of(1, Some(0)));
    folder.add("two/run.trace", &run_of(2, Some(0)));
    folder.export("one/run.trace --run-name job -o archive", 0);
    let error = folder.export("two/run.trace --run-name job -o archive", 2);
    assert!(error.contains("has the rank of another process (one/run.trace)"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(folder.traces("archive")[&0], "one/run.trace");
    // Without facts of the process, the path and the id of the trace decide.
    for (name, id) in [("three/run.trace", 3), ("four/run.trace", 4)] {
        let mut run = run_of(id, Some(0));
        let mut meta = Meta::default();
        for (fact, value) in run.meta.entries() {
            if !["host", "started_unix_ns", "pid"].contains(&fact.as_str()) {
                meta.set(fact, value.clone());
            }
        }
        run.meta = meta;
        folder.add(name, &run);
    }
    folder.export("three/run.trace -o archive", 0);
    folder.export("four/run.trace -o archive", 2);
    folder.export("three/run.trace -o archive", 0);
}

#[test]
fn ranks_and_names_that_engines_cannot_read_are_not_in_the_archive() {
    let folder = Folder::new();
    folder.add("run.trace", &run_of(1, Some(u64::MAX)));
    folder.export("run.trace --run-name job -o archive", 0);
    assert_eq!(
        folder.runs("archive", "reported_rank"),
        BTreeMap::from([("run=job/rank=0".into(), Field::Null)])
    );
    let error = folder.export("run.trace --run-name __HIVE_DEFAULT_PARTITION__ -o archive", 2);
    assert!(error.contains("NULL"), "{error}");
}

#[test]
fn exit_code_is_null_unless_the_process_exited_by_itself() {
    let folder = Folder::new();
    for (rank, status) in ["exit 0", "exit 3", "signal 9", ""].into_iter().enumerate() {
        let mut run = run_of(rank as u64, Some(rank as u64));
        if !status.is_empty() {
            run.meta.set_text("wait_status", status);
        }
        folder.add(&format!("job/{rank}.trace"), &run);
    }
    folder.export("job -o archive", 0);
    let codes: Vec<Field> = folder.runs("archive", "exit_code").into_values().collect();
    assert_eq!(codes, [Field::Long(0), Field::Long(3), Field::Null, Field::Null]);
}

#[test]
fn default_folder_has_the_name_of_its_input() {
    let folder = Folder::new();
    folder.add("traces.v2/run.trace", &run_of(1, Some(0)));
    folder.export("traces.v2", 0);
    assert!(folder.path().join("traces.v2.parquet/runs").is_dir());
    fs::remove_dir_all(folder.path().join("traces.v2.parquet")).unwrap();
    folder.export_in("traces.v2", ".", 0);
    assert!(folder.path().join("traces.v2.parquet/runs").is_dir());
    folder.export_in("traces.v2", "run.trace", 0);
    assert!(folder.path().join("traces.v2/run.parquet/runs").is_dir());
    let error = folder.export_in("traces.v2", "*.trace", 2);
    assert!(error.contains("*.trace is a pattern; name the output with --output"), "{error}");
    let names = fs::read_dir(folder.path().join("traces.v2")).unwrap().flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["run.parquet", "run.trace"]);
}
