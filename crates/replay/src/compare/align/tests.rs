use super::*;
use proptest::prelude::*;

fn line(position: i64, bytes: u64) -> AlignLine {
    let held = BlockTotals { bytes, blocks: u64::from(bytes > 0) };
    AlignLine {
        file: Some("/work/train.py".to_owned()),
        function: Some("train".to_owned()),
        position: Some(position),
        amounts: [held; 3],
        ..AlignLine::default()
    }
}

fn lines(all: &[(i64, u64)]) -> Vec<AlignLine> {
    all.iter().map(|(position, bytes)| line(*position, *bytes)).collect()
}

/// Aligns in both directions, which must give the same pairs.
fn pairs(before: &[AlignLine], after: &[AlignLine]) -> Vec<(usize, usize)> {
    let forward = align_lines(before, after);
    let mut swapped: Vec<_> = align_lines(after, before).into_iter().map(LinePair::swapped).collect();
    swapped.sort_unstable();
    assert_eq!(forward, swapped);
    forward.into_iter().map(|pair| (pair.before, pair.after)).collect()
}

#[test]
fn inserted_line_is_the_only_unpaired_one() {
    let before = lines(&[(10, 1), (11, 2), (14, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 9), (11, 1), (12, 2), (15, 3)])), [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 1), (11, 9), (12, 2), (15, 3)])), [(0, 0), (1, 2), (2, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 1), (11, 2), (14, 3), (15, 9)])), [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn lines_stay_paired_when_their_amounts_grow() {
    let before = lines(&[(10, 1), (11, 2), (14, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 2), (11, 4), (14, 6)])), [(0, 0), (1, 1), (2, 2)]);
    // All lines moved down by three.
    assert_eq!(pairs(&before, &lines(&[(13, 20), (14, 40), (17, 60)])), [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn removed_line_is_not_paired_with_an_added_one() {
    assert_eq!(pairs(&lines(&[(10, 1), (20, 2)]), &lines(&[(20, 2), (30, 3)])), [(1, 0)]);
}

#[test]
fn lines_with_different_callees_are_paired_only_at_the_same_position() {
    let calls = |mut line: AlignLine, name: &str| {
        line.callees = BTreeSet::from([name.to_owned()]);
        line
    };
    let conv = calls(line(10, 1), "conv.py:forward");
    assert_eq!(pairs(std::slice::from_ref(&conv), &[calls(line(12, 1), "relu.py:relu")]), []);
    assert_eq!(pairs(std::slice::from_ref(&conv), &[calls(line(10, 1), "relu.py:relu")]), [(0, 0)]);
    assert_eq!(pairs(&[conv], &[calls(line(12, 9), "conv.py:forward")]), [(0, 0)]);
}

#[test]
fn lines_of_other_functions_files_and_passes_are_not_paired() {
    let other_function = AlignLine { function: Some("eval".to_owned()), ..line(10, 1) };
    let backward = AlignLine { is_backward: true, ..line(10, 1) };
    let elsewhere = AlignLine { file: Some("/other/copy/train.py".to_owned()), ..line(10, 1) };
    let native = AlignLine { file: None, module: Some("/usr/lib/libfoo.so.1.2".to_owned()), ..line(0x40, 1) };
    let other_native = AlignLine { module: Some("/opt/libfoo.so.3".to_owned()), ..native.clone() };
    assert_eq!(pairs(&[line(10, 1)], &[other_function]), []);
    assert_eq!(pairs(&[line(10, 1)], &[backward]), []);
    assert_eq!(pairs(&[line(10, 1)], &[elsewhere]), [(0, 0)]);
    assert_eq!(pairs(std::slice::from_ref(&native), &[other_native]), [(0, 0)]);
    assert_eq!(pairs(&[native], &[line(0x40, 1)]), []);
    assert_eq!(pairs(&[AlignLine::default()], &[AlignLine::default()]), [(0, 0)], "lines of unknown stacks");
}

#[test]
fn function_too_large_for_the_table_is_paired_by_position() {
    let before: Vec<AlignLine> = (0..3000).map(|at| line(at, at as u64 + 1)).collect();
    let after: Vec<AlignLine> = (0..3000).map(|at| line(at, at as u64 + 2)).collect();
    assert_eq!(pairs(&before, &after).len(), 3000);
}

/// Lines of up to three functions, with random distances, amounts and callees.
fn random_lines() -> impl Strategy<Value = Vec<AlignLine>> {
    prop::collection::vec((0usize..3, 1i64..5, 0u64..4, 0usize..3), 0..24).prop_map(|all| {
        let mut positions = [0; 3];
        let one = |(function, gap, bytes, callee): (usize, i64, u64, usize)| {
            positions[function] += gap;
            let callee = (callee > 0).then(|| format!("callee {callee}"));
            AlignLine {
                function: Some(format!("f{function}")),
                callees: callee.into_iter().collect(),
                ..line(positions[function], bytes)
            }
        };
        all.into_iter().map(one).collect()
    })
}

proptest! {
    #[test]
    fn run_is_aligned_with_itself_after_moving(lines in random_lines(), moved in -100i64..100) {
        let all: Vec<(usize, usize)> = (0..lines.len()).map(|at| (at, at)).collect();
        let shifted: Vec<AlignLine> = lines.iter().cloned().map(|mut line| {
            line.position = line.position.map(|position| position + moved);
            line.file = Some("/somewhere/else/train.py".to_owned());
            line
        }).collect();
        prop_assert_eq!(pairs(&lines, &lines), all.clone());
        prop_assert_eq!(pairs(&lines, &shifted), all);
    }

    #[test]
    fn pairs_keep_order_and_use_no_line_twice(before in random_lines(), after in random_lines()) {
        let pairs = pairs(&before, &after);
        for (one, other) in pairs.iter().enumerate().flat_map(|(at, one)| pairs[..at].iter().map(move |other| (other, one))) {
            prop_assert!(one.0 < other.0);
            prop_assert_ne!(one.1, other.1);
            if before[one.0].function == before[other.0].function {
                prop_assert!(after[one.1].position < after[other.1].position);
            }
        }
    }

    #[test]
    fn one_added_line_of_distinct_size_is_the_only_unpaired_one(lines in random_lines(), at in any::<prop::sample::Index>(), gap in 1i64..4) {
        prop_assume!(!lines.is_empty());
        // A line with amounts of its own is inserted before another one, and all lines from there
        // move down.
        let at = at.index(lines.len());
        let before: Vec<AlignLine> = lines.iter().cloned().enumerate().map(|(index, line)| {
            let held = BlockTotals { bytes: 100 + index as u64, blocks: 1 };
            AlignLine { amounts: [held; 3], ..line }
        }).collect();
        let new = AlignLine { amounts: [BlockTotals { bytes: 7, blocks: 1 }; 3], ..before[at].clone() };
        let mut after = Vec::new();
        for (index, line) in before.iter().enumerate() {
            let follows = index >= at && line.function == new.function;
            if index == at {
                after.push(new.clone());
            }
            after.push(AlignLine { position: line.position.map(|position| position + if follows { gap } else { 0 }), ..line.clone() });
        }
        let expected: Vec<(usize, usize)> = (0..lines.len()).map(|index| (index, index + usize::from(index >= at))).collect();
        prop_assert_eq!(pairs(&before, &after), expected);
    }
}
