use super::*;

use gpumemtrace_format::CodeDef;

fn definitions(texts: &[&str]) -> Definitions {
    let mut definitions = Definitions::default();
    for (text, id) in texts.iter().zip(1..) {
        let code = CodeDef { id: CodeId(id), name: (*text).to_owned(), ..CodeDef::default() };
        definitions.codes.insert(CodeId(id), code);
    }
    definitions
}

fn event(kind: EventKind, text: u64, [blocks, bytes]: [u64; 2]) -> Event {
    Event { device: 0, aux: [text, blocks], size: bytes, ..Event::new(kind) }
}

const TEXTS: &[&str] = &[
    r#"{"when":"exit","leaks":2,"walk_ns":5,"cut":false,"later":[1]}"#,
    r#"{"name":"train.kept","type":"list","items":34,"limit_items":50,"chain":["tensor"]}"#,
    r#"{"why":"no_tensor"}"#,
    "[",
];

#[test]
fn holders_of_all_stacks_are_merged_and_the_rest_is_unresolved() {
    let definitions = definitions(TEXTS);
    let mut scans = HolderScans::default();
    assert!(scans.count == 0 && scans.holders_of_stacks(0, [StackId(1)].into_iter()).is_none());
    scans.begin_scan(&event(EventKind::HOLDERS, 1, [0, 0]), EventTime { time_ns: 7, step: 3 }, &definitions);
    for (stack, text, totals) in [(1, 2, [3, 300]), (1, 3, [2, 20]), (2, 2, [1, 100]), (2, 4, [1, 1])] {
        scans.add_holder(&event(EventKind::HOLDER, text, totals), Some(StackId(stack)), &definitions);
    }
    scans.add_holder(&event(EventKind::HOLDER, 2, [5, 5]), None, &definitions);
    let (holders, coverage) = scans.holders_of_stacks(0, [1, 2, 9].map(StackId).into_iter()).unwrap();
    let list = Holder {
        name: "train.kept".to_owned(),
        type_name: Some("list".to_owned()),
        items: Some(34),
        limit_items: Some(50),
        chain: vec!["tensor".to_owned()],
        blocks: 4,
        bytes: 400,
    };
    assert_eq!(holders, [list]);
    let row = |why, blocks, bytes| UnresolvedBlocks { why, blocks, bytes };
    assert_eq!(
        coverage.unresolved,
        [row(UnresolvedReason::NoTensor, 2, 20), row(UnresolvedReason::Unreadable, 1, 1)]
    );
    assert_eq!((coverage.scan, coverage.blocks, coverage.bytes, coverage.named_blocks), (0, 7, 421, 4));
    assert!(scans.holders_of_stacks(1, [StackId(1)].into_iter()).is_none(), "another device");
    let [scan] = scans.report(0, 2, true).try_into().unwrap();
    let HolderScan { trigger, time_ns, step, leaks, limit_ns, is_cut, lost_blocks, failed, .. } = scan;
    assert_eq!((trigger, time_ns, step, leaks), (Some(ScanTrigger::Exit), 5, Some(3), Some(2)));
    assert_eq!((limit_ns, is_cut, lost_blocks, failed), (None, Some(false), 5, None));
}

#[test]
fn later_scan_replaces_an_earlier_one() {
    let definitions = definitions(TEXTS);
    let mut scans = HolderScans::default();
    for blocks in [10, 20] {
        scans.begin_scan(&event(EventKind::HOLDERS, 4, [0, 0]), EventTime::default(), &definitions);
        scans.add_holder(&event(EventKind::HOLDER, 2, [blocks, 1]), Some(StackId(1)), &definitions);
        if blocks == 10 {
            scans.add_holder(&event(EventKind::HOLDER, 2, [1, 1]), Some(StackId(2)), &definitions);
        }
    }
    let (holders, coverage) = scans.holders_of_stacks(0, [1, 2].map(StackId).into_iter()).unwrap();
    let counts = (holders[0].blocks, coverage.scan, coverage.blocks);
    assert_eq!(counts, (20, 1, 20), "the second scan does not name site 2");
    assert_eq!(scans.report(0, 0, false)[1].failed.as_deref(), Some("unreadable"));
}

#[test]
fn scan_that_finds_blocks_gone_does_not_replace_an_earlier_one() {
    let definitions = definitions(TEXTS);
    // Blocks with a name and without one in each scan, and the scan that is shown.
    for (blocks, shown) in [
        (&[[10, 0], [4, 0]][..], 0),
        (&[[10, 0], [5, 0]], 1),
        (&[[10, 0], [0, 9]], 0),
        (&[[10, 0], [4, 0], [4, 0], [0, 1]], 0),
        (&[[0, 9], [0, 8]], 1),
        (&[[0, 9], [1, 0]], 1),
    ] {
        let mut scans = HolderScans::default();
        for [named, unnamed] in blocks {
            scans.begin_scan(&event(EventKind::HOLDERS, 1, [0, 0]), EventTime::default(), &definitions);
            for (text, blocks) in [(2, *named), (3, *unnamed)].into_iter().filter(|(_, blocks)| *blocks > 0) {
                scans.add_holder(
                    &event(EventKind::HOLDER, text, [blocks, 1]),
                    Some(StackId(1)),
                    &definitions,
                );
            }
        }
        let (_, coverage) = scans.holders_of_stacks(0, [StackId(1)].into_iter()).unwrap();
        assert_eq!(coverage.scan, shown, "{blocks:?}");
    }
}

#[test]
fn scans_and_rows_are_limited() {
    let definitions = definitions(TEXTS);
    let mut scans = HolderScans::default();
    scans.add_holder(&event(EventKind::HOLDER, 2, [1, 1]), Some(StackId(1)), &definitions);
    assert!(scans.count == 0, "a holder event before any scan is ignored");
    for _ in 0..1000 {
        scans.begin_scan(&event(EventKind::HOLDERS, 1, [0, 0]), EventTime::default(), &definitions);
    }
    for _ in 0..1000 {
        scans.add_holder(&event(EventKind::HOLDER, 3, [u64::MAX, 1]), Some(StackId(1)), &definitions);
    }
    assert_eq!((scans.recent.len(), scans.stacks[&(0, StackId(1))].last.rows.len()), (MAX_SCANS, MAX_ROWS));
    let (_, coverage) = scans.holders_of_stacks(0, [StackId(1)].into_iter()).unwrap();
    assert_eq!((coverage.scan, coverage.bytes, coverage.blocks), (999, 1000, u64::MAX));
}
