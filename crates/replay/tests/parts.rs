//! Restricts analyses by time, stream, device and line, and compares them with a naive recount.

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::event::MARK_NAMED;
use gpumemtrace_format::{CodeDef, CodeId, Detail, Event, EventKind, NodeId};
use gpumemtrace_replay::report::{CauseKind, LeakShape, Report, Verdict, VerdictEvidence};
use gpumemtrace_replay::{
    Analysis, AnalysisOptions, SiteFilter, StreamId, TimeSpec, keep_sites, report, truncate_lists,
};
use gpumemtrace_synthetic::Synthetic;
use gpumemtrace_synthetic::random::random_run;
use proptest::prelude::*;

const STARTED_NS: u64 = 1_000_000_000;

fn analyse_part(run: &Synthetic, asked: AnalysisOptions) -> Analysis {
    gpumemtrace_synthetic::analyse_part(&run.file(100), asked)
}

fn since(run: &Synthetic, when: &str) -> Analysis {
    analyse_part(
        run,
        AnalysisOptions { since: Some(when.parse().expect("a moment")), ..AnalysisOptions::default() },
    )
}

/// Bytes by line after each event, with its time. Counts only blocks for which `counts` returns
/// true.
fn states(run: &Synthetic, counts: impl Fn(&Event) -> bool) -> Vec<(u64, BTreeMap<u32, u64>)> {
    let mut live: HashMap<u64, (u32, u64)> = HashMap::new();
    let mut states = Vec::new();
    for event in &run.events {
        match event.kind {
            EventKind::BLOCK_ALLOC if counts(event) => {
                let line = run.nodes[event.python_stack.0 as usize - 1].offset_bytes as u32 / 2 + 1;
                live.insert(event.addr, (line, event.size));
            }
            EventKind::BLOCK_FREE => {
                live.remove(&event.addr);
            }
            _ => {}
        }
        let mut by_line = BTreeMap::new();
        for (line, bytes) in live.values() {
            *by_line.entry(*line).or_default() += bytes;
        }
        states.push((event.time_ns - STARTED_NS, by_line));
    }
    states
}

fn total(lines: &BTreeMap<u32, u64>) -> u64 {
    lines.values().sum()
}

fn by_line(report: &Report) -> BTreeMap<u32, u64> {
    report.peak.as_ref().unwrap()[0]
        .sites
        .iter()
        .map(|share| (share.site.line.expect("all have one"), share.bytes))
        .collect()
}

fn is_damage(verdict: &Verdict) -> bool {
    matches!(
        verdict.evidence,
        VerdictEvidence::UnmatchedBlocks { .. } | VerdictEvidence::TotalMismatch { .. }
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn peak_since_a_time_is_the_highest_later_state(
        choices in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 2..300), at in 0.0f64..1.0,
    ) {
        let run = random_run(&choices, 0);
        let states = states(&run, |_| true);
        let span = states.last().unwrap().0;
        // Events at exactly that time come before it.
        let moment = (span as f64 * at) as u64;
        prop_assume!(moment < span);
        let analysis = since(&run, &format!("{moment}ns"));
        let report = report(std::slice::from_ref(&analysis), &[]);
        let before = states.iter().rfind(|(time, _)| *time <= moment).map(|(_, lines)| lines.clone()).unwrap_or_default();
        let after = states.iter().filter(|(time, _)| *time > moment).map(|(_, lines)| lines);
        let highest = std::iter::once(&before).chain(after).map(total).max().unwrap();
        let peak = &report.peak.as_ref().unwrap()[0];
        prop_assert_eq!(peak.live_bytes, highest);
        prop_assert!(peak.time_ns >= moment);
        let then = if peak.time_ns == moment { &before } else { &states.iter().find(|(time, _)| *time == peak.time_ns).unwrap().1 };
        let then: BTreeMap<u32, u64> = then.iter().filter(|(_, bytes)| **bytes > 0).map(|(l, b)| (*l, *b)).collect();
        prop_assert_eq!(by_line(&report), then);
        // Totals at the end agree, and there are no unmatched blocks.
        prop_assert_eq!(report.devices[0].end.live_bytes, Some(total(&states.last().unwrap().1)));
        prop_assert!(!report.verdicts.unwrap().iter().any(is_damage));
        let points = &report.timeline.as_ref().unwrap().points;
        prop_assert!(points.iter().all(|point| point.time_ns >= moment));
        prop_assert_eq!(points.iter().filter_map(|point| point.live_bytes).max(), Some(highest));
        for band in &report.timeline.as_ref().unwrap().bands {
            prop_assert_eq!(band.bytes.len(), points.len());
        }
        for (at, point) in points.iter().enumerate() {
            // All seven lines have a band.
            let bands = report.timeline.as_ref().unwrap().bands.iter();
            prop_assert_eq!(bands.map(|band| band.bytes[at]).sum::<u64>(), point.live_bytes.unwrap());
        }
        let since = report.traces[0].since.unwrap();
        prop_assert_eq!(since.time_ns, moment);
    }

    #[test]
    fn stream_has_the_peak_and_end_of_its_own_blocks(
        choices in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 2..300), wanted in 0u64..3,
    ) {
        let mut run = random_run(&choices, 0);
        let mut streams: HashMap<u64, Detail> = HashMap::new();
        let mut segments = Vec::new();
        for event in &mut run.events {
            match event.kind {
                EventKind::BLOCK_ALLOC => {
                    let stream = event.size / 512 % 3;
                    let detail = Detail { requested_bytes: event.size - 100, stream, pool: 0 };
                    streams.insert(event.addr, detail);
                    event.detail = Some(detail);
                }
                EventKind::BLOCK_FREE => event.detail = streams.get(&event.addr).copied(),
                EventKind::DEVICE_ALLOC => segments.push(event.seq),
                _ => {}
            }
        }
        let is_its = |event: &Event| event.detail.is_some_and(|detail| detail.stream == wanted);
        let states = states(&run, is_its);
        let analysis = analyse_part(&run, AnalysisOptions { stream: Some(StreamId(wanted)), ..AnalysisOptions::default() });
        prop_assert_eq!(&analysis.counts, &run.analyse().counts, "all events are counted");
        let facts = analysis.stream.clone().unwrap();
        prop_assert_eq!((facts.unknown_blocks, facts.unknown_bytes), (0, 0));
        let report = report(&[analysis], &[]);
        let highest = states.iter().map(|(_, lines)| total(lines)).max().unwrap();
        if !run.events.iter().any(|event| event.kind == EventKind::BLOCK_ALLOC && is_its(event)) {
            prop_assert!(report.devices.is_empty());
            return Ok(());
        }
        prop_assert_eq!(report.peak.as_ref().unwrap()[0].live_bytes, highest);
        prop_assert_eq!(by_line(&report).values().sum::<u64>(), highest);
        let device = &report.devices[0];
        prop_assert_eq!(device.end.live_bytes, Some(total(&states.last().unwrap().1)));
        // Without segments, reserved bytes of a stream are unknown. Driver memory is unknown
        // always.
        prop_assert_eq!((device.peak.reserved_bytes, device.peak.device_bytes), (None, None));
        prop_assert!(report.fragmentation.as_ref().unwrap().is_empty() && report.oom.is_none());
        prop_assert!(!report.verdicts.unwrap().iter().any(is_damage));
    }

    #[test]
    fn listed_and_omitted_rows_sum_to_the_total(
        choices in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 2..300),
        most in 1usize..9, line in 1u32..9,
    ) {
        let full = report(&[random_run(&choices, 0).analyse()], &[]);
        let peak = &full.peak.as_ref().unwrap()[0];
        let sum = |report: &Report| {
            let peak = &report.peak.as_ref().unwrap()[0];
            let out = peak.omitted.unwrap();
            let gap: Vec<u64> = report.fragmentation.iter().flatten().flat_map(|moment| &moment.causes).map(|cause| {
                cause.culprits.iter().map(|one| one.bytes).sum::<u64>() + cause.omitted.map_or(0, |out| out.bytes.unwrap())
            }).collect();
            (peak.sites.len() as u64 + out.count, peak.sites.iter().map(|one| one.bytes).sum::<u64>() + out.bytes.unwrap(), gap)
        };
        let named = |report: &Report| -> Vec<u64> {
            let causes = report.fragmentation.iter().flatten().flat_map(|moment| &moment.causes);
            causes.map(|cause| if cause.culprits.is_empty() { 0 } else { cause.bytes }).collect()
        };
        let expected = (peak.sites.len() as u64, peak.live_bytes, named(&full));
        let mut first = full.clone();
        truncate_lists(&mut first, most);
        prop_assert_eq!(sum(&first), expected.clone());
        prop_assert!(first.peak.as_ref().unwrap()[0].sites.len() <= most);
        let mut lines = full.clone();
        let found = keep_sites(&mut lines, &SiteFilter::from(&*format!("a.py:{line}")));
        prop_assert_eq!(sum(&lines), expected.clone());
        let held = peak.sites.iter().any(|share| share.site.line == Some(line));
        prop_assert!(found || !held);
        prop_assert!(lines.peak.as_ref().unwrap()[0].sites.iter().all(|share| share.site.line == Some(line)));
        // Both filters in sequence.
        truncate_lists(&mut lines, 1);
        prop_assert_eq!(sum(&lines), expected);
    }
}

/// A training that leaks 1 MiB per step from step `first` on.
fn leaks_from(first: u64) -> Synthetic {
    Synthetic::train(60, |run, step, train| {
        if step >= first {
            let line = run.frame(train, "/work/late.py", "keep", 5);
            run.alloc(line, 1 << 20);
        }
    })
}

#[test]
fn leak_is_judged_only_on_steps_since_the_given_one() {
    let run = leaks_from(40);
    let leaks = |analysis: &Analysis| report(std::slice::from_ref(analysis), &[]).leaks.unwrap();
    let late = since(&run, "step:35");
    let found = leaks(&late);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].site.line, found[0].shape), (Some(5), LeakShape::Linear));
    assert_eq!(found[0].bytes_per_step.map(|rate| rate.0), Some(f64::from(1 << 20)));
    let first = found[0].first_step.unwrap();
    assert!((39..=41).contains(&first), "the step in which it began, counted as always: {first}");
    assert_eq!(
        found[0].last_step,
        leaks(&run.analyse()).first().and_then(|leak| leak.last_step).or(Some(59))
    );
    // Blocks from before that do not grow later are not a leak.
    let stopped = Synthetic::train(60, |run, step, train| {
        if step < 30 {
            let line = run.frame(train, "/work/early.py", "keep", 5);
            run.alloc(line, 1 << 20);
        }
    });
    assert!(leaks(&since(&stopped, "step:35")).is_empty());
    let peak = report(&[since(&stopped, "step:35")], &[]).peak.unwrap();
    assert_eq!(peak[0].sites[0].bytes, 30 << 20, "and is there with its line");
}

#[test]
fn time_that_is_never_reached_is_reported() {
    let run = leaks_from(40);
    for when in ["step:1000", "100s"] {
        let analysis = since(&run, when);
        assert_eq!(analysis.since.as_ref().unwrap().reached, None, "{when}");
        assert_eq!(analysis.since.as_ref().unwrap().spec, when.parse::<TimeSpec>().unwrap());
    }
    let step = since(&run, "step:7").since.unwrap().reached.unwrap();
    assert_eq!(step.step, 7);
}

#[test]
fn mark_names_a_time_by_its_occurrence() {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/a.py", "f", 3);
    let names: Vec<u64> = ["epoch", "loaded"]
        .iter()
        .map(|name| {
            let id = CodeId(run.codes.len() as u32 + 1);
            run.codes.push(CodeDef { id, name: (*name).to_owned(), ..CodeDef::default() });
            u64::from(id.0)
        })
        .collect();
    for name in [0, 1, 0, 0] {
        run.alloc(line, 1 << 20);
        run.event(EventKind::MARK, 0, 0, [MARK_NAMED, names[name]], line);
    }
    run.alloc(line, 1 << 20);
    let asked = ["mark:loaded", "mark:epoch#3", "mark:epoch", "mark:epoch#4"];
    let at = asked.map(|when| when.parse::<TimeSpec>().unwrap()).to_vec();
    let analysis = analyse_part(&run, AnalysisOptions { snapshot_times: at, ..AnalysisOptions::default() });
    let snapshots = report(std::slice::from_ref(&analysis), &[]).snapshots.unwrap();
    let held: Vec<(String, u64)> =
        snapshots.iter().map(|at| (at.when.clone(), at.live_bytes.unwrap() >> 20)).collect();
    let expected = [("mark:epoch", 1), ("mark:loaded", 2), ("mark:epoch#3", 4)];
    assert_eq!(held, expected.map(|(when, held)| (when.to_owned(), held)));
    assert_eq!(analysis.unreached_snapshots, [TimeSpec::Mark("epoch#4".to_owned())]);
    let mark_names =
        |analysis: &Analysis| -> Vec<String> { analysis.mark_names().map(str::to_owned).collect() };
    assert_eq!(mark_names(&analysis), ["epoch", "loaded", "epoch", "epoch"]);
    assert!(analysis.step_source().is_none(), "a mark begins no step");
    // The mark itself is the first one since then.
    let part = since(&run, "mark:epoch#2");
    assert_eq!(mark_names(&part), ["epoch", "epoch"]);
    let report = report(&[part], &[]);
    assert_eq!(report.traces[0].since.as_ref().unwrap().time_ns, report.marks[0].time_ns);
    assert_eq!(report.peak.unwrap()[0].live_bytes, 5 << 20);
    assert_eq!(since(&run, "mark:absent").since.unwrap().reached, None);
}

#[test]
fn oom_before_the_given_time_is_not_reported() {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/a.py", "f", 3);
    run.alloc(line, 4096);
    run.oom(line, 8 << 30);
    let early = run.time_ns - STARTED_NS;
    run.alloc(line, 4096);
    run.oom(line, 9 << 30);
    let analysis = since(&run, &format!("{early}ns"));
    assert_eq!(analysis.oom_count, 1);
    let ooms = report(&[analysis], &[]).oom.unwrap();
    assert_eq!((ooms.len(), ooms[0].requested_bytes), (1, 9 << 30));
    assert_eq!(since(&run, "0s").oom_count, 2);
}

#[test]
fn stream_has_its_own_segments_if_all_segments_are_known() {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/a.py", "f", 3);
    let mut total = 0;
    let mut reserved = 0;
    for (stream, bytes) in [(0u64, 4u64 << 20), (7, 6 << 20)] {
        let addr = 0x10_0000_0000 * (stream + 1);
        reserved += 20 << 20;
        run.event(EventKind::SEGMENT_ALLOC, addr, 20 << 20, [stream, 0], line);
        total += bytes;
        run.event(EventKind::BLOCK_ALLOC, addr, bytes, [total, reserved], line);
        let last = run.events.last_mut().unwrap();
        last.detail = Some(Detail { requested_bytes: bytes - 512, stream, pool: 0 });
    }
    let analysis =
        analyse_part(&run, AnalysisOptions { stream: Some(StreamId(7)), ..AnalysisOptions::default() });
    let report = report(&[analysis], &[]);
    assert_eq!(report.devices[0].peak.reserved_bytes, Some(20 << 20));
    let moment = &report.fragmentation.as_ref().unwrap()[0];
    assert_eq!((moment.gap_bytes, moment.reserved_bytes), ((14 << 20) + 512, 20 << 20));
    let causes: Vec<(CauseKind, u64)> =
        moment.causes.iter().map(|cause| (cause.cause, cause.bytes)).collect();
    assert_eq!(causes, [(CauseKind::Rounding, 512), (CauseKind::Pinned, 14 << 20)]);
}

#[test]
fn other_devices_are_removed_from_every_section() {
    let mut run = Synthetic::new();
    for device in 0..3u8 {
        run.device = device;
        let line = run.frame(NodeId::NONE, "/work/a.py", "f", i32::from(device) + 1);
        let before: u64 =
            run.events.iter().filter(|e| e.kind == EventKind::BLOCK_ALLOC).map(|e| e.size).sum();
        run.alloc(line, 1 << (20 + device));
        // Running totals are per device.
        let last = run.events.last_mut().unwrap();
        last.aux[0] -= before;
        run.oom(line, 1 << 40);
    }
    let mut analysis = run.analyse();
    analysis.keep_devices(&[1, 2]);
    assert_eq!(analysis.oom_count, 2);
    let report = report(&[analysis], &[]);
    assert_eq!(report.devices.iter().map(|device| device.device).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(report.peak.unwrap()[0].live_bytes, 2 << 20);
    assert_eq!(report.oom.unwrap().iter().map(|oom| oom.device).collect::<Vec<_>>(), [1, 2]);
    assert!(report.ranks.unwrap().rows.iter().all(|row| row.device > 0));
}
