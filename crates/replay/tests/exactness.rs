//! Compares peaks, timelines, gaps and losses with a naive recount of the same events.

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::ring::{self, RingImage};
use gpumemtrace_format::{Detail, Event, EventKind, NodeId};
use gpumemtrace_replay::report::{
    CauseKind, Ending, Fragmentation, GapReason, MemoryLayer, OomCause, Report, TraceLoss, VerdictEvidence,
};
use gpumemtrace_replay::{AnalysisOptions, RingFile, TimeSpec, report};
use gpumemtrace_synthetic::random::random_run;
use gpumemtrace_synthetic::{Synthetic, analyse_bytes, analyse_part, in_flight, ring_file};
use proptest::prelude::*;

/// Live bytes per line after each event, with its time.
fn recount(run: &Synthetic) -> Vec<(u64, BTreeMap<u32, u64>)> {
    let line_of = |stack: NodeId| run.nodes[stack.0 as usize - 1].offset_bytes as u32 / 2 + 1;
    let mut live: HashMap<u64, (u32, u64)> = HashMap::new();
    let mut states = Vec::new();
    for event in &run.events {
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                live.insert(event.addr, (line_of(event.python_stack), event.size));
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
        states.push((event.time_ns - 1_000_000_000, by_line));
    }
    states
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn peak_timeline_and_bytes_by_line_match_a_recount(
        choices in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 1..400), pause_ns in 0u64..1 << 40,
    ) {
        let run = random_run(&choices, pause_ns);
        prop_assume!(run.events.iter().any(|event| event.kind == EventKind::BLOCK_ALLOC));
        let states = recount(&run);
        let report = run.report();
        let highest = states.iter().map(|(_, lines)| lines.values().sum::<u64>()).max().unwrap();
        let peak = &report.peak.as_ref().unwrap()[0];
        prop_assert_eq!(peak.live_bytes, highest);
        prop_assert_eq!(peak.sites.iter().map(|site| site.bytes).sum::<u64>(), highest);
        let (_, lines) = states.iter().find(|(time, _)| *time == peak.time_ns).unwrap();
        let found: BTreeMap<u32, u64> = peak.sites.iter().map(|site| (site.site.line.unwrap(), site.bytes)).collect();
        prop_assert_eq!(&found, &lines.iter().filter(|(_, bytes)| **bytes > 0).map(|(l, b)| (*l, *b)).collect());
        check_timeline(&report, &states)?;
    }

    #[test]
    fn causes_sum_to_the_gap_and_none_is_unexplained(
        choices in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 1..300),
    ) {
        let report = random_run(&choices, 0).report();
        for moment in report.fragmentation.unwrap() {
            prop_assert_eq!(moment.gap_bytes, moment.reserved_bytes - moment.live_bytes);
            prop_assert_eq!(moment.causes.iter().map(|cause| cause.bytes).sum::<u64>(), moment.gap_bytes);
            for cause in &moment.causes {
                prop_assert!(cause.cause != CauseKind::Unexplained);
                if cause.cause == CauseKind::Pinned {
                    prop_assert_eq!(cause.culprits.iter().map(|culprit| culprit.bytes).sum::<u64>(), cause.bytes);
                }
            }
        }
    }

    #[test]
    fn killed_run_is_complete_for_any_progress_of_the_writer(
        steps in 1u64..6, cut in any::<prop::sample::Index>(), overlap in 0usize..30,
    ) {
        let run = Synthetic::train(steps, |_, _, _| {});
        let cut = cut.index(run.events.len());
        let file = run.file_of(&run.events[..cut], 37);
        let rest = &run.events[cut.saturating_sub(overlap)..];
        let ring = RingImage::decode(&ring_file(rest, run.events.len() as u64)).unwrap();
        let analysis = analyse_bytes(&file, RingFile::Loaded(Box::new(ring)));
        prop_assert_eq!(analysis.incomplete.len(), 0, "{:?}", analysis.incomplete);
        let (killed, whole) = (report(&[analysis], &[]), run.report());
        prop_assert_eq!(killed.traces[0].end, Ending::Killed);
        prop_assert_eq!(&killed.traces[0].events, &whole.traces[0].events);
        prop_assert_eq!(killed.devices[0].peak.live_bytes, whole.devices[0].peak.live_bytes);
    }
}

fn check_timeline(report: &Report, states: &[(u64, BTreeMap<u32, u64>)]) -> Result<(), TestCaseError> {
    let timeline = report.timeline.as_ref().unwrap();
    let highest = states.iter().map(|(_, lines)| lines.values().sum::<u64>()).max();
    prop_assert_eq!(timeline.points.iter().filter_map(|point| point.live_bytes).max(), highest);
    prop_assert!(timeline.points.is_sorted_by_key(|point| point.time_ns));
    for (index, point) in timeline.points.iter().enumerate() {
        // The state of a point is that after the last event, or just before it.
        let after = states.partition_point(|(time, _)| *time <= point.time_ns);
        let empty = BTreeMap::new();
        let state = |at: usize| at.checked_sub(1).map_or(&empty, |at| &states[at].1);
        let shown: BTreeMap<u32, u64> = timeline
            .bands
            .iter()
            .map(|band| (band.site.line.unwrap(), band.bytes[index]))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let fits = |lines: &BTreeMap<u32, u64>| {
            let lines: BTreeMap<u32, u64> =
                lines.iter().filter(|(_, b)| **b > 0).map(|(l, b)| (*l, *b)).collect();
            lines.values().sum::<u64>() == point.live_bytes.unwrap() && lines == shown
        };
        prop_assert!(
            fits(state(after)) || fits(state(after.saturating_sub(1))),
            "point {index} {point:?} {shown:?}"
        );
    }
    Ok(())
}

#[test]
fn call_in_flight_is_not_a_loss_and_a_missing_event_is() {
    let run = Synthetic::train(3, |_, _, _| {});
    let count = run.events.len() as u64;
    // The last sequence number was taken, and its record is missing.
    let ring = RingImage::decode(&ring_file(&[], count + 1)).unwrap();
    let analysis = analyse_bytes(&run.file_without_end(50), RingFile::Loaded(Box::new(ring)));
    assert_eq!((analysis.losses.dropped_events, analysis.losses.in_flight_calls), (0, 1));
    assert!(analysis.incomplete.is_empty());
    // A driver call that had not returned.
    let mut last: Event = run.events[0];
    last.kind = EventKind::DEVICE_ALLOC;
    let ring = RingImage::decode(&ring_file(&[in_flight(last)], count)).unwrap();
    let analysis = analyse_bytes(&run.file_without_end(50), RingFile::Loaded(Box::new(ring)));
    assert_eq!((analysis.losses.dropped_events, analysis.losses.in_flight_calls), (0, 1));
    // A free that had not returned. It has a sequence number, because it took it before the call.
    let mut last: Event = run.events[0];
    (last.kind, last.seq) = (EventKind::DEVICE_FREE, count);
    let ring = RingImage::decode(&ring_file(&[in_flight(last)], count + 1)).unwrap();
    let analysis = analyse_bytes(&run.file_without_end(50), RingFile::Loaded(Box::new(ring)));
    assert_eq!((analysis.losses.dropped_events, analysis.losses.in_flight_calls), (0, 1));
    assert!(analysis.incomplete.is_empty());
    // More missing events than threads.
    let mut events = run.events.clone();
    events.drain(20..30);
    let ring = RingImage::decode(&ring_file(&[], count)).unwrap();
    let analysis = analyse_bytes(&run.file_of(&events, 50), RingFile::Loaded(Box::new(ring)));
    assert_eq!(analysis.losses.dropped_events, 10);
    assert!(!analysis.incomplete.is_empty());
    // After a normal exit, a single missing event is a loss.
    let mut whole = Synthetic::train(3, |_, _, _| {});
    whole.events.remove(5);
    let mut file = whole.file_without_end(50);
    let end = gpumemtrace_format::End {
        reason: gpumemtrace_format::EndReason::Exit,
        events: count,
        time_ns: 0,
        message: String::new(),
        counters: gpumemtrace_format::Counters::default(),
    };
    file.extend(gpumemtrace_format::block::encode_block(
        gpumemtrace_format::block::BlockKind::END,
        &end.encode(),
        3,
    ));
    assert_eq!(analyse_bytes(&file, RingFile::Absent).losses.dropped_events, 1);
}

#[test]
fn killed_run_without_its_own_ring_file_is_incomplete() {
    let run = Synthetic::train(3, |_, _, _| {});
    let file = run.file_without_end(50);
    assert!(!analyse_bytes(&file, RingFile::Absent).incomplete.is_empty());
    let mut bytes = ring_file(&[], run.events.len() as u64);
    let header = ring::encode_header([1; 16], 1, &ring::RingLayout::uniform(1, 1));
    bytes[..header.len()].copy_from_slice(&header);
    let ring = RingImage::decode(&bytes).unwrap();
    let analysis = analyse_bytes(&file, RingFile::Loaded(Box::new(ring)));
    assert!(analysis.incomplete.contains(&TraceLoss::RingForeign), "{:?}", analysis.incomplete);
}

#[test]
fn oom_reports_its_request_and_the_lines_that_fill_the_device() {
    let mut run = Synthetic::train(3, |_, _, _| {});
    let line = run.frame(NodeId::NONE, "/work/train.py", "big", 77);
    let held = run.alloc(line, 8 << 30);
    run.oom(line, 40 << 30);
    run.release(held, line);
    run.oom(line, 20 << 30);
    let report = run.report();
    let ooms = report.oom.unwrap();
    assert_eq!((ooms.len(), ooms[0].requested_bytes, ooms[0].site.line), (2, 40 << 30, Some(77)));
    assert_eq!(ooms[0].cause, OomCause::ExceedsDevice);
    assert_eq!(ooms[0].sites[0].bytes, 8 << 30);
    assert_eq!(ooms[1].cause, OomCause::NoFittingBlock);
    assert!(ooms[1].device_free_bytes.unwrap() < 20 << 30);
    assert_eq!(
        report.fragmentation.unwrap().iter().filter(|moment| moment.at.why == GapReason::Oom).count(),
        2
    );
    assert!(
        report
            .verdicts
            .unwrap()
            .iter()
            .any(|verdict| matches!(verdict.evidence, VerdictEvidence::Oom { .. }))
    );
}

#[test]
fn program_without_torch_has_a_peak_of_driver_memory() {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/cupy.py", "f", 3);
    run.event(EventKind::DEVICE_ALLOC, 0x1000, 4096, [0; 2], line);
    run.event(EventKind::HOST_ALLOC, 0x9000, 1 << 20, [0; 2], line);
    run.event(EventKind::ASYNC_ALLOC, 0x5000, 8192, [0; 2], line);
    run.event(EventKind::VA_RESERVE, 0x100_0000, 1 << 40, [0; 2], line);
    run.event(EventKind::DEVICE_FREE, 0x1000, 0, [0; 2], line);
    run.event(EventKind::ASYNC_FREE, 0x5000, 0, [0; 2], line);
    let report = run.report();
    let device = &report.devices[0];
    assert_eq!(
        (device.peak.live_bytes, device.peak.device_bytes, device.end.device_bytes),
        (None, Some(12288), Some(0))
    );
    let peak = &report.peak.unwrap()[0];
    assert_eq!((peak.layer, peak.live_bytes, peak.sites[0].bytes), (MemoryLayer::Device, 12288, 12288));
}

#[test]
fn wrong_running_total_gives_a_verdict() {
    let mut run = Synthetic::train(3, |_, _, _| {});
    let at = run.events.iter().position(|event| event.kind == EventKind::BLOCK_ALLOC).unwrap();
    run.events[at].size += 512;
    let verdicts = run.report().verdicts.unwrap();
    assert!(
        verdicts.iter().any(|verdict| matches!(verdict.evidence, VerdictEvidence::TotalMismatch { .. })),
        "{verdicts:?}"
    );
    let clean = Synthetic::train(3, |_, _, _| {}).report();
    assert!(clean.verdicts.unwrap().is_empty());
}

/// Adds an event of PyTorch's tracker, or a block event with the tracker's details.
fn tracked(
    run: &mut Synthetic,
    kind: EventKind,
    (addr, size): (u64, u64),
    aux: [u64; 2],
    requested: Option<u64>,
) {
    let line = run.frame(NodeId::NONE, "/work/train.py", "<module>", 5);
    run.event(kind, addr, size, aux, line);
    let stream = if addr < 0x200_0000 { 0 } else { 7 };
    run.events.last_mut().unwrap().detail =
        requested.map(|requested_bytes| Detail { requested_bytes, stream, pool: 0 });
}

/// The gap after the last event.
fn last_gap(run: &Synthetic) -> Fragmentation {
    let last = TimeSpec::Elapsed { time_ns: run.time_ns - 1_000_000_000 };
    let options = AnalysisOptions { snapshot_times: vec![last], ..AnalysisOptions::default() };
    let moments = report(&[analyse_part(&run.file(1000), options)], &[]).fragmentation.unwrap();
    moments.into_iter().find(|moment| moment.at.why == GapReason::At).unwrap()
}

fn last_causes(run: &Synthetic) -> Vec<(CauseKind, u64)> {
    last_gap(run).causes.iter().map(|cause| (cause.cause, cause.bytes)).collect()
}

#[test]
fn gap_with_tracker_has_requested_sizes_and_streams() {
    const MIB: u64 = 1 << 20;
    let (first, second) = (0x100_0000, 0x200_0000);
    let mut run = Synthetic::new();
    tracked(&mut run, EventKind::SEGMENT_ALLOC, (first, 2 * MIB), [0, 0], None);
    tracked(&mut run, EventKind::BLOCK_ALLOC, (first, 1024), [1024, 2 * MIB], Some(1000));
    tracked(&mut run, EventKind::SEGMENT_ALLOC, (second, 2 * MIB), [7, 0], None);
    tracked(&mut run, EventKind::BLOCK_ALLOC, (second, 512), [1536, 4 * MIB], Some(512));
    // A free without the flag for an immediate one.
    tracked(&mut run, EventKind::BLOCK_FREE, (first, 1024), [512, 4 * MIB], Some(1000));
    let moments = run.report().fragmentation.unwrap();
    let causes = |why| {
        let moment = moments.iter().find(|moment| moment.at.why == why).unwrap();
        let causes: Vec<_> = moment.causes.iter().map(|cause| (cause.cause, cause.bytes)).collect();
        (moment.requested_bytes, moment.gap_bytes, causes)
    };
    let peak = vec![
        (CauseKind::Rounding, 24),
        (CauseKind::StrandedStream, 2 * MIB - 1024),
        (CauseKind::Pinned, 2 * MIB - 512),
    ];
    assert_eq!(causes(GapReason::PeakReserved), (Some(1512), 4 * MIB - 1512, peak));
    let last = [
        (CauseKind::PendingFree, 1024),
        (CauseKind::StrandedStream, 2 * MIB - 512),
        (CauseKind::Pinned, 2 * MIB - 1024),
    ];
    assert_eq!(last_causes(&run), last);
    assert_eq!((last_gap(&run).requested_bytes, last_gap(&run).gap_bytes), (Some(512), 4 * MIB - 512));
    // The program itself freed the block, so this is no teardown.
    assert_eq!(causes(GapReason::LargestGap).1, 4 * MIB - 512);
    // The other stream finishes, then the cache is emptied.
    tracked(&mut run, EventKind::BLOCK_FREE_COMPLETED, (first, 1000), [0, 0], None);
    assert_eq!(last_causes(&run), [(CauseKind::StrandedStream, 2 * MIB - 512), (CauseKind::Cache, 2 * MIB)]);
    tracked(&mut run, EventKind::SEGMENT_FREE, (first, 2 * MIB), [0, 0], None);
    let report = run.report();
    assert_eq!(report.devices[0].end.reserved_bytes, Some(2 * MIB));
    assert!(report.verdicts.unwrap().is_empty());
    // A block in an unknown segment: sums differ, so everything but the rounding is unexplained.
    tracked(&mut run, EventKind::BLOCK_ALLOC, (0x300_0000, 1024), [1536, 6 * MIB], Some(1000));
    let unexplained = [(CauseKind::Rounding, 24), (CauseKind::Unexplained, 6 * MIB - 1536)];
    assert_eq!(last_causes(&run), unexplained);
    assert!(
        run.report()
            .verdicts
            .unwrap()
            .iter()
            .any(|verdict| matches!(verdict.evidence, VerdictEvidence::SegmentMismatch { .. }))
    );
}

#[test]
fn long_search_for_steps_counts_each_event_once() {
    let mut run = Synthetic::new();
    let stack = run.frame(NodeId::NONE, "train.py", "main", 1);
    for _ in 0..50_000 {
        let block = run.alloc(stack, 1000);
        run.release(block, stack);
    }
    // More than step detection buffers, so they are read again.
    assert!(run.events.len() > 100_000);
    let report = run.report();
    assert_eq!(report.traces[0].events.values().sum::<u64>(), run.events.len() as u64);
}
