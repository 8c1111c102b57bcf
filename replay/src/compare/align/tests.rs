use super::*;
use proptest::prelude::*;

fn line(place: i64, bytes: u64) -> AlignLine {
    let held = BlockTotals { bytes, blocks: u64::from(bytes > 0) };
    AlignLine {
        file: Some("/work/train.py".to_owned()),
        function: Some("train".to_owned()),
        place: Some(place),
        amounts: [held; 3],
        ..AlignLine::default()
    }
}

fn lines(all: &[(i64, u64)]) -> Vec<AlignLine> {
    all.iter().map(|(place, bytes)| line(*place, *bytes)).collect()
}

/// Both ways.
fn pairs(before: &[AlignLine], after: &[AlignLine]) -> Vec<(usize, usize)> {
    let there = align(before, after);
    let mut back: Vec<_> = align(after, before).into_iter().map(|(one, other)| (other, one)).collect();
    back.sort_unstable();
    assert_eq!(there, back);
    there
}

#[test]
fn an_inserted_line_is_the_only_new_one() {
    let before = lines(&[(10, 1), (11, 2), (14, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 9), (11, 1), (12, 2), (15, 3)])), [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 1), (11, 9), (12, 2), (15, 3)])), [(0, 0), (1, 2), (2, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 1), (11, 2), (14, 3), (15, 9)])), [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn lines_that_grew_stay_the_same_lines() {
    let before = lines(&[(10, 1), (11, 2), (14, 3)]);
    assert_eq!(pairs(&before, &lines(&[(10, 2), (11, 4), (14, 6)])), [(0, 0), (1, 1), (2, 2)]);
    // As far from each other as they were, three lines further down.
    assert_eq!(pairs(&before, &lines(&[(13, 20), (14, 40), (17, 60)])), [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn one_that_went_and_one_that_came_are_not_each_other() {
    assert_eq!(pairs(&lines(&[(10, 1), (20, 2)]), &lines(&[(20, 2), (30, 3)])), [(1, 0)]);
}

#[test]
fn what_is_reached_through_other_functions_is_the_same_only_at_the_same_place() {
    let below = |mut line: AlignLine, name: &str| {
        line.below = BTreeSet::from([name.to_owned()]);
        line
    };
    let conv = below(line(10, 1), "conv.py:forward");
    assert_eq!(pairs(std::slice::from_ref(&conv), &[below(line(12, 1), "relu.py:relu")]), []);
    assert_eq!(pairs(std::slice::from_ref(&conv), &[below(line(10, 1), "relu.py:relu")]), [(0, 0)]);
    assert_eq!(pairs(&[conv], &[below(line(12, 9), "conv.py:forward")]), [(0, 0)]);
}

#[test]
fn functions_files_and_passes_are_kept_apart() {
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
    assert_eq!(pairs(&[AlignLine::default()], &[AlignLine::default()]), [(0, 0)], "whose stack is not known");
}

#[test]
fn a_function_too_large_for_the_table_is_paired_by_places() {
    let before: Vec<AlignLine> = (0..3000).map(|at| line(at, at as u64 + 1)).collect();
    let after: Vec<AlignLine> = (0..3000).map(|at| line(at, at as u64 + 2)).collect();
    assert_eq!(pairs(&before, &after).len(), 3000);
}

/// Lines of some functions: gaps between them, their size.
fn some_lines() -> impl Strategy<Value = Vec<AlignLine>> {
    prop::collection::vec((0usize..3, 1i64..5, 0u64..4, 0usize..3), 0..24).prop_map(|all| {
        let mut places = [0; 3];
        let one = |(function, gap, bytes, below): (usize, i64, u64, usize)| {
            places[function] += gap;
            let below = (below > 0).then(|| format!("below {below}"));
            AlignLine {
                function: Some(format!("f{function}")),
                below: below.into_iter().collect(),
                ..line(places[function], bytes)
            }
        };
        all.into_iter().map(one).collect()
    })
}

proptest! {
    #[test]
    fn a_run_is_aligned_with_itself_wherever_it_lies(lines in some_lines(), moved in -100i64..100) {
        let all: Vec<(usize, usize)> = (0..lines.len()).map(|at| (at, at)).collect();
        let shifted: Vec<AlignLine> = lines.iter().cloned().map(|mut line| {
            line.place = line.place.map(|place| place + moved);
            line.file = Some("/somewhere/else/train.py".to_owned());
            line
        }).collect();
        prop_assert_eq!(pairs(&lines, &lines), all.clone());
        prop_assert_eq!(pairs(&lines, &shifted), all);
    }

    #[test]
    fn pairs_keep_the_order_and_use_no_line_twice(before in some_lines(), after in some_lines()) {
        let pairs = pairs(&before, &after);
        for (one, other) in pairs.iter().enumerate().flat_map(|(at, one)| pairs[..at].iter().map(move |other| (other, one))) {
            prop_assert!(one.0 < other.0);
            prop_assert_ne!(one.1, other.1);
            if before[one.0].function == before[other.0].function {
                prop_assert!(after[one.1].place < after[other.1].place);
            }
        }
    }

    #[test]
    fn one_line_more_of_its_own_size_is_the_only_new_one(lines in some_lines(), at in any::<prop::sample::Index>(), gap in 1i64..4) {
        prop_assume!(!lines.is_empty());
        // A line that holds what no other does, before one of the others, which moves down with all that follow.
        let at = at.index(lines.len());
        let sizes: Vec<AlignLine> = lines.iter().cloned().enumerate().map(|(index, line)| {
            let held = BlockTotals { bytes: 100 + index as u64, blocks: 1 };
            AlignLine { amounts: [held; 3], ..line }
        }).collect();
        let new = AlignLine { amounts: [BlockTotals { bytes: 7, blocks: 1 }; 3], ..sizes[at].clone() };
        let mut after = Vec::new();
        for (index, line) in sizes.iter().enumerate() {
            let follows = index >= at && line.function == new.function;
            if index == at {
                after.push(new.clone());
            }
            after.push(AlignLine { place: line.place.map(|place| place + if follows { gap } else { 0 }), ..line.clone() });
        }
        let expected: Vec<(usize, usize)> = (0..lines.len()).map(|index| (index, index + usize::from(index >= at))).collect();
        prop_assert_eq!(pairs(&sizes, &after), expected);
    }
}
