//! Summaries merged in any order and grouping are the same bytes.

use std::collections::BTreeMap;

use gpumemtrace_multirun::{
    CallSite, DeviceSummary, JobReport, LeakSummary, OomSummary, Process, Summary, TraceSummary,
};
use proptest::prelude::*;

fn leak(first_step: u64, line: u8, bytes: u64) -> LeakSummary {
    LeakSummary {
        device: 0,
        kind: "tensors".to_owned(),
        site: CallSite { id: format!("site{line}"), text: format!("train.py:{line}"), source_id: None },
        bytes,
        bytes_per_step: Some(bytes as f64 / 7.0),
        first_step: Some(first_step),
    }
}

fn trace(rank: u64, host: u8, events: u64, leaks: Vec<LeakSummary>) -> TraceSummary {
    TraceSummary {
        process: Process {
            host: Some(format!("node{host}")),
            pid: Some(rank),
            started_unix_ns: Some(u64::from(host)),
        },
        path: format!("/traces/{rank}.trace"),
        rank: Some(rank),
        world_size: Some(64),
        command: None,
        torch: None,
        allocator_conf: None,
        git_commit: None,
        labels: BTreeMap::new(),
        events,
        duration_ns: None,
        end: Some("exit".to_owned()),
        exit_code: Some(0),
        end_detail: None,
        missing: Vec::new(),
        steps: Some(30),
        step_source: Some("optimizer".to_owned()),
        leak_assessment: "assessed".to_owned(),
        worst_finding: None,
        devices: vec![DeviceSummary {
            device: 0,
            name: None,
            total_bytes: Some(80 << 30),
            peak_live_bytes: Some(events << 20),
            peak_reserved_bytes: None,
            end_live_bytes: None,
            live_bytes_over_time: vec![Some(events), None],
            peak_sites: Vec::new(),
            more_peak_sites: 0,
        }],
        leaks,
        more_leaks: 0,
        ooms: Vec::new(),
        more_ooms: 0,
    }
}

fn any_summary() -> impl Strategy<Value = Summary> {
    let any_leak =
        (0..9_u64, 0..3_u8, 1..99_u64, prop::num::f64::NORMAL).prop_map(|(step, line, bytes, rate)| {
            LeakSummary { bytes_per_step: Some(rate), ..leak(step, line, bytes) }
        });
    // Few values, so that entries of one process tie in some of what decides.
    let any_end = (prop::option::of(1..3_u64), prop::sample::select(vec!["exit", "running"]));
    let any_trace = (0..6_u64, 0..2_u8, 1..3_u64, any_end, prop::collection::vec(any_leak, 0..3)).prop_map(
        |(rank, host, events, (duration_ns, end), leaks)| {
            let end = Some(end.to_owned());
            Summary::of_trace(TraceSummary { duration_ns, end, ..trace(rank, host, events, leaks) })
        },
    );
    let unreadable =
        (0..4_u8).prop_map(|n| Summary::of_unreadable(format!("{n}.trace"), "is empty".to_owned()));
    prop_oneof![4 => any_trace, 1 => unreadable]
}

fn bytes(summary: &Summary) -> String {
    serde_json::to_string(summary).expect("JSON")
}

proptest! {
    #[test]
    fn order_and_grouping_do_not_change_a_byte(
        parts in prop::collection::vec(any_summary(), 0..12),
        order in any::<prop::sample::Index>(),
        split in any::<prop::sample::Index>(),
    ) {
        let whole = Summary::merge_all(parts.clone());
        let one_by_one = parts.iter().cloned().fold(Summary::empty(), Summary::merge);
        prop_assert_eq!(bytes(&one_by_one), bytes(&whole));
        let mut turned = parts.clone();
        if !turned.is_empty() {
            let by = order.index(turned.len());
            turned.rotate_left(by);
            turned.reverse();
        }
        prop_assert_eq!(bytes(&Summary::merge_all(turned.clone())), bytes(&whole));
        let at = split.index(turned.len() + 1);
        let (first, rest) = turned.split_at(at);
        let grouped = Summary::merge_all(rest.to_vec()).merge(Summary::merge_all(first.to_vec()));
        prop_assert_eq!(bytes(&grouped), bytes(&whole));
        prop_assert_eq!(bytes(&whole.clone().merge(whole.clone())), bytes(&whole), "a trace twice");
    }

    #[test]
    fn a_written_summary_is_read_back(parts in prop::collection::vec(any_summary(), 0..12)) {
        let whole = Summary::merge_all(parts);
        let read = Summary::parse(&bytes(&whole)).expect("its own text");
        prop_assert_eq!(bytes(&read), bytes(&whole));
    }
}

#[test]
fn of_one_process_the_longer_recording_is_kept() {
    let [short, long] = [trace(0, 0, 10, vec![]), trace(0, 0, 20, vec![])].map(Summary::of_trace);
    let merged = long.clone().merge(short.clone());
    assert_eq!(merged.traces().len(), 1);
    assert_eq!(merged.traces()[0].events, 20);
    assert_eq!(bytes(&merged), bytes(&short.merge(long)));
}

#[test]
fn of_one_process_with_equal_events_the_longer_and_then_the_ended_one_is_kept() {
    let entry = |seconds: u64, end: &str| {
        let duration_ns = Some(seconds * 1_000_000_000);
        Summary::of_trace(TraceSummary { duration_ns, end: Some(end.to_owned()), ..trace(0, 0, 10, vec![]) })
    };
    // As text, 9 s is after 10 s, and "running" is after "exit".
    for (stale, later) in
        [(entry(9, "running"), entry(10, "exit")), (entry(10, "running"), entry(10, "killed"))]
    {
        for merged in [stale.clone().merge(later.clone()), later.clone().merge(stale)] {
            assert_eq!(merged, later);
        }
    }
}

#[test]
fn the_rank_that_grew_first_is_named_among_a_thousand() {
    let ranks = (0..1000).map(|rank| {
        let leaks = match rank {
            417 => vec![leak(12, 14, 900)],
            // Ranks that wait for it grow later, and more.
            500..510 => vec![leak(20, 30, 5000)],
            _ => vec![],
        };
        let events = if rank == 417 { 150 } else { 100 };
        let mut one = trace(rank, (rank / 8) as u8, events, leaks);
        one.world_size = Some(1002);
        Summary::of_trace(one)
    });
    let job = JobReport::of(&Summary::merge_all(ranks));
    let first = job.first_growth.expect("a leak");
    assert_eq!(
        (job.traces[first.trace].rank, first.step, first.site.text.as_str()),
        (Some(417), 12, "train.py:14")
    );
    assert_eq!((first.others_in_step, first.lead_steps), (0, Some(8)));
    assert_eq!(job.outliers.len(), 1);
    assert_eq!((job.outliers[0].trace, job.outliers[0].excess), (first.trace, 0.5));
    assert_eq!((job.missing_ranks, job.hosts.len()), (vec![1000, 1001], 125));
    assert_eq!((job.lines[0].traces.len(), job.lines[0].first_step), (10, Some(20)));
}

#[test]
fn steps_of_different_rules_are_not_compared() {
    let mut other = trace(1, 0, 10, vec![]);
    other.step_source = Some("mark".to_owned());
    let summary = Summary::of_trace(trace(0, 0, 10, vec![leak(3, 1, 5)])).merge(Summary::of_trace(other));
    let job = JobReport::of(&summary);
    assert!(!job.have_equal_steps && job.first_growth.is_none() && job.lines.len() == 1);
    let mut without = trace(2, 0, 10, vec![]);
    without.step_source = None;
    let summary = Summary::of_trace(trace(0, 0, 10, vec![leak(3, 1, 5)])).merge(Summary::of_trace(without));
    assert_eq!(JobReport::of(&summary).first_growth.map(|first| first.compared), Some(1));
}

/// A trace of an attempt that starts at `start`, with an out-of-memory error in `oom_step`.
fn attempt(rank: u64, start: u64, duration: u64, leaks: Vec<LeakSummary>, oom_step: u64) -> Summary {
    let mut one = trace(rank, 0, 10, leaks);
    one.process = Process { host: None, pid: Some(start), started_unix_ns: Some(start) };
    one.duration_ns = Some(duration);
    one.ooms = vec![OomSummary {
        device: 0,
        step: Some(oom_step),
        time_ns: 1,
        requested_bytes: 1,
        site: CallSite { id: "site1".to_owned(), text: "train.py:1".to_owned(), source_id: None },
    }];
    Summary::of_trace(one)
}

#[test]
fn steps_of_a_restart_are_later_than_those_before_it() {
    let leaks = |step| vec![leak(step, 1, 5)];
    let before = [attempt(0, 100, 50, leaks(50), 60), attempt(1, 101, 40, leaks(55), 61)];
    let after = [attempt(0, 160, 50, leaks(3), 7), attempt(1, 155, 50, leaks(4), 8)];
    let merge = |parts: &[&[Summary]]| JobReport::of(&Summary::merge_all(parts.concat()));
    let both = merge(&[&before, &after]);
    let first = both.first_growth.as_ref().expect("a leak");
    assert_eq!((both.attempts, &both.repeated_ranks[..]), (Some(2), &[0, 1][..]));
    assert_eq!((first.attempt, first.step, first.lead_steps, first.compared), (0, 50, Some(5), 2));
    let ooms: Vec<_> = both.ooms.iter().map(|oom| (oom.attempt, oom.error.step)).collect();
    assert_eq!(ooms, [60, 61, 7, 8].map(|step| (Some(u64::from(step < 50)), Some(step))));
    // Without growth before the restart, the first one is after it.
    let calm = [attempt(0, 100, 50, vec![], 60), attempt(1, 101, 40, vec![], 61)];
    let first = merge(&[&calm, &after]).first_growth.expect("a leak");
    assert_eq!((first.attempt, first.step), (1, 3));
    let only = merge(&[&after]);
    assert_eq!((only.attempts, only.first_growth.map(|first| first.step)), (Some(1), Some(3)));
}

#[test]
fn attempts_that_cannot_be_told_apart_have_no_first_growth() {
    let leaks = |step| vec![leak(step, 1, 5)];
    let before = attempt(0, 100, 50, leaks(50), 60);
    // Two processes of a rank at once; and clocks of hosts that differ by more than a run.
    let at_once = [before.clone(), attempt(0, 120, 50, leaks(3), 7)];
    let skewed = [before.clone(), attempt(0, 160, 50, leaks(3), 7), attempt(1, 900, 50, leaks(9), 9)];
    let mut endless = attempt(0, 160, 50, leaks(3), 7).traces()[0].clone();
    endless.duration_ns = None;
    let endless = [before, Summary::of_trace(endless)];
    for traces in [&at_once[..], &skewed, &endless] {
        let job = JobReport::of(&Summary::merge_all(traces.to_vec()));
        assert_eq!((job.attempts, job.first_growth.is_none(), job.lines.len()), (None, true, 1));
        assert!(job.ooms.iter().all(|oom| oom.attempt.is_none()));
    }
}

#[test]
fn other_documents_are_refused() {
    let refused = |text: &str| Summary::parse(text).expect_err("no summary").to_string();
    assert!(refused("{").starts_with("is damaged: "));
    let other = bytes(&Summary::empty()).replace("gpumemtrace.summary", "gpumemtrace.report");
    assert!(refused(&other).starts_with("is not a summary"));
}
