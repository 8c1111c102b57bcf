//! Which files an export replaces, and what a failed one leaves.

use std::sync::Arc;

use gpumemtrace_multirun::Process;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::file::cell::Text;
use crate::tables::findings::FindingRow;

/// A trace of the process with this id, of rank 0.
pub(super) fn identity(pid: u64) -> TraceIdentity {
    TraceIdentity {
        process: Process { host: Some("node0".to_owned()), pid: Some(pid), started_unix_ns: Some(1) },
        trace_id: Some(format!("{pid:032x}")),
        path: format!("{pid}/run.trace"),
        rank: Some(0),
        world_size: None,
    }
}

/// A trace without facts of its process, as made of a snapshot.
fn unknown(path: &Path, trace_id: Option<&str>) -> TraceIdentity {
    TraceIdentity {
        process: Process { host: None, pid: None, started_unix_ns: None },
        trace_id: trace_id.map(str::to_owned),
        path: path.display().to_string(),
        rank: None,
        world_size: None,
    }
}

fn begin(folder: &Path, run: &str, traces: &[TraceIdentity]) -> anyhow::Result<OutputFolder> {
    // As a run that a file names.
    let joins_run = run != "snapshot";
    let (folder, run, traces) = (folder.to_owned(), run.to_owned(), traces.to_vec());
    let target = ExportTarget { folder, run, joins_run, traces, is_forced: false };
    OutputFolder::begin(target, &mut Vec::new())
}

fn fill(output: &mut OutputFolder) -> anyhow::Result<()> {
    for (index, trace) in output.target.traces.clone().iter().enumerate() {
        let mut folder = output.partition(index);
        let mut writer = folder.begin::<FindingRow>()?;
        writer.push(FindingRow {
            rank_in_report: 0,
            severity: Text::from_static("info"),
            kind: Text::from_static("leak"),
            device: None,
            summary: Text::from(trace.path.as_str()),
            site_id: None,
            evidence_json: Text::from_static("{}"),
        });
        writer.finish()?;
        folder.write_summary(&summary_of(trace))?;
    }
    Ok(())
}

/// Exports a run with these traces. Returns their numbers.
fn export(folder: &Path, run: &str, traces: &[TraceIdentity]) -> anyhow::Result<Vec<u64>> {
    let mut output = begin(folder, run, traces)?;
    fill(&mut output)?;
    output.publish(&mut Vec::new())?;
    Ok(output.ranks.clone())
}

/// The sentence that refuses this export, which is an error of usage and changes nothing.
fn refused(folder: &Path, run: &str, trace: &TraceIdentity) -> String {
    let before = contents(folder);
    let error = export(folder, run, std::slice::from_ref(trace)).unwrap_err();
    assert_eq!(contents(folder), before);
    error.downcast::<UsageError>().unwrap().0
}

fn summary_of(trace: &TraceIdentity) -> TraceSummary {
    let process = serde_json::to_value(&trace.process).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(
        r#"{"rank":0,"world_size":null,"command":null,"torch":null,"allocator_conf":null,
        "git_commit":null,"labels":{},"events":9,"duration_ns":5,"end":"exit","missing":[],"steps":null,
        "step_source":null,"leak_assessment":"assessed","worst_finding":null,"devices":[],"leaks":[],
        "more_leaks":0,"ooms":[],"more_ooms":0}"#,
    )
    .unwrap();
    json.as_object_mut().unwrap().extend(process.as_object().unwrap().clone());
    json["path"] = trace.path.clone().into();
    serde_json::from_value(json).unwrap()
}

/// The files that readers see below a folder, and their bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

fn files(folder: &Path) -> Vec<String> {
    let path = |path: PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
    contents(folder).into_keys().map(path).collect()
}

#[test]
fn an_unfinished_export_leaves_the_folder_as_it_was() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("out");
    fill(&mut begin(&folder, "a", &[identity(7)]).unwrap()).unwrap();
    assert!(!folder.exists());
    export(&folder, "a", &[identity(7)]).unwrap();
    let before = contents(&folder);
    fill(&mut begin(&folder, "a", &[identity(7)]).unwrap()).unwrap();
    assert_eq!(contents(&folder), before);
    assert_eq!(files(&folder), ["_summaries/run=a/rank=0.summary", "findings/run=a/rank=0/part-0.parquet"]);
}

#[test]
fn other_runs_stay_and_the_same_run_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    for run in ["a", "b"] {
        export(folder.path(), run, &[identity(7)]).unwrap();
    }
    let before = contents(folder.path());
    export(folder.path(), "a", &[identity(7)]).unwrap();
    assert_eq!(contents(folder.path()), before);
    assert_eq!(before.len(), 4);
}

#[test]
fn a_less_complete_copy_of_a_trace_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let export = |change: fn(&mut TraceSummary), is_forced| {
        let mut output = begin(folder.path(), "a", &[identity(7)]).unwrap();
        output.target.is_forced = is_forced;
        fill(&mut output).unwrap();
        let mut summary = summary_of(&identity(7));
        change(&mut summary);
        output.files.pop();
        PartitionFolder { output: &mut output, trace: 0 }.write_summary(&summary).unwrap();
        let mut notes = Vec::new();
        output.publish(&mut notes).unwrap();
        (notes, contents(folder.path()))
    };
    let (notes, whole) = export(|_| {}, false);
    assert!(notes.is_empty() && whole.len() == 2);
    let less: [fn(&mut TraceSummary); 3] = [
        |summary| summary.events = 8,
        |summary| summary.duration_ns = Some(4),
        |summary| summary.end = Some("running".to_owned()),
    ];
    for change in less {
        let (notes, after) = export(change, false);
        assert_eq!(after, whole);
        assert!(
            notes[0].starts_with(
                "the tables of run=a/rank=0 stay: they have 9 events of the process, and 7/run.trace has "
            ),
            "{notes:?}"
        );
    }
    let (notes, more) = export(|summary| summary.events = 10, false);
    assert!(notes.is_empty() && more != whole);
    let (notes, forced) = export(|_| {}, true);
    assert!(notes.is_empty() && forced == whole);
}

#[test]
fn a_partition_of_another_process_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    export(folder.path(), "a", &[identity(7)]).unwrap();
    let why = refused(folder.path(), "a", &identity(8));
    assert!(why.contains("run=a/rank=0 has the rank of another process (7/run.trace)"), "{why}");
    assert!(why.ends_with("give 8/run.trace another name with --run-name"), "{why}");
    export(folder.path(), "b", &[identity(8)]).unwrap();
}

#[test]
fn traces_without_process_facts_are_told_apart_by_id_or_path() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    let [one, two] = ["A", "B"].map(|name| folder.path().join(name).join("snapshot.pickle"));
    for path in [&one, &two] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    let [mut first, mut second] = [&one, &two].map(|path| unknown(path, None));
    let again = unknown(&folder.path().join("B/../A/snapshot.pickle"), None);
    for trace in [&first, &again] {
        assert_eq!(export(&archive, "snapshot", std::slice::from_ref(trace)).unwrap(), [0], "the same file");
    }
    // The run has the name of a file, so the other one is not of this run.
    assert!(refused(&archive, "snapshot", &second).contains("has the rank of another process"));
    // In a run that the user names, it gets a number of its own, and keeps it.
    for (trace, rank) in [(&first, 0), (&second, 1), (&first, 0), (&second, 1)] {
        assert_eq!(export(&archive, "named", std::slice::from_ref(trace)).unwrap(), [rank]);
    }
    // With a reported rank there is no other number.
    first.rank = Some(0);
    second.rank = Some(0);
    export(&archive, "snapshot", &[first]).unwrap();
    assert!(refused(&archive, "snapshot", &second).contains("has the rank of another process"));
    let with_id = |path: &str, id| TraceIdentity { rank: Some(0), ..unknown(Path::new(path), Some(id)) };
    export(&archive, "ids", &[with_id("a", "1")]).unwrap();
    export(&archive, "ids", &[with_id("b", "1")]).unwrap();
    assert!(refused(&archive, "ids", &with_id("b", "2")).contains("has the rank of another process"));
}

#[test]
fn without_a_summary_any_table_names_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    export(folder.path(), "a", &[identity(7)]).unwrap();
    std::fs::remove_dir_all(folder.path().join(SUMMARIES)).unwrap();
    let why = refused(folder.path(), "a", &identity(8));
    assert!(why.contains("another process (process 7 on node0)"), "{why}");
    export(folder.path(), "a", &[identity(7)]).unwrap();
}

/// Writes a table that does not name its process.
fn write_foreign_table(folder: &Path, table: &str, run: &str) {
    let path = folder.join(table).join(format!("run={run}")).join("rank=0").join(FILE);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let schema = Arc::new(parse_message_type("message schema { REQUIRED INT64 pid; }").unwrap());
    SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap().close().unwrap();
}

#[test]
fn files_of_an_unknown_owner_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    write_foreign_table(folder.path(), "findings", "cut");
    let why = refused(folder.path(), "cut", &identity(7));
    assert!(why.contains("findings/run=cut/rank=0/part-0.parquet does not name its process"), "{why}");
    assert!(why.contains("--run-name, or delete run=cut/rank=0 from"), "{why}");
    // A number that no other trace needs is passed over.
    let trace = TraceIdentity { rank: None, ..identity(7) };
    assert_eq!(export(folder.path(), "cut", &[trace]).unwrap(), [1]);
}

#[test]
fn a_summary_of_two_processes_has_an_owner_too_many() {
    let folder = tempfile::tempdir().unwrap();
    export(folder.path(), "a", &[identity(7)]).unwrap();
    let merged = [7, 9].map(|pid| Summary::of_trace(summary_of(&identity(pid))));
    let text = serde_json::to_string(&Summary::merge_all(merged)).unwrap();
    std::fs::write(folder.path().join("_summaries/run=a/rank=0.summary"), text).unwrap();
    assert!(refused(folder.path(), "a", &identity(7)).contains("9/run.trace"));
}

#[test]
fn exports_at_once_leave_whole_partitions() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let folder = folder.path();
            scope.spawn(move || {
                for run in 0..5 {
                    export(folder, &format!("run{}", (writer + run) % 5), &[identity(7)]).unwrap();
                }
            });
        }
    });
    assert_eq!(contents(folder.path()).len(), 10);
    let left = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert_eq!(left, [LOCK]);
}

#[test]
fn nodes_that_export_at_once_choose_different_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let node = |node: u64| [2 * node, 2 * node + 1].map(|pid| TraceIdentity { rank: None, ..identity(pid) });
    let export_all = || {
        std::thread::scope(|scope| {
            let start = |at| {
                let folder = folder.path();
                scope.spawn(move || export(folder, "ray", &node(at)).unwrap())
            };
            let nodes: Vec<_> = (0..6).map(start).collect();
            nodes.into_iter().map(|ranks| ranks.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let ranks = export_all();
    assert_eq!(ranks.concat().into_iter().collect::<BTreeSet<_>>(), (0..12).collect());
    let before = contents(folder.path());
    assert_eq!(export_all(), ranks, "each process keeps its number");
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn a_killed_export_keeps_its_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let trace = |pid| TraceIdentity { rank: None, ..identity(pid) };
    let mut killed = begin(folder.path(), "a", &[trace(7)]).unwrap();
    let _ = killed.hidden.take().unwrap().keep();
    drop(killed);
    assert_eq!(export(folder.path(), "a", &[trace(8)]).unwrap(), [1]);
    assert_eq!(export(folder.path(), "a", &[trace(7)]).unwrap(), [0]);
    // A reported rank is not held back by it.
    assert_eq!(begin(folder.path(), "b", &[trace(7)]).unwrap().ranks, [0]);
    export(folder.path(), "b", &[identity(8)]).unwrap();
}
