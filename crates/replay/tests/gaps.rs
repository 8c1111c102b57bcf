//! The moments at which the gap is explained, and free memory of private pools, on runs of a small
//! model of PyTorch's allocator.

use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::event::FLAG_FREED_AT_ONCE;
use gpumemtrace_format::{Detail, EventKind, ModuleDef, NativeNode, NodeId, definitions};
use gpumemtrace_replay::report::{
    CauseKind, Fragmentation, GapReason, LeakKind, Remedy, RemedyKind, Report, VerdictEvidence,
};
use gpumemtrace_replay::{RingFile, report};
use gpumemtrace_synthetic::{Synthetic, analyse_bytes};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const STARTED_NS: u64 = 1_000_000_000;
/// Ids of pools as PyTorch packs them: of a `MemPool`, and of a captured CUDA graph.
const MEM_POOL: u64 = 1;
const GRAPH_POOL: u64 = 1 << 32;

#[derive(Clone, Copy)]
struct Segment {
    addr: u64,
    bytes: u64,
    used: u64,
    stream: u64,
    pool: u64,
}

/// A run with segments that serve blocks from the front, and never reuse memory.
struct Pools {
    run: Synthetic,
    segments: Vec<Segment>,
    created: u64,
    allocated: u64,
    requested: u64,
    /// Address, requested bytes, stream and pool of each live block.
    live: Vec<(u64, u64, u64, u64)>,
    /// Gap after each block event, with its time and whether it was an allocation.
    gaps: Vec<(u64, u64, bool)>,
}

impl Pools {
    fn new() -> Self {
        Self {
            run: Synthetic::new(),
            segments: Vec::new(),
            created: 0,
            allocated: 0,
            requested: 0,
            live: Vec::new(),
            gaps: Vec::new(),
        }
    }

    fn note(&mut self, requested_bytes: u64, (stream, pool): (u64, u64), is_alloc: bool) {
        let event = self.run.events.last_mut().unwrap();
        event.detail = Some(Detail { requested_bytes, stream, pool });
        event.flags = FLAG_FREED_AT_ONCE;
        self.gaps.push((self.run.reserved - self.requested, self.run.time_ns - STARTED_NS, is_alloc));
    }

    /// Allocates in a segment of this stream and pool, or in a new one of 20 MiB or more.
    fn alloc(&mut self, line: NodeId, requested: u64, (stream, pool): (u64, u64)) -> u64 {
        let size = requested.max(1).next_multiple_of(512);
        let fits = |segment: &Segment| {
            (segment.stream, segment.pool) == (stream, pool) && segment.bytes - segment.used >= size
        };
        let index = self.segments.iter().position(fits).unwrap_or_else(|| {
            let bytes = size.next_multiple_of(2 * MIB).max(20 * MIB);
            self.created += 1;
            let addr = self.created << 40;
            self.run.event(EventKind::SEGMENT_ALLOC, addr, bytes, [stream, pool], line);
            self.run.reserved += bytes;
            self.segments.push(Segment { addr, bytes, used: 0, stream, pool });
            self.segments.len() - 1
        });
        let segment = &mut self.segments[index];
        let addr = segment.addr + segment.used;
        segment.used += size;
        self.allocated += size;
        self.requested += requested;
        self.live.push((addr, requested, stream, pool));
        let aux = [self.allocated, self.run.reserved];
        self.run.event(EventKind::BLOCK_ALLOC, addr, size, aux, line);
        self.note(requested, (stream, pool), true);
        addr
    }

    fn free(&mut self, addr: u64) {
        let index = self.live.iter().position(|(live, ..)| *live == addr).expect("a live block");
        let (_, requested, stream, pool) = self.live.swap_remove(index);
        let size = requested.max(1).next_multiple_of(512);
        self.allocated -= size;
        self.requested -= requested;
        let aux = [self.allocated, self.run.reserved];
        self.run.event(EventKind::BLOCK_FREE, addr, size, aux, NodeId::NONE);
        self.note(requested, (stream, pool), false);
    }

    fn free_all(&mut self) {
        while let Some((addr, ..)) = self.live.first().copied() {
            self.free(addr);
        }
    }

    /// As `torch.cuda.empty_cache()`: returns segments without a block, but not of private pools.
    fn empty_cache(&mut self) {
        for Segment { addr, bytes, stream, pool, .. } in self.segments.clone() {
            let is_empty = !self.live.iter().any(|(live, ..)| (addr..addr + bytes).contains(live));
            if is_empty && pool == 0 {
                self.run.event(EventKind::SEGMENT_FREE, addr, bytes, [stream, pool], NodeId::NONE);
                self.run.reserved -= bytes;
                self.segments.retain(|segment| segment.addr != addr);
            }
        }
    }
}

fn line(run: &mut Synthetic, line: i32) -> NodeId {
    run.frame(NodeId::NONE, "/work/a.py", "f", line)
}

fn moment(report: &Report, why: GapReason) -> &Fragmentation {
    let moments = report.fragmentation.as_ref().unwrap();
    moments.iter().find(|moment| moment.at.why == why).unwrap_or_else(|| panic!("no {why}: {moments:#?}"))
}

fn causes(moment: &Fragmentation) -> Vec<(CauseKind, u64)> {
    moment.causes.iter().map(|cause| (cause.cause, cause.bytes)).collect()
}

#[test]
fn free_segments_of_private_pools_are_stranded_whatever_the_request() {
    for pool in [MEM_POOL, GRAPH_POOL] {
        let mut pools = Pools::new();
        let (weights, in_pool) = (line(&mut pools.run, 3), line(&mut pools.run, 7));
        pools.alloc(weights, 20 * MIB, (0, 0));
        let block = pools.alloc(in_pool, 40 * MIB, (0, pool));
        pools.free(block);
        // Most bytes are requested from the private pool, and so is the last memory.
        pools.alloc(in_pool, 60 * MIB, (0, pool));
        let report = pools.run.report();
        for why in [GapReason::PeakReserved, GapReason::LargestGap, GapReason::End] {
            let moment = moment(&report, why);
            assert_eq!(causes(moment), [(CauseKind::StrandedPool, 40 * MIB)], "{why}");
            let cause = &moment.causes[0];
            assert_eq!(cause.culprits[0].site.line, Some(7));
            assert_eq!(
                (cause.pools[0].key.pool, cause.pools[0].bytes),
                (Some([pool >> 32, pool & 1]), 40 * MIB)
            );
            assert_eq!(cause.pools[0].key.is_graph(), pool == GRAPH_POOL);
            assert_eq!(moment.pools.iter().map(|row| row.releasable_bytes).sum::<u64>(), 0);
        }
    }
}

#[test]
fn segments_of_the_pool_of_a_failed_request_are_pinned_by_it() {
    let mut pools = Pools::new();
    let in_pool = line(&mut pools.run, 7);
    let block = pools.alloc(in_pool, 40 * MIB, (0, MEM_POOL));
    pools.free(block);
    let failed = Detail { requested_bytes: 60 * MIB, stream: 0, pool: MEM_POOL };
    pools.run.event(EventKind::BLOCK_OOM, 0, 60 * MIB, [0, 40 * MIB], in_pool);
    pools.run.events.last_mut().unwrap().detail = Some(failed);
    let report = pools.run.report();
    let [oom] = &report.oom.as_ref().unwrap()[..] else { panic!("one error") };
    let [cause] = &oom.unused_causes[..] else { panic!("{:#?}", oom.unused_causes) };
    assert_eq!((cause.cause, cause.bytes), (CauseKind::Pinned, 40 * MIB));
    assert_eq!(cause.pools[0].key.pool, Some([MEM_POOL >> 32, MEM_POOL & 1]));
    let releases = |remedy: &Remedy| matches!(remedy.kind, RemedyKind::ReleasePools { .. });
    assert!(!oom.remedies.iter().any(releases), "{:#?}", oom.remedies);
}

#[test]
fn largest_gap_and_last_step_are_rows_and_the_teardown_is_none() {
    let mut run = Synthetic::train(8, |_, _, _| {});
    let [allocated, reserved] = run.events.last().unwrap().aux;
    let end_ns = run.time_ns - STARTED_NS;
    run.release_all();
    let report = run.report();
    let last = moment(&report, GapReason::LastStep);
    let end_row = moment(&report, GapReason::End);
    assert_eq!(last.at.step, Some(7));
    assert!(last.at.time_ns < end_ns && last.live_bytes > 0);
    assert_eq!((end_row.live_bytes, end_row.reserved_bytes), (allocated, reserved));
    let end = &report.devices[0].end;
    assert_eq!((end.live_bytes, end.reserved_bytes), (Some(allocated), Some(reserved)));
    assert_eq!((end.time_ns, end_row.at.time_ns), (end_ns, end_ns));
    assert!(
        moment(&report, GapReason::LargestGap).gap_bytes < report.devices[0].peak.reserved_bytes.unwrap()
    );
}

#[test]
fn run_that_was_cut_off_has_no_teardown() {
    let mut pools = Pools::new();
    let line = line(&mut pools.run, 3);
    pools.alloc(line, 15 * MIB, (0, 0));
    pools.free_all();
    let analysis = analyse_bytes(&pools.run.file_without_end(100), RingFile::Absent);
    let report = report(&[analysis], &[]);
    assert_eq!(moment(&report, GapReason::End).live_bytes, 0);
    assert_eq!(moment(&report, GapReason::LargestGap).gap_bytes, 20 * MIB);
}

#[test]
fn refused_call_of_another_library_is_a_row_and_one_of_pytorch_is_none() {
    const BIAS: u64 = 0x7f00_0010_0000;
    for (path, owner) in [("/lib/libnccl.so.2", Some("libnccl.so.2")), ("/lib/libc10_cuda.so", None)] {
        let mut pools = Pools::new();
        let (weights, init) = (line(&mut pools.run, 3), line(&mut pools.run, 9));
        pools.alloc(weights, 30 * MIB, (0, 0));
        let cached = pools.alloc(weights, 50 * MIB, (0, 0));
        pools.free(cached);
        pools.run.event(EventKind::DEVICE_ALLOC, 0, 64 * MIB, [0; 2], init);
        let event = pools.run.events.last_mut().unwrap();
        (event.result, event.native_stack) = (2, NodeId(1));
        let refused_ns = pools.run.time_ns - STARTED_NS;
        let mut file = pools.run.file(100);
        let node = NativeNode { id: NodeId(1), parent: NodeId::NONE, return_address: BIAS + 0x101 };
        let module = ModuleDef {
            load_bias: BIAS,
            start: BIAS,
            end: BIAS + 0x1000,
            path: path.to_owned(),
            build_id: vec![1; 20],
        };
        file.extend(encode_block(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(&[node]), 3));
        file.extend(encode_block(BlockKind::MODULES, &definitions::encode_modules(&[module]), 3));
        let report = report(&[analyse_bytes(&file, RingFile::Absent)], &[]);
        let moments = report.fragmentation.unwrap();
        let refused = moments.iter().find(|moment| moment.at.why == GapReason::FailedCall);
        assert_eq!(refused.is_some(), owner.is_some());
        if let Some(refused) = refused {
            let call = refused.at.call.as_ref().unwrap();
            assert_eq!((Some(&*call.owner), call.requested_bytes), (owner, 64 * MIB));
            assert_eq!((call.site.line, refused.at.time_ns), (Some(9), refused_ns));
            assert_eq!(causes(refused), [(CauseKind::Cache, 50 * MIB)]);
        }
    }
}

#[test]
fn largest_gap_is_found_when_a_released_segment_is_reserved_again() {
    let mut pools = Pools::new();
    let line = line(&mut pools.run, 3);
    let small = pools.alloc(line, 1, (0, 0));
    pools.free(small);
    let large = pools.alloc(line, 20 * MIB, (0, 0));
    pools.empty_cache();
    pools.free(large);
    // As many bytes are reserved as after the large allocation, and one byte is in use.
    pools.alloc(line, 1, (0, 0));
    let report = pools.run.report();
    assert_eq!(moment(&report, GapReason::LargestGap).gap_bytes, 40 * MIB - 1);
}

#[test]
fn memory_stranded_on_streams_and_in_pools_is_a_verdict() {
    let stranded = |pool, stream, blocks: u64| {
        let mut pools = Pools::new();
        let line = line(&mut pools.run, 3);
        pools.alloc(line, 900 * MIB, (0, 0));
        for _ in 0..blocks {
            pools.alloc(line, 512, (stream, pool));
            let large = pools.alloc(line, 20 * MIB - 512, (stream, pool));
            pools.free(large);
        }
        pools.alloc(line, 2 * MIB, (0, 0));
        let verdicts = pools.run.report().verdicts.unwrap();
        verdicts.into_iter().find_map(|verdict| match verdict.evidence {
            VerdictEvidence::StrandedMemory { stream_bytes, private_pool_bytes, .. } => {
                Some((stream_bytes, private_pool_bytes))
            }
            _ => None,
        })
    };
    let bytes = 5 * (20 * MIB - 512);
    assert_eq!(stranded(0, 7, 5), Some((bytes, 0)));
    assert_eq!(stranded(GRAPH_POOL, 7, 5), Some((0, bytes)));
    // Less than 5% of the reserved bytes.
    assert_eq!(stranded(0, 7, 2), None);
    assert_eq!(stranded(0, 0, 5), None);
}

#[test]
fn graphs_with_a_pool_each_are_counted() {
    let counted = |pools_of_graphs: &[u64]| {
        let mut pools = Pools::new();
        let line = line(&mut pools.run, 3);
        pools.alloc(line, 200 * MIB, (0, 0));
        for pool in pools_of_graphs {
            let large = pools.alloc(line, 20 * MIB, (0, *pool));
            pools.free(large);
        }
        let verdicts = pools.run.report().verdicts.unwrap();
        verdicts.into_iter().find_map(|verdict| match verdict.evidence {
            VerdictEvidence::StrandedMemory { graph_pools, .. } => Some(graph_pools),
            _ => None,
        })
    };
    assert_eq!(counted(&[GRAPH_POOL, 2 * GRAPH_POOL, 3 * GRAPH_POOL]), Some(3));
    assert_eq!(counted(&[MEM_POOL, MEM_POOL + 1]), Some(0), "pools that graphs may share");
}

#[test]
fn leak_of_reserved_memory_is_reported_at_the_common_caller() {
    let mut pools = Pools::new();
    let run = &mut pools.run;
    let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 90);
    let file = format!("{}optim/optimizer.py", gpumemtrace_synthetic::TORCH);
    let wrapper = run.frame(main, &file, "Optimizer.profile_hook_step.<locals>.wrapper", 50);
    let adam = run.frame(wrapper, &format!("{}optim/adam.py", gpumemtrace_synthetic::TORCH), "Adam.step", 60);
    let step = run.frame(main, "/work/train.py", "train_step", 40);
    let lines: Vec<NodeId> = (0..3).map(|i| run.frame(step, "/work/net.py", "branch", 10 + i)).collect();
    for round in 0..40u64 {
        for (line, at) in lines.iter().zip(0..) {
            // A new pool each time, whose memory is never used again.
            let block = pools.alloc(*line, (4 + at) * MIB, (0, 3 * round + at + 1));
            pools.free(block);
        }
        let temporary = pools.alloc(adam, 8192, (0, 0));
        pools.free(temporary);
    }
    let leaks = pools.run.report().leaks.unwrap();
    let leak = leaks.iter().find(|leak| leak.kind == LeakKind::Reserved).expect("a leak");
    assert_eq!((leak.site.function.as_deref(), leak.site.line), (Some("train_step"), Some(40)));
    assert_eq!(leak.members.iter().map(|site| site.line.unwrap()).collect::<Vec<_>>(), [10, 11, 12]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn largest_gap_is_exact_and_its_causes_sum_to_it(
        choices in proptest::collection::vec((0u8..12, 0u8..3, 1u64..30 * MIB), 1..120),
    ) {
        let mut pools = Pools::new();
        let line = line(&mut pools.run, 3);
        for (what, place, size) in choices {
            match what {
                0 => pools.empty_cache(),
                1..5 if !pools.live.is_empty() => {
                    let (addr, ..) = pools.live[size as usize % pools.live.len()];
                    pools.free(addr);
                }
                _ => { pools.alloc(line, size, [(0, 0), (7, 0), (0, GRAPH_POOL)][usize::from(place)]); }
            }
        }
        // Without an allocation behind it, a gap may be that of a teardown.
        pools.free_all();
        pools.empty_cache();
        let last = pools.gaps.iter().rposition(|(.., is_alloc)| *is_alloc);
        prop_assume!(last.is_some());
        let before = &pools.gaps[..=last.unwrap()];
        let largest = before.iter().map(|(gap, ..)| *gap).max().unwrap();
        let report = pools.run.report();
        for moment in report.fragmentation.iter().flatten() {
            prop_assert_eq!(moment.causes.iter().map(|cause| cause.bytes).sum::<u64>(), moment.gap_bytes);
            prop_assert!(moment.causes.iter().all(|cause| cause.cause != CauseKind::Unexplained));
        }
        if largest > 0 {
            let row = moment(&report, GapReason::LargestGap);
            let (_, time_ns, _) = before.iter().find(|(gap, ..)| *gap == largest).unwrap();
            prop_assert_eq!((row.gap_bytes, row.at.time_ns), (largest, *time_ns));
        }
        let row = moment(&report, GapReason::End);
        prop_assert_eq!(row.gap_bytes, before.last().unwrap().0);
        let end = &report.devices[0].end;
        prop_assert_eq!(
            (Some(row.live_bytes), Some(row.reserved_bytes), row.at.time_ns, row.at.step),
            (end.live_bytes, end.reserved_bytes, end.time_ns, end.step)
        );
    }
}

#[test]
fn gap_is_observed_at_even_distances_however_many_blocks_are_live() {
    // One block in 20 events stays: in the end there are 5,000 live blocks for 100,000 events.
    let mut pools = Pools::new();
    let line = line(&mut pools.run, 3);
    for _ in 0..5_000 {
        for _ in 0..9 {
            let temporary = pools.alloc(line, MIB, (0, 0));
            pools.free(temporary);
        }
        pools.alloc(line, 512, (0, 0));
    }
    let report = pools.run.report();
    let history = &report.fragmentation_over_time.unwrap()[0];
    let times: Vec<u64> = history.points.iter().map(|point| point.time_ns).collect();
    assert!(times.len() >= 8 && history.is_limited_by_blocks, "{times:?}");
    // Times follow the events.
    let distances: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (shortest, longest) = (distances.iter().min().unwrap(), distances.iter().max().unwrap());
    assert!(*longest <= shortest + shortest / 4, "{distances:?}");
    let end_ns = report.traces[0].duration_ns.unwrap();
    let last = end_ns - times.last().unwrap();
    assert!(last <= longest + longest / 4, "the last sample is {last} ns before the end: {distances:?}");
}
