//! What rows say about runs of a few requests.

use gpumemtrace_format::event::{SAMPLE_SOURCE_NVML, SAMPLE_SOURCE_RECORDER};

use super::run::{MIB, TestRun, scenario};

#[test]
fn rejected_request_is_a_failure() {
    let mut run = TestRun::default();
    run.sample(20, SAMPLE_SOURCE_RECORDER).alloc(1, 20, 20).alloc(2, 500, 520);
    let rejecting = scenario("throw_on_cudamalloc_oom:True", 15, Some(256));
    let others = vec![rejecting, scenario("max_split_size_mb:64", 15, Some(1024))];
    let (_, rows) = run.predict(scenario("", 15, Some(1024)), others);
    let [best, rejected] = &rows[..] else { panic!("two rows") };
    assert_eq!((best.row.setting.as_str(), best.row.ooms), ("max_split_size_mb:64", 0));
    assert_eq!((rejected.row.ooms, rejected.row.retries), (1, 0));
    assert_eq!(rejected.row.first_failure.as_ref().map(|failure| failure.request_bytes), Some(500 * MIB));
}

#[test]
fn settings_that_fail_later_are_better() {
    let mut run = TestRun::default();
    run.alloc(1, 300, 300).alloc(2, 300, 600).alloc(3, 300, 900);
    let cards = [400, 800, 700].map(|card_mib| scenario("", 15, Some(card_mib)));
    let (_, rows) = run.predict(scenario("", 15, Some(1024)), cards.to_vec());
    let cards: Vec<_> = rows.iter().map(|row| row.row.card_bytes.unwrap_or(0) / MIB).collect();
    assert_eq!(cards, [800, 700, 400], "equal failures keep their order");
    assert!(rows.iter().all(|row| row.row.ooms == 1));
}

#[test]
fn card_of_unknown_size_limits_nothing() {
    let mut run = TestRun::default();
    run.alloc(1, 20, 20).alloc(2, 500, 520);
    let settings = ["expandable_segments:True", "throw_on_cudamalloc_oom:True"];
    let others = settings.map(|setting| scenario(setting, 15, None)).to_vec();
    let (_, rows) = run.predict(scenario("", 15, None), others);
    for predicted in rows {
        assert_eq!(predicted.doubts, [], "{}", predicted.row.setting);
        let row = (predicted.row.ooms, predicted.row.peak_reserved_bytes);
        assert_eq!(row, (0, Some(520 * MIB)), "{}", predicted.row.setting);
    }
}

#[test]
fn samples_of_nvml_say_nothing_about_the_card() {
    let failures = |sample_of_nvml: bool| {
        let mut run = TestRun::default();
        // Other processes use 600 of 1024 MiB.
        run.sample(620, SAMPLE_SOURCE_RECORDER).alloc(1, 20, 20);
        if sample_of_nvml {
            run.sample(20, SAMPLE_SOURCE_NVML);
        }
        run.alloc(2, 300, 320).alloc(3, 33, 354);
        let rounding = scenario("roundup_power2_divisions:2", 15, Some(1024));
        let (base, mut rows) = run.predict(scenario("", 15, Some(1024)), vec![rounding]);
        assert_eq!(base.row.ooms, 0);
        rows.pop().expect("one row").row.ooms
    };
    assert_eq!((failures(false), failures(true)), (1, 1));
}

#[test]
fn retry_that_completes_a_free_early_leaves_later_frees_pending() {
    let mut run = TestRun::default();
    run.sample(20, SAMPLE_SOURCE_RECORDER);
    run.alloc(1, 6, 20).alloc(2, 6, 20).alloc(3, 20, 40).free(3, 40);
    run.begin_free(2, 40);
    // On the small card this request is retried, after the free was waited for.
    run.alloc(4, 30, 70);
    // There, this block gets the address of the freed one.
    run.alloc(5, 6, 70).begin_free(5, 70);
    run.complete_free(2);
    run.alloc(6, 6, 70).alloc(7, 6, 70);
    let (base, rows) = run.predict(scenario("", 15, Some(1024)), vec![scenario("", 15, Some(60))]);
    assert_eq!((base.doubts, base.row.ooms), (vec![], 0));
    assert_eq!(rows[0].row.first_failure.as_ref().map(|failure| failure.request_bytes), Some(6 * MIB));
}

/// The range of the recorded run and of one with another setting, in MiB, over 9 orders.
fn ranges(minor: u32, setting: &str, card_mib: u64) -> [Option<(u64, u64, u32, u32)>; 2] {
    let run = TestRun::with_deciding_addresses();
    let base = scenario("", minor, Some(card_mib));
    let (base, rows) = run.predict_with_orders(base, vec![scenario(setting, minor, Some(card_mib))], 8);
    [&base.row, &rows[0].row].map(|row| {
        let range = row.peak_reserved_range?;
        Some((range.least_bytes / MIB, range.most_bytes / MIB, range.orders, range.failing_orders))
    })
}

#[test]
fn range_is_over_orders_of_addresses() {
    assert_eq!(ranges(11, "max_split_size_mb:64", 1024), [Some((40, 60, 9, 0)); 2]);
    assert_eq!(ranges(12, "max_split_size_mb:64", 1024), [None; 2], "the block number decides");
    let [recorded, expandable] = ranges(13, "expandable_segments:True", 1024);
    assert_eq!((recorded, expandable.is_some()), (None, true), "the segment number decides");
}

#[test]
fn some_orders_run_out_of_memory() {
    let [Some((least, most, orders, failing)), _] = ranges(11, "max_split_size_mb:64", 50) else {
        panic!("addresses decide")
    };
    assert_eq!((least, most, orders), (40, 40, 9));
    assert!(failing > 0 && failing < orders, "{failing}");
}
