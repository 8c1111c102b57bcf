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
    r#"{"name":"train.kept","type":"list","items":34,"chain":["tensor"]}"#,
    r#"{"why":"no_tensor"}"#,
    "[",
];

#[test]
fn a_leak_has_the_holders_of_all_its_sites_and_the_rest_is_told() {
    let definitions = definitions(TEXTS);
    let mut looks = HolderScans::default();
    assert!(looks.count == 0 && looks.of_sites(0, [SiteId(1)].into_iter()).is_none());
    looks.look(&event(EventKind::HOLDERS, 1, [0, 0]), (7, 3), &definitions);
    for (site, text, amount) in [(1, 2, [3, 300]), (1, 3, [2, 20]), (2, 2, [1, 100]), (2, 4, [1, 1])] {
        looks.holder(&event(EventKind::HOLDER, text, amount), Some(SiteId(site)), &definitions);
    }
    looks.holder(&event(EventKind::HOLDER, 2, [5, 5]), None, &definitions);
    let (holders, seen) = looks.of_sites(0, [1, 2, 9].map(SiteId).into_iter()).unwrap();
    let kept = Holder {
        name: "train.kept".to_owned(),
        type_name: Some("list".to_owned()),
        items: Some(34),
        chain: vec!["tensor".to_owned()],
        blocks: 4,
        bytes: 400,
    };
    assert_eq!(holders, [kept]);
    let of = |why, blocks, bytes| UnresolvedBlocks { why, blocks, bytes };
    assert_eq!(
        seen.unresolved,
        [of(UnresolvedReason::NoTensor, 2, 20), of(UnresolvedReason::Unreadable, 1, 1)]
    );
    assert_eq!((seen.scan, seen.blocks, seen.bytes, seen.named_blocks), (0, 7, 421, 4));
    assert!(looks.of_sites(1, [SiteId(1)].into_iter()).is_none(), "another device");
    let [look] = looks.report(0, 2, true).try_into().unwrap();
    let HolderScan { trigger, time_ns, step, leaks, limit_ns, is_cut, lost_blocks, failed, .. } = look;
    assert_eq!((trigger, time_ns, step, leaks), (Some(ScanTrigger::Exit), 5, Some(3), Some(2)));
    assert_eq!((limit_ns, is_cut, lost_blocks, failed), (None, Some(false), 5, None));
}

#[test]
fn a_later_look_takes_the_place_of_an_earlier_one() {
    let definitions = definitions(TEXTS);
    let mut looks = HolderScans::default();
    for blocks in [10, 20] {
        looks.look(&event(EventKind::HOLDERS, 4, [0, 0]), (0, 0), &definitions);
        looks.holder(&event(EventKind::HOLDER, 2, [blocks, 1]), Some(SiteId(1)), &definitions);
        if blocks == 10 {
            looks.holder(&event(EventKind::HOLDER, 2, [1, 1]), Some(SiteId(2)), &definitions);
        }
    }
    let (holders, seen) = looks.of_sites(0, [1, 2].map(SiteId).into_iter()).unwrap();
    assert_eq!((holders[0].blocks, seen.scan, seen.blocks), (20, 1, 20), "site 2 was not looked at again");
    assert_eq!(looks.report(0, 0, false)[1].failed.as_deref(), Some("unreadable"));
}

#[test]
fn a_program_that_never_stops_saying_fills_no_memory() {
    let definitions = definitions(TEXTS);
    let mut looks = HolderScans::default();
    looks.holder(&event(EventKind::HOLDER, 2, [1, 1]), Some(SiteId(1)), &definitions);
    assert!(looks.count == 0, "what comes before any look is nobody's");
    for _ in 0..1000 {
        looks.look(&event(EventKind::HOLDERS, 1, [0, 0]), (0, 0), &definitions);
    }
    for _ in 0..1000 {
        looks.holder(&event(EventKind::HOLDER, 3, [u64::MAX, 1]), Some(SiteId(1)), &definitions);
    }
    assert_eq!((looks.kept.len(), looks.sites[&(0, SiteId(1))].rows.len()), (MAX_LOOKS, MAX_ROWS));
    let (_, seen) = looks.of_sites(0, [SiteId(1)].into_iter()).unwrap();
    assert_eq!((seen.scan, seen.bytes, seen.blocks), (999, 1000, u64::MAX));
}
