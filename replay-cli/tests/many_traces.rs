//! `replay`, `check`, `compare`, `ranks` and `history` of many traces, of which some are bad.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use gpumemtrace_format::NodeId;
use gpumemtrace_synthetic::Synthetic;
use serde_json::{Value, json};
use tempfile::TempDir;

const RANKS: u64 = 40;
/// A rank that leaks, and one that runs out of memory.
const LEAKING: u64 = 11;
const FAILING: u64 = 30;
/// Ranks of bad traces.
const GARBAGE: u64 = 2;
const CUT: u64 = 4;
const MISSING: u64 = 6;

/// The traces of a job. Odd ranks are in a folder below.
fn job(bytes: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("deep/er")).unwrap();
    for rank in 0..RANKS {
        fs::write(path_of(folder.path(), rank), rank_run(rank, bytes).file(100)).unwrap();
    }
    folder
}

fn path_of(folder: &Path, rank: u64) -> std::path::PathBuf {
    let below = if rank % 2 == 1 { "deep/er" } else { "" };
    folder.join(below).join(format!("run.rank{rank}.trace"))
}

fn rank_run(rank: u64, bytes: u64) -> Synthetic {
    let mut run = Synthetic::train(12, |run, step, train| {
        let work = run.frame(train, "/work/extra.py", "work", 10);
        let block = run.alloc(work, bytes);
        run.release(block, train);
        if rank == LEAKING {
            let hook = run.frame(train, "/work/hooks.py", "Keeper.hook", 7);
            run.alloc(hook, 4 << 20);
        }
        if rank == FAILING && step == 11 {
            run.oom(work, 40 << 30);
        }
    });
    run.meta.set_number("rank", rank);
    run.meta.set_number("world_size", RANKS);
    run
}

/// Damages three traces of a job.
fn damage(folder: &Path) {
    fs::write(path_of(folder, GARBAGE), b"no trace").unwrap();
    let whole = fs::read(path_of(folder, CUT)).unwrap();
    fs::write(path_of(folder, CUT), &whole[..whole.len() / 2]).unwrap();
    fs::remove_file(path_of(folder, MISSING)).unwrap();
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command.env("LC_ALL", "C.UTF-8").env("GPUMEMTRACE_CACHE", "off").env("COLUMNS", "120");
    command.env_remove("TERM").env_remove("LD_PRELOAD");
    command.current_dir(folder).args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("UTF-8")
}

/// Runs the command, checks its exit code, and returns stdout and the lines of stderr.
fn output(folder: &Path, args: &[&str], code: i32) -> (String, Vec<String>) {
    let output = run(folder, args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    (text(&output.stdout).to_owned(), errors.lines().map(str::to_owned).collect())
}

fn json(folder: &Path, args: &[&str], code: i32) -> Value {
    serde_json::from_str(&output(folder, args, code).0).expect("JSON")
}

/// The rows of a list by rank, without the bad ranks.
fn good_rows<'a>(document: &'a Value, list: &str) -> Vec<&'a Value> {
    let is_good = |row: &&Value| ![GARBAGE, CUT, MISSING].contains(&row["rank"].as_u64().unwrap());
    document[list].as_array().unwrap().iter().filter(is_good).collect()
}

#[test]
fn ranks_takes_many_traces_and_other_reports_take_a_few() {
    let job = job(1 << 20);
    let folder = job.path();
    let (report, errors) = output(folder, &["ranks", "."], 0);
    assert!(report.starts_with("40 traces of 40 ranks") && errors.is_empty(), "{report} {errors:?}");
    assert!(report.contains(&format!("/work/hooks.py:7 in Keeper.hook(): rank {LEAKING}")), "{report}");
    // Findings of any trace count.
    for kind in ["leaks", "growth", "oom", "any"] {
        output(folder, &["ranks", ".", "--fail-on", kind], 3);
    }
    let calm = "**/*.rank3[1-9].trace";
    output(folder, &["ranks", calm, "run.rank[0-9].trace", "deep", "--fail-on", "oom", "--jobs", "2"], 6);
    output(folder, &["ranks", "deep", "-o", "job.summary"], 0);
    let (_, errors) = output(folder, &["ranks", "job.summary", "--fail-on", "any"], 2);
    assert_eq!(errors, ["gpumemtrace: job.summary is a summary, and --fail-on needs the traces"]);
    // The other commands name this one.
    for command in ["replay", "html"] {
        let (shown, errors) =
            output(folder, &[command, ".", "-o", "page.html"][..if command == "html" { 4 } else { 2 }], 2);
        assert!(shown.is_empty() && errors.len() == 1, "{errors:?}");
        let text = &errors[0];
        assert!(text.contains("at most 16 traces") && text.contains("40: gpumemtrace ranks"), "{text}");
    }
    let (_, errors) = output(folder, &["html", "job.summary", "-o", "page.html"], 2);
    assert_eq!(
        errors,
        ["gpumemtrace: job.summary is a summary: gpumemtrace ranks --html PAGE makes a page of it"]
    );
    // The page is named on stderr: stdout has the report.
    let (report, errors) = output(folder, &["ranks", ".", "--html", "page.html", "--json"], 0);
    assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["schema"], "gpumemtrace.job");
    assert!(errors.len() == 1 && errors[0].starts_with("gpumemtrace: wrote page.html ("), "{errors:?}");
    assert!(fs::read_to_string(folder.join("page.html")).unwrap().contains("</html>"));
    let (_, errors) = output(folder, &["ranks", ".", "--html", "page.html", "-o", "page.html"], 2);
    assert_eq!(errors, ["gpumemtrace: --html and --output name the same file"]);
    // Few traces, by rank or by pattern, are one report.
    for few in [&["--rank", "10,11"][..], &["deep/**/*.rank1[13].trace", "run.rank10.trace"]] {
        let paths = if few[0] == "--rank" { vec![".", few[0], few[1]] } else { few.to_vec() };
        let (report, errors) = output(folder, &[&["replay", "--leaks"][..], &paths].concat(), 0);
        assert!(report.contains("Keeper.hook") && errors.is_empty(), "{report} {errors:?}");
    }
}

#[test]
fn bad_traces_change_nothing_about_the_others() {
    let (whole, damaged) = (job(1 << 20), job(1 << 20));
    damage(damaged.path());
    let (whole, damaged) = (whole.path(), damaged.path());
    fs::write(whole.join("budget"), "[peak]\nlive = \"1GiB\"\n[leaks]\ncount = 0\n").unwrap();
    fs::copy(whole.join("budget"), damaged.join("budget")).unwrap();

    let [before, after] =
        [(whole, 0), (damaged, 6)].map(|(folder, code)| json(folder, &["ranks", ".", "--json"], code));
    assert_eq!(crate::schema::violations("job", &after), [""; 0]);
    assert_eq!(good_rows(&before, "traces"), good_rows(&after, "traces"));
    assert_eq!(after["missing_ranks"], json!([GARBAGE, MISSING]));
    assert_eq!(after["unreadable"][0]["path"], format!("./run.rank{GARBAGE}.trace"));
    let (_, errors) = output(damaged, &["ranks", "."], 6);
    let named = errors
        .iter()
        .filter(|line| line.contains("is not a gpumemtrace trace") && line.ends_with("left out"));
    assert_eq!((named.count(), errors.len()), (1, 1), "{errors:?}");

    let check = ["check", ".", "--budget", "budget", "--json"];
    let [before, after] = [whole, damaged].map(|folder| json(folder, &check, 3));
    assert_eq!(crate::schema::violations("check", &after), [""; 0]);
    assert_eq!(good_rows(&before, "checks"), good_rows(&after, "checks"));
    assert_eq!((&before["complete"], &after["complete"]), (&true.into(), &false.into()));
    assert_eq!(after["unreadable"].as_array().unwrap().len(), 1);
    assert_eq!((&before["missing_ranks"], &after["missing_ranks"]), (&json!([]), &json!([GARBAGE, MISSING])));
    let (report, _) = output(damaged, &check[..4], 3);
    assert!(report.contains("  ! 2 ranks without a trace: 2, 6\n"), "{report}");
    let of_cut = after["checks"].as_array().unwrap().iter().find(|check| check["rank"] == CUT).unwrap();
    assert_eq!(of_cut["complete"], false);
    // The cut trace has lost its stacks, so its leaks are unknown, and an unknown value fails.
    output(damaged, &["check", "run.rank?.trace", "--budget", "budget"], 3);

    let root = whole.parent().unwrap();
    let [one, other] = [whole, damaged].map(|folder| folder.file_name().unwrap().to_str().unwrap());
    let same = json(root, &["compare", one, one, "--json", "--fail-on", "any"], 0);
    assert_eq!((same["pairs"].as_array().unwrap().len(), &same["differs"]), (RANKS as usize, &false.into()));
    let compared = json(root, &["compare", one, other, "--json"], 6);
    assert_eq!(crate::schema::violations("comparison", &compared), [""; 0]);
    let good = good_rows(&compared, "pairs");
    assert_eq!(good.len() as u64, RANKS - 3);
    assert!(good.iter().all(|pair| pair["differs"] == false && pair["complete"] == true));
    let alone: Vec<_> = compared["unpaired"].as_array().unwrap().iter().map(|one| &one["rank"]).collect();
    assert_eq!(alone, [GARBAGE, MISSING]);
}

#[test]
fn check_lists_what_fails_and_writes_limits_that_all_keep() {
    let job = job(1 << 20);
    let folder = job.path();
    output(folder, &["check", "run.rank0.trace", "--budget", "one.toml", "--write"], 0);
    let args = ["check", ".", "--budget", "one.toml", "--markdown", "page.md", "--junit", "junit.xml"];
    let (report, errors) = output(folder, &args, 3);
    assert!(errors.is_empty(), "{errors:?}");
    assert!(report.starts_with("39 of 40 traces passed, 1 failed (one.toml)"), "{report}");
    assert!(report.contains("ok       39 traces: ranks 0 to 10, 12 to 39\n"), "{report}");
    assert!(report.contains(&format!("rank {LEAKING} (./deep/er/run.rank{LEAKING}.trace): ")), "{report}");
    assert!(report.contains("leaks.count") && report.contains("Keeper.hook"), "{report}");
    assert!(report.lines().count() < 40, "{report}");
    let page = fs::read_to_string(folder.join("page.md")).unwrap();
    assert!(page.contains("| ✅ | 39 traces: ranks 0 to 10, 12 to 39 |"), "{page}");
    assert!(page.lines().filter(|line| line.starts_with("| ❌ | rank 11, ")).count() > 1, "{page}");
    let suites = fs::read_to_string(folder.join("junit.xml")).unwrap();
    assert_eq!(suites.matches("<testsuite ").count() as u64, RANKS);
    // One that cannot be read is a suite with an error.
    damage(folder);
    output(folder, &args, 3);
    let suites = fs::read_to_string(folder.join("junit.xml")).unwrap();
    assert_eq!(suites.matches("<error type=\"unreadable\"").count(), 1, "{suites}");

    let whole = self::job(2 << 20);
    let folder = whole.path();
    let (said, _) = output(folder, &["check", ".", "--budget", "all.toml", "--write"], 0);
    assert!(said.contains("with the largest values of 40 traces as limits"), "{said}");
    let kept = json(folder, &["check", ".", "--budget", "all.toml", "--json"], 0);
    assert!(kept["checks"].as_array().unwrap().iter().all(|check| check["passed"] == true));
    let limits = fs::read_to_string(folder.join("all.toml")).unwrap();
    assert!(limits.contains("count = 1\n") && limits.contains("extra.py:work"), "{limits}");
    // Only one rank has this function: a limit on it would fail on the others.
    assert!(!limits.contains("Keeper.hook"), "{limits}");
}

#[test]
fn compare_merges_what_differs_by_rank() {
    let (before, after) = (job(1 << 20), job(2 << 20));
    fs::remove_file(path_of(before.path(), 5)).unwrap();
    fs::copy(path_of(after.path(), 8), after.path().join("again.trace")).unwrap();
    let [first, second] = [&before, &after].map(|folder| folder.path().to_str().unwrap());
    let compared = json(Path::new("/"), &["compare", first, second, "--json", "--jobs", "3"], 6);
    assert_eq!((&compared["complete"], &compared["notes"]), (&false.into(), &serde_json::json!([])));
    assert_eq!(crate::schema::violations("comparison", &compared), [""; 0]);
    assert_eq!(compared["pairs"].as_array().unwrap().len() as u64, RANKS - 2);
    let unpaired: Vec<_> = compared["unpaired"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["run"].as_u64().unwrap(), one["rank"].as_u64().unwrap(), one["is_repeated"] == true))
        .collect();
    assert_eq!(unpaired, [(0, 8, false), (1, 5, false), (1, 8, true), (1, 8, true)]);
    let line = &compared["lines"][0];
    assert_eq!(line["site"]["function"], "work");
    assert_eq!(line["ranks"].as_array().unwrap().len() as u64, RANKS - 2);
    assert_eq!(line["bytes_per_step"]["median"], 1 << 20);
    let totals = compared["totals"].as_array().unwrap();
    let per_step = totals.iter().find(|total| total["name"] == "bytes_per_step").unwrap();
    assert_eq!(
        (&per_step["change"]["median"], &per_step["change"]["most_rank"]),
        (&(1 << 20).into(), &0.into())
    );
    // Each pair is what the comparison of its two traces says.
    let pair = [path_of(before.path(), 3), path_of(after.path(), 3)];
    let [one, other] = pair.each_ref().map(|path| path.to_str().unwrap());
    let alone = json(Path::new("/"), &["compare", one, other, "--json"], 0);
    assert_eq!(alone["schema"], "gpumemtrace.comparison");
    assert_eq!(alone["lines"][0]["bytes_per_step"]["change"], 1 << 20);
    // The first run has no leak in rank 12: --fail-on is about any pair.
    output(Path::new("/"), &["compare", first, second, "--fail-on", "leaks"], 6);
    let mut leaking = rank_run(LEAKING, 2 << 20);
    leaking.meta.set_number("rank", 12);
    fs::write(path_of(after.path(), 12), leaking.file(100)).unwrap();
    let (report, _) = output(Path::new("/"), &["compare", first, second, "--fail-on", "leaks"], 3);
    assert!(report.contains("new: ") && report.contains("Keeper.hook(): rank 12"), "{report}");
}

#[test]
fn replay_judges_no_summaries() {
    let job = job(1 << 20);
    let folder = job.path();
    fs::create_dir(folder.join("summaries")).unwrap();
    for part in 0..4 {
        let name = format!("summaries/{part:02}.summary");
        output(folder, &["ranks", ".", "-o", &name], 0);
    }
    for (pattern, lines) in [("summaries/03.summary", 1), ("summaries/*.summary", 5)] {
        let (shown, errors) = output(folder, &["replay", pattern, "--fail-on", "leaks"], 5);
        assert!(shown.is_empty(), "{shown}");
        let why = ".summary is a summary of traces, which gpumemtrace ranks reads";
        assert!(errors.len() == lines && errors[0].contains(why), "{errors:?}");
    }
}

#[test]
fn paths_without_a_readable_trace_are_exit_code_5() {
    let job = job(1 << 20);
    let folder = job.path();
    fs::create_dir(folder.join("bad")).unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    for rank in 0..16 {
        fs::write(folder.join(format!("bad/{rank}.trace")), b"no trace").unwrap();
    }
    fs::write(folder.join("budget"), "[peak]\nlive = 1\n").unwrap();
    for (path, says, lines) in [
        ("bad", "no trace could be read", 12),
        ("bad/1.trace", "is not a gpumemtrace trace", 1),
        ("bad/1[0-2].trace", "no trace could be read", 4),
        ("empty", "has no file named *.trace", 1),
        ("none*.trace", "matches no file", 1),
    ] {
        for args in [&["replay", path][..], &["check", path, "--budget", "budget"]] {
            let (shown, errors) = output(folder, args, 5);
            assert!(shown.is_empty() && errors.last().unwrap().contains(says), "{args:?}: {errors:?}");
            assert_eq!(errors.len(), lines, "{args:?}: {errors:?}");
        }
        let (shown, errors) = output(folder, &["compare", path, "."], 5);
        assert!(shown.is_empty(), "{errors:?}");
        assert!(!errors.is_empty());
    }
}

/// A rank that has no steps, because nothing in it is periodic.
fn rank_without_steps(rank: u64, held: u64, growing: bool) -> Synthetic {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/serve.py", "serve", 10);
    let cache = run.frame(NodeId::NONE, "/work/serve.py", "cache", 20);
    for _ in 0..held {
        run.alloc(line, 1 << 20);
    }
    let scatter = |round: u64| ((round * round) ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 4093;
    for round in 0..800 {
        if growing && scatter(round) < 2500 {
            run.alloc(cache, 512);
        } else {
            let block = run.alloc(line, 512);
            run.release(block, line);
        }
    }
    run.meta.set_number("rank", rank);
    run
}

#[test]
fn compare_says_in_which_ranks_a_quantity_is_known() {
    let folders = [4 << 20, 6 << 20].map(|bytes| {
        let folder = tempfile::tempdir().unwrap();
        let write = |rank: u64, run: &Synthetic| {
            fs::write(folder.path().join(format!("{rank}.trace")), run.file(100)).unwrap();
        };
        write(0, &rank_run(0, bytes));
        let is_after = bytes == 6 << 20;
        // Rank 2 shrinks by 30 MiB, and rank 3 grows by 10 MiB.
        write(1, &rank_without_steps(1, 50, true));
        write(2, &rank_without_steps(2, if is_after { 20 } else { 50 }, true));
        write(3, &rank_without_steps(3, if is_after { 60 } else { 50 }, true));
        folder
    });
    let [before, after] = folders.each_ref().map(|folder| folder.path().to_str().unwrap());
    let compared = json(Path::new("/"), &["compare", before, after, "--json"], 0);
    assert_eq!(crate::schema::violations("comparison", &compared), [""; 0]);
    let total =
        |name| compared["totals"].as_array().unwrap().iter().find(|total| total["name"] == name).unwrap();
    // Only rank 0 has steps, so the others have no peak of a step.
    let per_step = total("bytes_per_step");
    assert_eq!((&per_step["ranks"], &per_step["known"]), (&1.into(), &1.into()));
    assert_eq!(per_step["change"]["median"], 2 << 20);
    let peak = total("peak_live_bytes");
    assert_eq!(peak["known"], 4);
    assert_eq!(
        peak["change"],
        serde_json::json!({"median": 0, "least": -(30 << 20), "least_rank": 2, "most": 10 << 20, "most_rank": 3})
    );
    let notes: Vec<_> =
        compared["notes"].as_array().unwrap().iter().map(|note| (&note["kind"], &note["ranks"])).collect();
    let ranks = serde_json::json!([1, 2, 3]);
    let [leaks, steps] = ["leaks_not_compared", "no_steps"].map(Value::from);
    assert_eq!(notes, [(&leaks, &ranks), (&steps, &ranks)]);
    assert_eq!((&compared["notes"][0]["before"], &compared["notes"][0]["after"]), (&3.into(), &3.into()));
    let (report, _) = output(Path::new("/"), &["compare", before, after, "--fail-on", "leaks"], 0);
    assert!(report.contains("  Note for ranks 1 to 3: leaks were not compared: "), "{report}");
    assert!(report.contains("+2.00 MiB  rank 0  (known in 1 of 4 ranks)"), "{report}");
    assert!(report.contains("-30.00 MiB  rank 2, +10.00 MiB rank 3\n"), "{report}");
}

#[test]
fn ranks_reads_no_summary_that_it_is_about_to_replace() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = |rank: u64| folder.join(format!("run.rank{rank}.trace"));
    fs::write(path(0), rank_run(0, 1 << 20).file(100)).unwrap();
    fs::write(path(1), b"no trace").unwrap();
    output(folder, &["ranks", ".", "-o", "all.summary"], 6);
    fs::write(path(1), rank_run(1, 1 << 20).file(100)).unwrap();
    // What could not be read then can be read now.
    for input in [&["."][..], &["*.[ts]*"], &["run.rank0.trace", "run.rank1.trace", "./all.summary"]] {
        let (report, errors) = output(folder, &[&["ranks", "-o", "all.summary"][..], input].concat(), 0);
        assert!(report.starts_with("2 traces of 2 ranks"), "{report}");
        let [only] = &errors[..] else { panic!("{errors:?}") };
        assert!(only.ends_with("all.summary is the output, so it is not read"), "{only}");
    }
    // No trace is lost, neither a file nor one that only the output has.
    let before = fs::read(folder.join("all.summary")).unwrap();
    for (arguments, why) in [
        (&["run.rank0.trace", "all.summary", "-o", "all.summary"][..], "has 1 trace that no other input has"),
        (&["all.summary", "-o", "all.summary"], "is the only input, and the output"),
        (&[".", "-o", "run.rank0.trace"], "is an input, and no summary"),
    ] {
        let (shown, errors) = output(folder, &[&["ranks"], arguments].concat(), 2);
        assert!(shown.is_empty() && errors.last().unwrap().contains(why), "{errors:?}");
    }
    assert_eq!(fs::read(folder.join("all.summary")).unwrap(), before);
    output(folder, &["replay", "run.rank0.trace"], 0);
}

#[test]
fn ranks_names_the_attempt_of_what_was_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |name: &str, rank: u64, started_unix_ns: u64| {
        let mut run = rank_run(rank, 1 << 20);
        run.meta.set_number("started_unix_ns", started_unix_ns);
        run.meta.set_number("pid", started_unix_ns);
        fs::write(folder.join(name), run.file(100)).unwrap();
    };
    for (attempt, start) in [(1, 5_000_000_000), (2, 9_000_000_000)] {
        write(&format!("{attempt}.{FAILING}.trace"), FAILING, start);
        write(&format!("{attempt}.{LEAKING}.trace"), LEAKING, start + 1);
    }
    let (report, _) = output(folder, &["ranks", "."], 6);
    assert!(
        report.contains(&format!("Growth began in rank {LEAKING} in step 0 of attempt 1 at ")),
        "{report}"
    );
    let errors: Vec<_> = report.lines().filter(|line| line.contains("requested in step")).collect();
    assert_eq!(errors.len(), 2, "{report}");
    assert!(errors[0].contains(" of attempt 1 at ") && errors[1].contains(" of attempt 2 at "), "{report}");
    // The joint report of a few traces does not divide them into attempts.
    let (report, _) = output(folder, &["replay", "."], 0);
    let why =
        format!("Which one grew first is unknown: rank {LEAKING} has several traces, as after a restart;");
    assert!(report.contains(&why), "{report}");
    // A third process of the rank, while the second attempt runs.
    write("third.trace", LEAKING, 9_000_000_002);
    let (report, _) = output(folder, &["ranks", "."], 6);
    for unknown in ["Which rank grew first is unknown: ", "Which error was first is unknown: "] {
        let why = format!("{unknown}ranks have several traces, and their times do not separate restarts.");
        assert!(report.contains(&why), "{report}");
    }
}

/// Adds the traces of a run to an archive, as `export parquet` does, without the tables.
fn add_run(archive: &Path, name: &str, commit: &str, traces: &[(u64, Vec<u8>)]) {
    let summaries = archive.join("_summaries").join(format!("run={name}"));
    fs::create_dir_all(&summaries).unwrap();
    for (rank, trace) in traces {
        fs::create_dir_all(archive.join(format!("runs/run={name}/rank={rank}"))).unwrap();
        fs::write(archive.join("x.trace"), trace).unwrap();
        let file = summaries.join(format!("rank={rank}.summary"));
        run(archive, &["ranks", "x.trace", "-o", file.to_str().unwrap()]);
        let text = fs::read_to_string(&file).unwrap();
        let text = text.replace("\"git_commit\":null", &format!("\"git_commit\":\"{commit}\""));
        fs::write(&file, text).unwrap();
    }
    fs::remove_file(archive.join("x.trace")).unwrap();
}

/// A rank of a version that starts at `start`, and holds `held` MiB.
fn rank_of_version(rank: u64, start: u64, held: u64) -> Synthetic {
    let mut run = rank_without_steps(rank, held, false);
    run.meta.set_number("started_unix_ns", start);
    run.meta.set_number("pid", start + rank);
    run.meta.set_number("world_size", 2);
    run
}

#[test]
fn history_names_what_is_missing_from_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path();
    let whole = |start: u64, held: u64| -> Vec<(u64, Vec<u8>)> {
        (0..2).map(|rank| (rank, rank_of_version(rank, start, held).file(100))).collect()
    };
    add_run(archive, "one", "aaaa", &whole(1, 10));
    add_run(archive, "two", "bbbb", &whole(2, 40));
    let (report, errors) = output(archive, &["history", "."], 0);
    assert!(errors.is_empty() && !report.contains('!'), "{report}");
    let title = "Started               commit      ranks  median peak     max peak  ended          run, and";
    assert!(report.contains(title), "{report}");
    assert!(report.starts_with("2 runs; 1 function grew in the newest version\n"), "{report}");
    assert!(
        report.contains("30.00 MiB  /work/serve.py:10 in serve(), 10.00 MiB in aaaa and 40.00 MiB in bbbb")
    );

    // A version whose runs are cut is compared with the one before, and none is compared with it.
    let mut cut = whole(3, 80);
    for (_, trace) in &mut cut {
        trace.truncate(trace.len() - 500);
    }
    add_run(archive, "cut", "cccc", &cut);
    add_run(archive, "missing", "dddd", &whole(4, 120)[..1]);
    add_run(archive, "unsummarized", "eeee", &whole(5, 120));
    fs::remove_file(archive.join("_summaries/run=unsummarized/rank=1.summary")).unwrap();
    fs::create_dir_all(archive.join("runs/run=old/rank=0")).unwrap();
    fs::create_dir_all(archive.join("_summaries/run=bad")).unwrap();
    fs::write(archive.join("_summaries/run=bad/rank=0.summary"), "{}").unwrap();
    let (report, errors) = output(archive, &["history", "."], 6);
    assert_eq!(errors.len(), 1, "{errors:?}");
    for gap in [
        "  ! 1 run without a summary, to be exported again: old\n",
        "  ! 1 run without a readable summary: bad\n",
        "  ! cut: rank 0 is incomplete: ",
        "; 1 more trace incomplete\n",
        "  ! missing: 1 rank without a trace: 1\n",
        "  ! unsummarized: 1 rank without a trace: 1; 1 rank without a summary, to be exported again: 1\n",
        "  ! 1 version compared in some ranks only, because the others are not in both, or not complete",
    ] {
        assert!(report.contains(gap), "{gap}: {report}");
    }
    assert!(
        report.contains("in bbbb and 80.00 MiB in cccc (incomplete, or did not end normally)"),
        "{report}"
    );
    // What follows it is compared with the last version before that is complete.
    assert!(report.contains("40.00 MiB in bbbb and 120.00 MiB in dddd"), "{report}");
    // Only the newest version counts: it has as much as the one before.
    output(archive, &["history", ".", "--fail-on", "growth"], 6);
    output(archive, &["history", ".", "--run", "one", "--run", "two", "--fail-on", "growth"], 3);
    output(archive, &["history", ".", "--run", "one", "--run", "two", "--fail-on", "failed"], 0);
    output(archive, &["history", ".", "--since", "2026-01-01"], 2);
    output(archive, &["history", ".", "--html", "page.html"], 6);
    output(archive, &["history", ".", "--run", "one", "--run", "two"], 0);
    let (report, _) = output(archive, &["history", ".", "--run", "one", "--run", "old"], 6);
    assert!(report.contains("No program has two versions to compare."), "{report}");
    let (_, errors) = output(archive, &["history", ".", "--run", "old"], 5);
    assert!(
        errors[0].contains("1 run in . without a summary, such as old; export the traces again"),
        "{errors:?}"
    );
    output(archive, &["history", ".", "--run", "none"], 2);
    fs::remove_dir_all(archive.join("_summaries")).unwrap();
    let (_, errors) = output(archive, &["history", "."], 5);
    assert!(errors[0].contains("6 runs in . without a summary"), "{errors:?}");
}
