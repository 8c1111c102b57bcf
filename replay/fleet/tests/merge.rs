//! Summaries merged in any order and grouping are the same bytes.

use gpumemtrace_fleet::{CallSite, DeviceSummary, Fleet, LeakSummary, Process, Summary, TraceSummary};
use proptest::prelude::*;

fn leak(first_step: u64, line: u8, bytes: u64) -> LeakSummary {
    LeakSummary {
        device: 0,
        kind: "tensors".to_owned(),
        site: CallSite { id: format!("site{line}"), text: format!("train.py:{line}") },
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
        events,
        duration_ns: None,
        end: "exit".to_owned(),
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
            let end = end.to_owned();
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
        Summary::of_trace(TraceSummary { duration_ns, end: end.to_owned(), ..trace(0, 0, 10, vec![]) })
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
    let fleet = Fleet::of(&Summary::merge_all(ranks));
    let first = fleet.first_growth.expect("a leak");
    assert_eq!(
        (fleet.traces[first.trace].rank, first.step, first.site.text.as_str()),
        (Some(417), 12, "train.py:14")
    );
    assert_eq!((first.others_in_step, first.lead_steps), (0, Some(8)));
    assert_eq!(fleet.outliers.len(), 1);
    assert_eq!((fleet.outliers[0].trace, fleet.outliers[0].excess), (first.trace, 0.5));
    assert_eq!((fleet.missing_ranks, fleet.hosts.len()), (vec![1000, 1001], 125));
    assert_eq!((fleet.lines[0].traces.len(), fleet.lines[0].first_step), (10, Some(20)));
}

#[test]
fn steps_of_different_rules_are_not_compared() {
    let mut other = trace(1, 0, 10, vec![]);
    other.step_source = Some("mark".to_owned());
    let summary = Summary::of_trace(trace(0, 0, 10, vec![leak(3, 1, 5)])).merge(Summary::of_trace(other));
    let fleet = Fleet::of(&summary);
    assert!(!fleet.have_equal_steps && fleet.first_growth.is_none() && fleet.lines.len() == 1);
    let mut without = trace(2, 0, 10, vec![]);
    without.step_source = None;
    let summary = Summary::of_trace(trace(0, 0, 10, vec![leak(3, 1, 5)])).merge(Summary::of_trace(without));
    assert_eq!(Fleet::of(&summary).first_growth.map(|first| first.compared), Some(1));
}

#[test]
fn other_documents_are_refused() {
    let refused = |text: &str| Summary::parse(text).expect_err("no summary").to_string();
    assert!(refused("{").starts_with("is damaged: "));
    let other = bytes(&Summary::empty()).replace("gpumemtrace.summary", "gpumemtrace.report");
    assert!(refused(&other).starts_with("is not a summary"));
}
