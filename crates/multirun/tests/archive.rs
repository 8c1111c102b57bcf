//! What grew between the versions of a program: never more than is certain.

use std::collections::BTreeMap;

use gpumemtrace_multirun::{
    ArchiveGrowth, ArchivedRun, CallSite, DeviceSummary, GpuChoice, JobReport, OomSummary, Outcome,
    PairOutcome, Process, RunArchive, SitePeak, Summary, TraceSummary, growth_between_versions,
};

const MIB: u64 = 1 << 20;

fn site(text: &str) -> CallSite {
    CallSite { id: text.to_owned(), text: text.to_owned(), source_id: None }
}

/// A complete trace that ended normally. The peak is the sum of the sites, in MiB.
fn trace(rank: u64, start: u64, commit: Option<&str>, sites: &[(&str, u64)]) -> TraceSummary {
    let peak_sites: Vec<SitePeak> =
        sites.iter().map(|(text, mib)| SitePeak { site: site(text), bytes: mib * MIB }).collect();
    TraceSummary {
        process: Process { host: None, pid: Some(rank), started_unix_ns: Some(start) },
        path: format!("{start}.{rank}.trace"),
        rank: Some(rank),
        world_size: None,
        command: Some(vec!["python".to_owned(), "train.py".to_owned()]),
        torch: None,
        allocator_conf: None,
        git_commit: commit.map(str::to_owned),
        labels: BTreeMap::new(),
        events: 1,
        duration_ns: None,
        end: Some("exit".to_owned()),
        exit_code: Some(0),
        end_detail: Some("exit 0".to_owned()),
        missing: Vec::new(),
        steps: None,
        step_source: None,
        leak_assessment: "assessed".to_owned(),
        worst_finding: None,
        devices: vec![DeviceSummary {
            device: 0,
            name: None,
            total_bytes: None,
            peak_live_bytes: Some(peak_sites.iter().map(|site| site.bytes).sum()),
            peak_reserved_bytes: None,
            end_live_bytes: None,
            live_bytes_over_time: Vec::new(),
            peak_sites,
            more_peak_sites: 0,
        }],
        leaks: Vec::new(),
        more_leaks: 0,
        ooms: Vec::new(),
        more_ooms: 0,
    }
}

fn run_of(traces: impl IntoIterator<Item = TraceSummary>) -> ArchivedRun {
    let summary = Summary::merge_all(traces.into_iter().map(Summary::of_trace));
    ArchivedRun { name: summary.traces()[0].path.clone(), summary, ranks_without_summary: Vec::new() }
}

/// A run of two ranks.
fn run(start: u64, commit: Option<&str>, sites: &[(&str, u64)]) -> ArchivedRun {
    run_of([0, 1].map(|rank| trace(rank, start, commit, sites)))
}

/// The run with `change` made to each trace.
fn changed(run: &ArchivedRun, change: impl Fn(&mut TraceSummary)) -> ArchivedRun {
    run_of(run.summary.traces().iter().cloned().map(|mut trace| {
        change(&mut trace);
        trace
    }))
}

fn growth(runs: Vec<ArchivedRun>) -> ArchiveGrowth {
    growth_between_versions(&RunArchive::new(runs, Vec::new(), Vec::new()))
}

/// Line, MiB before and MiB after.
fn found(runs: Vec<ArchivedRun>) -> Vec<(String, u64, u64)> {
    let found = growth(runs).regressions.into_iter();
    found.map(|one| (one.lines.join(" or "), one.before_bytes / MIB, one.after_bytes / MIB)).collect()
}

fn outcomes(runs: Vec<ArchivedRun>) -> Vec<PairOutcome> {
    growth(runs).pairs.iter().map(|pair| pair.outcome).collect()
}

#[test]
fn growth_is_found_although_lines_moved_and_runs_came_in_any_order() {
    let after = run(2, Some("2"), &[("t.py:20 in step()", 30), ("t.py:9 in load()", 10)]);
    let before = run(1, Some("1"), &[("t.py:14 in step()", 20), ("t.py:3 in load()", 10)]);
    let grown = growth(vec![after.clone(), before.clone()]);
    assert_eq!(grown.pairs[0].outcome, PairOutcome::AllRanks);
    let [only] = &grown.regressions[..] else { panic!("{grown:?}") };
    assert!(!only.before_is_bound && !only.after_is_bound && only.after_is_whole);
    assert_eq!(found(vec![after, before]), [("t.py:20 in step()".to_owned(), 20, 30)]);
}

#[test]
fn runs_of_one_commit_are_one_version() {
    let of = |start, commit, mib| run(start, commit, &[("t.py:1", mib)]);
    assert_eq!(found(vec![of(1, Some("1"), 10), of(2, Some("1"), 20), of(3, Some("1"), 90)]), []);
    // The most before: runs of one version that differ are no growth.
    let three = vec![of(1, Some("1"), 10), of(2, Some("1"), 20), of(3, Some("2"), 30)];
    assert_eq!(found(three), [("t.py:1".to_owned(), 20, 30)]);
    let overlapping =
        vec![of(1, Some("1"), 10), of(2, Some("1"), 30), of(3, Some("2"), 30), of(4, Some("2"), 90)];
    assert_eq!(found(overlapping), []);
    // Of three runs, one that differs from the others counts for nothing.
    let leaky = vec![of(1, Some("1"), 10), of(2, Some("1"), 10), of(3, Some("1"), 90), of(4, Some("2"), 30)];
    assert_eq!(found(leaky), [("t.py:1".to_owned(), 10, 30)]);
    // The commits of two branches may alternate: one pair of versions, not three.
    let alternating =
        vec![of(1, Some("1"), 10), of(2, Some("2"), 30), of(3, Some("1"), 10), of(4, Some("2"), 30)];
    assert_eq!(found(alternating.clone()), [("t.py:1".to_owned(), 10, 30)]);
    assert_eq!(growth(alternating).pairs.len(), 1);
    assert_eq!(found(vec![of(1, None, 10), of(2, None, 20)]), [("t.py:1".to_owned(), 10, 20)]);
}

#[test]
fn a_run_that_is_cut_or_failed_is_not_what_others_are_compared_with() {
    let (before, after) = (run(1, Some("a"), &[("t.py:1", 4)]), run(2, Some("b"), &[("t.py:1", 512)]));
    let oom = OomSummary { device: 0, step: None, time_ns: 0, requested_bytes: 1, site: site("t.py:1") };
    let ended = |end: &str, detail: Option<&str>, code: Option<u8>| {
        changed(&before, |trace| {
            trace.end = Some(end.to_owned());
            trace.end_detail = detail.map(str::to_owned);
            trace.exit_code = code;
        })
    };
    let cut = changed(&before, |trace| trace.missing = vec!["the end of the file is missing".to_owned()]);
    let may_have_failed = changed(&ended("exit", None, None), |trace| trace.ooms = vec![oom.clone()]);
    let bad = [
        cut,
        ended("killed", Some("signal 9"), None),
        ended("crashed", Some("signal 11"), None),
        ended("running", None, None),
        ended("exit", Some("exit 1"), Some(1)),
        ended("exit", Some("_exit(3)"), Some(3)),
        may_have_failed,
    ];
    for bad in bad {
        let grown = growth(vec![bad.clone(), after.clone()]);
        assert_eq!((&grown.regressions[..], grown.pairs[0].outcome), (&[][..], PairOutcome::NoWholeTrace));
        // The version may have another run that is whole. What follows a bad run is compared.
        let again = run(1, Some("a"), &[("t.py:1", 500)]);
        let again = changed(&again, |trace| trace.process.pid = Some(9));
        assert_eq!(outcomes(vec![bad.clone(), again, after.clone()]), [PairOutcome::AllRanks]);
        let failed_later = changed(&bad, |trace| {
            trace.process.started_unix_ns = Some(3);
            trace.git_commit = Some("c".to_owned());
            trace.devices[0].peak_sites[0].bytes = 1024 * MIB;
        });
        let grown = growth(vec![before.clone(), after.clone(), failed_later.clone()]);
        assert_eq!(grown.regressions.len(), 2);
        assert!(!grown.regressions[0].after_is_whole && grown.regressions[1].after_is_whole);
        // The version after it is compared with the last one before that is whole.
        let next = changed(&run(4, Some("d"), &[("t.py:1", 2048)]), |trace| trace.process.pid = Some(11));
        let grown = growth(vec![before.clone(), after.clone(), failed_later, next]);
        assert_eq!((grown.regressions.len(), grown.regressions[0].before_bytes), (3, 512 * MIB));
    }
    assert_eq!(
        found(vec![ended("exit", None, None), after]).len(),
        1,
        "without an error, a status is not needed"
    );
}

#[test]
fn only_ranks_of_both_versions_are_compared() {
    let mib_of = |start, commit, ranks: &[(u64, u64)]| {
        run_of(ranks.iter().map(|(rank, mib)| trace(*rank, start, Some(commit), &[("t.py:1", *mib)])))
    };
    // Rank 1 always has more. It is cut in the first version.
    let before = changed(&mib_of(1, "a", &[(0, 10), (1, 90)]), |trace| {
        if trace.rank == Some(1) {
            trace.missing = vec!["events".to_owned()];
        }
    });
    let after = mib_of(2, "b", &[(0, 10), (1, 90)]);
    assert_eq!(found(vec![before.clone(), after.clone()]), []);
    assert_eq!(outcomes(vec![before.clone(), after]), [PairOutcome::SomeRanks]);
    let others = mib_of(2, "b", &[(1, 200), (2, 200)]);
    assert_eq!(outcomes(vec![before, others]), [PairOutcome::NoCommonRank]);
    let without_gpu = changed(&mib_of(1, "a", &[(0, 10)]), |trace| trace.devices.clear());
    assert_eq!(outcomes(vec![without_gpu, mib_of(2, "b", &[(0, 90)])]), [PairOutcome::NoKnownPeak]);
}

#[test]
fn runs_without_a_start_or_a_program_are_counted_and_not_compared() {
    let [one, two] = [10, 90].map(|mib| run(mib, None, &[("t.py:1", mib)]));
    for unknown in [
        changed(&one, |trace| trace.process.started_unix_ns = None),
        changed(&one, |trace| trace.command = None),
    ] {
        let grown = growth(vec![unknown, two.clone()]);
        assert_eq!((grown.pairs.len(), grown.regressions.len(), &grown.unplaced[..]), (0, 0, &[0][..]));
    }
}

/// A run whose traces have `more` call sites of `rest` MiB together beyond those that are listed.
fn with_unlisted(run: &ArchivedRun, more: u64, rest: u64) -> ArchivedRun {
    changed(run, |trace| {
        trace.devices[0].more_peak_sites = more;
        *trace.devices[0].peak_live_bytes.as_mut().unwrap() += rest * MIB;
    })
}

#[test]
fn lines_that_were_not_kept_may_all_be_of_the_function() {
    let after = || run(2, Some("2"), &[("t.py:1 in new()", 40)]);
    let before = run(1, Some("1"), &[("t.py:2 in old()", 50), ("t.py:3 in f()", 9)]);
    assert_eq!(found(vec![before.clone(), after()]), [("t.py:1 in new()".to_owned(), 0, 40)]);
    // Three lines of at most 9 MiB each.
    let grown = found(vec![with_unlisted(&before, 3, 999), after()]);
    assert_eq!(grown, [("t.py:1 in new()".to_owned(), 27, 40)]);
    // The rest of the peak is less.
    let grown = growth(vec![with_unlisted(&before, 9, 20), after()]);
    assert_eq!((grown.regressions[0].before_bytes, grown.regressions[0].before_is_bound), (20 * MIB, true));
    assert_eq!(found(vec![with_unlisted(&before, 9, 40), after()]), []);
}

#[test]
fn another_line_of_a_listed_function_is_not_growth() {
    // t.py:11 had up to 7 MiB before, and was not listed.
    let before = with_unlisted(&run(1, Some("1"), &[("t.py:10 in f()", 30)]), 5, 7);
    let after = run(2, Some("2"), &[("t.py:10 in f()", 30), ("t.py:11 in f()", 7)]);
    assert_eq!(found(vec![before, after]), []);
}

#[test]
fn hidden_runs_are_still_compared_with() {
    let runs = vec![run(1, Some("a"), &[("t.py:1", 10)]), run(2, Some("b"), &[("t.py:1", 30)])];
    let mut archive = RunArchive::new(runs, Vec::new(), Vec::new());
    archive.show_only(|run| run.started_unix_ns() > Some(1));
    assert_eq!((archive.shown().count(), growth_between_versions(&archive).regressions.len()), (1, 1));
    archive.show_only(|run| run.started_unix_ns() == Some(1));
    let grown = growth_between_versions(&archive);
    assert_eq!((archive.shown().count(), grown.regressions.len(), grown.pairs.len()), (1, 0, 0));
}

#[test]
fn a_restarted_rank_counts_with_its_last_process() {
    let mut first = trace(0, 1, None, &[("t.py:1", 200)]);
    first.duration_ns = Some(3);
    first.exit_code = Some(1);
    let mut second = trace(0, 9, None, &[("t.py:1", 1000)]);
    second.process.pid = Some(7);
    let other = trace(1, 1, None, &[("t.py:1", 1000)]);
    let restarted = run_of([first.clone(), second, other]);
    assert_eq!(restarted.outcome(), Some(Outcome::Exited));
    assert_eq!(JobReport::of(&restarted.summary).outliers, []);
    assert_eq!(run_of([first]).outcome(), Some(Outcome::ErrorExit));
}

#[test]
fn an_archive_is_complete_if_all_ranks_of_all_runs_are_there() {
    let whole = run(1, None, &[]);
    let archive = |runs| RunArchive::new(runs, Vec::new(), Vec::new());
    assert!(archive(vec![whole.clone()]).is_complete());
    let mut without_summary = whole.clone();
    without_summary.ranks_without_summary = vec![2];
    let of_three = changed(&whole, |trace| trace.world_size = Some(3));
    let cut = changed(&whole, |trace| trace.missing = vec!["events".to_owned()]);
    let mut unreadable = whole.clone();
    let none = Summary::of_unreadable("2.trace".to_owned(), "is empty".to_owned());
    unreadable.summary = unreadable.summary.merge(none);
    for run in [without_summary, of_three, cut, unreadable] {
        assert!(!archive(vec![whole.clone(), run.clone()]).is_complete(), "{run:?}");
    }
    assert!(!RunArchive::new(vec![whole.clone()], vec!["old".to_owned()], Vec::new()).is_complete());
    assert!(!RunArchive::new(vec![whole], Vec::new(), vec!["damaged".to_owned()]).is_complete());
}

#[test]
fn growth_of_one_rank_is_found_and_its_line_is_the_one_that_changed() {
    let before = run_of((0..3).map(|rank| trace(rank, 1, Some("a"), &[("t.py:9 in stage()", 20)])));
    // The old line has moved. One rank has a new one in the same function.
    let sites = [("t.py:11 in stage()", 20), ("t.py:12 in stage()", 8)];
    let listed = |rank| if rank == 2 { &sites[..] } else { &sites[..1] };
    let after = run_of((0..3).map(|rank| trace(rank, 2, Some("b"), listed(rank))));
    let grown = growth(vec![before, after]);
    let [only] = &grown.regressions[..] else { panic!("{grown:?}") };
    assert_eq!((&only.lines[..], only.chosen), (&["t.py:12 in stage()".to_owned()][..], GpuChoice::Most));
    assert_eq!((only.before_bytes / MIB, only.after_bytes / MIB), (20, 28));
}

/// A run of lines with known texts: call site, text, MiB.
fn with_texts(start: u64, commit: &str, lines: &[(&str, &str, u64)]) -> ArchivedRun {
    let sites: Vec<(&str, u64)> = lines.iter().map(|(site, _, mib)| (*site, *mib)).collect();
    changed(&run(start, Some(commit), &sites), |trace| {
        for (peak, (_, text, _)) in trace.devices[0].peak_sites.iter_mut().zip(lines) {
            peak.site.source_id = Some((*text).to_owned());
        }
    })
}

#[test]
fn a_line_is_found_by_its_text_wherever_it_moved() {
    let before =
        with_texts(1, "a", &[("t.py:4 in f()", "x = big()", 30), ("t.py:5 in f()", "y = small()", 4)]);
    // The line that grew has fewer bytes than the one that only moved, and those bytes were there.
    let after =
        with_texts(2, "b", &[("t.py:14 in f()", "x = big()", 30), ("t.py:15 in f()", "y = small()", 30)]);
    assert_eq!(found(vec![before.clone(), after]), [("t.py:15 in f()".to_owned(), 34, 60)]);
    let both = [("t.py:14 in f()", "x = big()", 40), ("t.py:15 in f()", "y = small()", 14)];
    let grown = growth(vec![before, with_texts(2, "b", &both)]);
    assert_eq!(grown.regressions[0].lines, ["t.py:14 in f()", "t.py:15 in f()"], "both grew by 10 MiB");
}

#[test]
fn a_renamed_function_is_a_move_and_no_growth() {
    let before =
        with_texts(1, "a", &[("t.py:4 in old()", "x = big()", 30), ("t.py:9 in keep()", "z = 1", 5)]);
    let renamed =
        |mib| with_texts(2, "b", &[("m.py:7 in new()", "x = big()", mib), ("t.py:9 in keep()", "z = 1", 5)]);
    assert_eq!(found(vec![before.clone(), renamed(30)]), []);
    let grown = growth(vec![before.clone(), renamed(50)]);
    let [only] = &grown.regressions[..] else { panic!("{grown:?}") };
    assert_eq!(
        (&only.lines[..], &only.moved_from[..]),
        (&["m.py:7 in new()".to_owned()][..], &["t.py in old()".to_owned()][..])
    );
    assert_eq!((only.before_bytes / MIB, only.after_bytes / MIB), (30, 50));
    // Other text, or a function that is still there, is growth.
    let other =
        with_texts(2, "b", &[("t.py:7 in new()", "y = other()", 30), ("t.py:9 in keep()", "z = 1", 5)]);
    assert_eq!(found(vec![before.clone(), other]), [("t.py:7 in new()".to_owned(), 0, 30)]);
    let lines = [("t.py:4 in old()", "x = big()", 30), ("t.py:7 in new()", "x = big()", 30)];
    assert_eq!(found(vec![before, with_texts(2, "b", &lines)]), [("t.py:7 in new()".to_owned(), 0, 30)]);
    // Without texts, there must be as many lines and bytes.
    let plain = |name: &str, second| {
        let sites = [(format!("t.py:1 in {name}()"), 30), (format!("t.py:2 in {name}()"), second)];
        run(
            if name == "old" { 1 } else { 2 },
            Some(name),
            &[(&sites[0].0, sites[0].1), (&sites[1].0, sites[1].1)],
        )
    };
    assert_eq!(found(vec![plain("old", 7), plain("new", 7)]), []);
    assert_eq!(found(vec![plain("old", 7), plain("new", 8)]).len(), 1);
}
