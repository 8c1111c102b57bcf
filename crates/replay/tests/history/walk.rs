//! Compares what a walk passes with the report of the same run.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::event::MARK_NAMED;
use gpumemtrace_format::reader::TraceBytes;
use gpumemtrace_format::{CodeDef, CodeId, EventKind, NodeId};
use gpumemtrace_replay::report::{BlockChange, BlockLayer, Report, WalkEnd, WalkedBlock, WalkedEvent};
use gpumemtrace_replay::{Analysis, AnalysisOptions, Input, RingFile, TimeSpec, analyse_with_head, report};
use proptest::prelude::*;

use gpumemtrace_synthetic::Synthetic;
use gpumemtrace_synthetic::random::random_run;

/// A walk through a run, and the report of the whole run.
struct Walked {
    report: Report,
    analysis: Analysis,
    end: WalkEnd,
    /// Time, step and whether inside the window, of each event.
    events: Vec<(u64, u32, bool)>,
    changes: Vec<BlockChange>,
}

fn walk(run: &Synthetic, since: Option<&str>, until: Option<&str>) -> Walked {
    let bytes = run.file(100);
    let open = || Ok(Box::new(std::io::Cursor::new(bytes.clone())) as Box<dyn TraceBytes>);
    let input = Input {
        path: "run.trace",
        open: &open,
        ring: RingFile::Absent,
        is_locked: false,
        files: Vec::new(),
        absent: Vec::new(),
    };
    let (mut analysis, head) = analyse_with_head(input, AnalysisOptions::default()).expect("a trace");
    let report = report(std::slice::from_ref(&analysis), &[]);
    let spec = |text: &str| text.parse::<TimeSpec>().expect("a moment");
    let (since, until) = (since.map(spec), until.map(spec));
    let (mut events, mut changes) = (Vec::new(), Vec::new());
    let visit = &mut |walked: &WalkedEvent<'_>| {
        events.push((walked.time_ns, walked.step, walked.is_inside));
        changes.extend_from_slice(walked.changes);
        ControlFlow::Continue(())
    };
    let end = analysis.walk(&open, &head, (since.as_ref(), until.as_ref()), visit).expect("a trace");
    Walked { report, analysis, end, events, changes }
}

impl Walked {
    fn live_bytes(&self, layer: BlockLayer) -> u64 {
        self.end.live.iter().filter(|block| block.layer == layer).map(|block| block.size_bytes).sum()
    }

    /// Live bytes of PyTorch's blocks by the id of their site.
    fn live_by_site(&self) -> BTreeMap<String, u64> {
        let torch = self.end.live.iter().filter(|block| block.layer == BlockLayer::Torch);
        let stacks: Vec<u32> = torch.clone().map(|block| block.stack).collect();
        let mut by_site = BTreeMap::new();
        for (site, block) in self.analysis.sites_of_stacks(&stacks).into_iter().zip(torch) {
            *by_site.entry(site.id).or_default() += block.size_bytes;
        }
        by_site
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn live_blocks_at_peak_and_at_exit_are_those_of_the_report(
        choices in prop::collection::vec(any::<(u8, u8, u16)>(), 1..200),
    ) {
        let run = random_run(&choices, 0);
        let at_peak = walk(&run, None, Some("peak"));
        let peak = &at_peak.report.peak.as_ref().unwrap()[0];
        prop_assert_eq!(at_peak.live_bytes(BlockLayer::Torch), peak.live_bytes);
        let shares = peak.sites.iter().map(|share| (share.site.id.clone(), share.bytes));
        prop_assert_eq!(at_peak.live_by_site(), shares.collect::<BTreeMap<_, _>>());

        let all = walk(&run, None, None);
        let exit = &all.report.devices[0].exit;
        prop_assert_eq!(Some(all.live_bytes(BlockLayer::Torch)), exit.live_bytes);
        prop_assert_eq!(Some(all.live_bytes(BlockLayer::Driver)), exit.device_bytes);
        prop_assert_eq!(all.events.len(), run.events.len());
        prop_assert!(all.events.is_sorted_by_key(|(time_ns, ..)| *time_ns));
        prop_assert!(all.end.until_reached && all.end.since_reached);
        let mut replayed: BTreeMap<_, WalkedBlock> = BTreeMap::new();
        for change in &all.changes {
            match change {
                BlockChange::Allocated(block) => {
                    let key = (block.layer, block.device, block.addr);
                    prop_assert!(replayed.insert(key, *block).is_none());
                }
                BlockChange::Freed(block) | BlockChange::Lost(block) => {
                    prop_assert_eq!(replayed.remove(&(block.layer, block.device, block.addr)), Some(*block));
                }
            }
        }
        prop_assert_eq!(replayed.into_values().collect::<Vec<_>>(), all.end.live);
    }
}

#[test]
fn steps_are_those_of_the_report_and_bound_the_window() {
    let run = Synthetic::train(40, |run, _, stack| {
        let addr = run.alloc(stack, 1 << 20);
        run.release(addr, stack);
    });
    let all = walk(&run, None, None);
    let steps = all.report.steps.as_ref().unwrap().count.unwrap();
    assert_eq!(u64::from(all.events.last().unwrap().1), steps);
    let part = walk(&run, Some("step:10"), Some("step:12"));
    let inside: Vec<u32> =
        part.events.iter().filter(|(.., inside)| *inside).map(|(_, step, _)| *step).collect();
    assert_eq!((inside.first(), inside.last()), (Some(&10), Some(&11)));
    assert_eq!(inside.len() as u64, part.end.events);
    let before = all.events.iter().filter(|(_, step, _)| *step < 10).count();
    assert_eq!(part.events.iter().filter(|(.., inside)| !inside).count(), before);
    assert!(!walk(&run, Some("step:4000"), None).end.since_reached);
    assert!(!walk(&run, None, Some("step:4000")).end.until_reached);
}

#[test]
fn window_ends_before_a_mark() {
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/a.py", "f", 3);
    let id = CodeId(run.codes.len() as u32 + 1);
    run.codes.push(CodeDef { id, name: "epoch".to_owned(), ..CodeDef::default() });
    for _ in 0..3 {
        run.alloc(line, 1 << 20);
        run.event(EventKind::MARK, 0, 0, [MARK_NAMED, u64::from(id.0)], line);
    }
    let part = walk(&run, Some("mark:epoch"), Some("mark:epoch#3"));
    assert_eq!(part.live_bytes(BlockLayer::Torch), 3 << 20);
    let at = part.events.iter().position(|(.., inside)| *inside).unwrap();
    let marks = run.events.iter().position(|event| event.kind == EventKind::MARK).unwrap();
    assert_eq!(at, marks, "the mark is the first event of the window");
}
