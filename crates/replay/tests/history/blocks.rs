//! Compares births and deaths of blocks, and their sites, with a naive recount of the same events
//! and with snapshots.

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::event::MARK_NAMED;
use gpumemtrace_format::{CodeDef, CodeId, Event, EventKind, NodeId};
use gpumemtrace_replay::{AnalysisOptions, DeviceHistory, KeyframeReason, RunHistory, TimeSpec, report};
use proptest::prelude::*;

use super::STARTED_NS;
use gpumemtrace_synthetic::random::random_run;
use gpumemtrace_synthetic::{Synthetic, analyse_part};

/// A block of the run: its line, bytes, and the times of its allocation and free.
type Block = (u32, u64, u64, Option<u64>);

fn history_of(run: &Synthetic) -> RunHistory {
    let options = AnalysisOptions { keeps_history: true, ..AnalysisOptions::default() };
    analyse_part(&run.file(1000), options).take_history().expect("a history")
}

fn blocks_of(run: &Synthetic) -> Vec<Block> {
    let line_of = |stack: NodeId| run.nodes[stack.0 as usize - 1].offset_bytes as u32 / 2 + 1;
    let mut blocks: Vec<Block> = Vec::new();
    let mut live: HashMap<u64, usize> = HashMap::new();
    for event in &run.events {
        let time_ns = event.time_ns - STARTED_NS;
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                live.insert(event.addr, blocks.len());
                blocks.push((line_of(event.python_stack), event.size, time_ns, None));
            }
            EventKind::BLOCK_FREE => {
                let index = live.remove(&event.addr).expect("a live block");
                blocks[index].3 = Some(time_ns);
            }
            _ => {}
        }
    }
    blocks
}

fn is_of_block(event: &Event) -> bool {
    matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE)
}

fn sum_by_line(rows: impl Iterator<Item = (u32, u64)>) -> BTreeMap<u32, u64> {
    let mut by_line = BTreeMap::new();
    for (line, bytes) in rows {
        *by_line.entry(line).or_default() += bytes;
    }
    by_line
}

/// Bytes by line of the rows that match.
fn rows_by_line(
    history: &RunHistory,
    device: &DeviceHistory,
    is_counted: impl Fn(usize, usize) -> bool,
) -> BTreeMap<u32, u64> {
    let rows = device.blocks.rows.iter();
    let counted = rows.filter(|row| is_counted(usize::from(row.birth), usize::from(row.death)));
    let line = |stack: u32| history.stacks[stack as usize].0.line.expect("a line");
    sum_by_line(counted.map(|row| (line(row.stack), row.bytes)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn edges_answer_as_a_recount(
        choices in proptest::collection::vec(any::<(u8, u8, u16)>(), 20..400),
        pause_ns in 1_000u64..100_000_000,
        merges in 0u8..3,
    ) {
        let run = random_run(&choices, pause_ns);
        let blocks = blocks_of(&run);
        prop_assume!(!blocks.is_empty());
        let mut history = history_of(&run);
        for _ in 0..merges {
            history.devices[0].blocks.merge_bins();
        }
        let device = &history.devices[0];
        let table = &device.blocks;
        let bins = usize::from(table.bins);
        prop_assert_eq!(table.edges_ns.len(), bins + 1);
        prop_assert!(table.edges_ns.is_sorted());
        let after = |time_ns: u64, edge: usize| edge == 0 || time_ns > table.edges_ns[edge];
        for edge in 1..=bins {
            let is_live = |one: &&Block| !after(one.2, edge) && one.3.is_none_or(|free_ns| after(free_ns, edge));
            let expected = sum_by_line(blocks.iter().filter(is_live).map(|one| (one.0, one.1)));
            prop_assert_eq!(rows_by_line(&history, device, |birth, death| birth < edge && edge <= death), expected);
        }
        let (from, to) = (bins / 3, bins * 2 / 3);
        let born = |one: &&Block| after(one.2, from) && to > 0 && !after(one.2, to);
        let is_kept = |one: &&Block| one.3.is_none_or(|free_ns| after(free_ns, to));
        let kept = blocks.iter().filter(born).filter(is_kept).map(|one| (one.0, one.1));
        let churn = blocks.iter().filter(born).filter(|one| !is_kept(one)).map(|one| (one.0, one.1));
        prop_assert_eq!(
            rows_by_line(&history, device, |birth, death| from <= birth && birth < to && to <= death),
            sum_by_line(kept)
        );
        prop_assert_eq!(
            rows_by_line(&history, device, |birth, death| from <= birth && birth < to && death < to),
            sum_by_line(churn)
        );
    }

    #[test]
    fn values_of_sites_sum_to_the_highest_moment_of_each_bin(
        choices in proptest::collection::vec(any::<(u8, u8, u16)>(), 20..400),
        pause_ns in 1_000u64..100_000_000,
    ) {
        let run = random_run(&choices, pause_ns);
        prop_assume!(!blocks_of(&run).is_empty());
        let history = history_of(&run);
        let device = &history.devices[0];
        for (bin, live) in device.bin_live.iter().enumerate() {
            let sum: u64 = device.site_series.iter().map(|(_, bytes)| bytes[bin]).sum();
            prop_assert_eq!(sum, *live);
        }
        let peak = report(&[run.analyse()], &[]).devices[0].peak.live_bytes;
        prop_assert_eq!(device.bin_live.iter().max().copied(), peak);
        prop_assert_eq!(device.series[1].iter().max().copied(), peak);
    }

    #[test]
    fn levels_of_each_bin_are_those_between_its_edges(
        choices in proptest::collection::vec(any::<(u8, u8, u16)>(), 20..400),
        pause_ns in 1_000u64..100_000_000,
    ) {
        let run = random_run(&choices, pause_ns);
        let blocks = blocks_of(&run);
        prop_assume!(!blocks.is_empty());
        let history = history_of(&run);
        let device = &history.devices[0];
        let allocated = blocks.iter().map(|block| (block.2, block.1 as i64));
        let freed = blocks.iter().filter_map(|block| Some((block.3?, -(block.1 as i64))));
        let mut changes: Vec<(u64, i64)> = allocated.chain(freed).collect();
        changes.sort_unstable();
        prop_assert_eq!(device.series_edges_ns.len(), device.series[0].len() + 1);
        for (bin, edges) in device.series_edges_ns.windows(2).enumerate() {
            let mut live: i64 = changes.iter().filter(|(at_ns, _)| *at_ns < edges[0]).map(|(_, bytes)| bytes).sum();
            let (mut least, mut most) = (live, live);
            for (_, bytes) in changes.iter().filter(|(at_ns, _)| (edges[0]..edges[1]).contains(at_ns)) {
                live += bytes;
                (least, most) = (least.min(live), most.max(live));
            }
            prop_assert_eq!((device.series[0][bin], device.series[1][bin]), (least as u64, most as u64));
        }
        let moments = device.bin_times_ns.iter().zip(device.bins_edges_ns.windows(2));
        for (time_ns, edges) in moments {
            prop_assert!((edges[0]..=edges[1]).contains(time_ns));
        }
    }

    #[test]
    fn states_have_the_blocks_of_their_number_of_events(
        choices in proptest::collection::vec(any::<(u8, u8, u16)>(), 20..400),
        pause_ns in 1_000u64..1_000_000,
    ) {
        let mut run = random_run(&choices, pause_ns);
        // Many events share a time.
        run.events.iter_mut().for_each(|event| event.time_ns -= (event.time_ns - STARTED_NS) % 50_000);
        let states = history_of(&run).devices.swap_remove(0).states;
        prop_assert!(states.iter().any(|state| state.why == KeyframeReason::PeakReserved));
        for state in states {
            let mut live = BTreeMap::new();
            for event in run.events.iter().filter(|event| is_of_block(event)).take(state.block_events as usize) {
                match event.kind {
                    EventKind::BLOCK_ALLOC => live.insert(event.addr, event.size),
                    _ => live.remove(&event.addr),
                };
            }
            let blocks = state.blocks().map(|(addr, bytes, _)| (addr, bytes));
            prop_assert_eq!(blocks.collect::<Vec<_>>(), live.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn snapshot_at_an_edge_has_the_same_sites() {
    let choices: Vec<(u8, u8, u16)> =
        (0..600u32).map(|i| ((i * 37 % 256) as u8, (i * 11) as u8, (i * 7919 % 65_536) as u16)).collect();
    let run = random_run(&choices, 70_000);
    let history = history_of(&run);
    let device = &history.devices[0];
    let table = &device.blocks;
    for edge in (1..=usize::from(table.bins)).step_by(7) {
        let time_ns = table.edges_ns[edge];
        let options = AnalysisOptions {
            snapshot_times: vec![TimeSpec::Elapsed { time_ns }],
            ..AnalysisOptions::default()
        };
        let analysis = analyse_part(&run.file(1000), options);
        let Some(snapshots) = report(&[analysis], &[]).snapshots else { continue };
        let Some(snapshot) = snapshots.first() else { continue };
        let sites = snapshot.sites.iter().map(|share| (share.site.line.expect("a line"), share.bytes));
        assert_eq!(
            rows_by_line(&history, device, |birth, death| birth < edge && edge <= death),
            sum_by_line(sites)
        );
    }
}

#[test]
fn history_is_kept_only_if_asked_for() {
    let run = random_run(&[(200, 1, 3), (200, 2, 5)], 1);
    assert!(run.analyse().take_history().is_none());
    assert_eq!(history_of(&run).devices.len(), 1);
}

#[test]
fn states_at_errors_and_marks_have_the_blocks_of_that_moment() {
    let mut run = Synthetic::new();
    run.codes.push(CodeDef { id: CodeId(900), name: "epoch".to_owned(), ..CodeDef::default() });
    let line = run.frame(NodeId::NONE, "/work/a.py", "f", 1);
    let mut live: Vec<u64> = Vec::new();
    let mut expected = Vec::new();
    for round in 0..60u64 {
        live.push(run.alloc(line, 512 * (round + 1)));
        if round % 3 == 2 {
            let freed = live.swap_remove(round as usize % live.len());
            run.release(freed, line);
        }
        let why = match round % 7 {
            2 => KeyframeReason::Mark,
            5 => KeyframeReason::OutOfMemory,
            _ => continue,
        };
        match why {
            KeyframeReason::Mark => run.event(EventKind::MARK, 0, 0, [MARK_NAMED, 900], line),
            _ => run.oom(line, 1 << 40),
        }
        let mut blocks: Vec<(u64, u64)> = live.iter().map(|addr| (*addr, run.size_of(*addr))).collect();
        blocks.sort_unstable();
        let block_events = run.events.iter().filter(|event| is_of_block(event)).count() as u64;
        expected.push((why, run.time_ns - STARTED_NS, block_events, blocks));
    }
    let history = history_of(&run);
    let device = &history.devices[0];
    let is_moment = |why| matches!(why, KeyframeReason::Mark | KeyframeReason::OutOfMemory);
    let states = device.states.iter().filter(|state| is_moment(state.why));
    let found = states.map(|state| {
        let blocks: Vec<(u64, u64)> = state.blocks().map(|(addr, bytes, _)| (addr, bytes)).collect();
        (state.why, state.time_ns, state.block_events, blocks)
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(device.omitted_states, 0);
}

#[test]
fn last_of_many_errors_has_a_state_and_others_are_counted() {
    let mut run = Synthetic::new();
    run.codes.push(CodeDef { id: CodeId(900), name: "epoch".to_owned(), ..CodeDef::default() });
    let line = run.frame(NodeId::NONE, "/work/a.py", "f", 1);
    for _ in 0..40 {
        run.alloc(line, 512);
        run.event(EventKind::MARK, 0, 0, [MARK_NAMED, 900], line);
        run.oom(line, 1 << 40);
    }
    let last_ns = run.time_ns - STARTED_NS;
    let history = history_of(&run);
    let device = &history.devices[0];
    let times = |why| device.states.iter().filter(move |state| state.why == why).map(|state| state.time_ns);
    assert_eq!(times(KeyframeReason::OutOfMemory).next_back(), Some(last_ns));
    let kept = times(KeyframeReason::OutOfMemory).count() + times(KeyframeReason::Mark).count();
    assert_eq!((kept as u64 + device.omitted_states, kept), (80, 32));
}
