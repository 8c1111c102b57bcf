//! One run for each doubt, and the status that follows from it.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::event::{FLAG_EXISTED, SAMPLE_SOURCE_PROGRAM, SAMPLE_SOURCE_RECORDER};
use gpumemtrace_format::{Event, EventKind};

use super::run::{MIB, TestRun, scenario};
use crate::WhatIf;
use crate::answer::{FailedWhat, PredictionStatus, RecordedStart};
use crate::reliance::Doubt;
use crate::scenario::Scenario;

/// A run that reserves 20 MiB, and shows that nothing else uses the card.
fn small_run() -> TestRun {
    let mut run = TestRun::default();
    run.sample(20, SAMPLE_SOURCE_RECORDER).alloc(1, 20, 20);
    run
}

/// The doubts of the recorded run, with torch 2.15 on a card of 1 GiB.
fn base_doubts(run: &TestRun) -> Vec<Doubt> {
    let (base, _) = run.predict(scenario("", 15, Some(1024)), Vec::new());
    assert_eq!(base.row.status, status_of(&base.doubts));
    base.doubts
}

/// The doubts of another row; the recorded run is as in [`base_doubts`].
fn row_doubts(run: &TestRun, other: Scenario) -> Vec<Doubt> {
    row_doubts_beside(run, scenario("", 15, Some(1024)), other)
}

fn row_doubts_beside(run: &TestRun, base: Scenario, other: Scenario) -> Vec<Doubt> {
    let (_, mut rows) = run.predict(base, vec![other]);
    let row = rows.pop().expect("one row");
    assert_eq!(row.row.status, status_of(&row.doubts));
    assert_eq!(row.row.peak_reserved_bytes.is_none(), row.row.status == PredictionStatus::Refused);
    row.doubts
}

fn status_of(doubts: &[Doubt]) -> PredictionStatus {
    let refuses = |doubt: &Doubt| {
        matches!(
            doubt,
            Doubt::LimitUnknown
                | Doubt::NoHistory
                | Doubt::SettingRefused { .. }
                | Doubt::StopsPyTorch
                | Doubt::MemoryShared
                | Doubt::NotModelled { .. }
        )
    };
    match doubts {
        [] => PredictionStatus::Exact,
        doubts if doubts.iter().any(refuses) => PredictionStatus::Refused,
        _ => PredictionStatus::Indicative,
    }
}

#[test]
fn run_without_reactions_is_exact() {
    let run = small_run();
    assert_eq!(base_doubts(&run), []);
    for other in ["max_split_size_mb:64", "expandable_segments:True"] {
        assert_eq!(row_doubts(&run, scenario(other, 15, Some(1024))), [], "{other}");
    }
}

#[test]
fn model_differs_from_the_recording() {
    let mut run = small_run();
    run.alloc(2, 20, 80);
    let differs = Doubt::ModelDiffers { predicted_bytes: 40 * MIB, recorded_bytes: 80 * MIB };
    assert_eq!(base_doubts(&run), [differs]);
}

#[test]
fn free_of_an_unknown_block_shows_that_the_recording_is_incomplete() {
    let mut run = small_run();
    run.free(2, 20);
    assert_eq!(base_doubts(&run), [Doubt::Incomplete]);
}

#[test]
fn block_without_a_requested_size_is_left_out() {
    let mut run = small_run();
    run.push(Event { addr: 2, ..Event::new(EventKind::BLOCK_ALLOC) }, 1);
    assert_eq!(base_doubts(&run), [Doubt::WithoutDetail { blocks: 1 }]);
}

#[test]
fn program_asked_for_free_memory() {
    let mut run = small_run();
    run.sample(20, SAMPLE_SOURCE_PROGRAM);
    assert_eq!(base_doubts(&run), [Doubt::MemoryQueries { calls: 1 }]);
}

#[test]
fn program_went_on_after_an_error() {
    let mut run = small_run();
    run.fail(2000, 20);
    assert_eq!(base_doubts(&run), [Doubt::Ooms { errors: 1 }]);
}

#[test]
fn cache_was_emptied_after_memory_was_short() {
    let segment_free = Event { addr: 1, ..Event::new(EventKind::SEGMENT_FREE) };
    let emptied = |stacks: [u32; 2]| {
        let mut run = small_run();
        run.free(1, 20).push(segment_free, stacks[0]).alloc(2, 20, 20);
        run.sample(20, SAMPLE_SOURCE_PROGRAM).free(2, 20).push(segment_free, stacks[1]).alloc(3, 20, 20);
        base_doubts(&run)
    };
    let queries = Doubt::MemoryQueries { calls: 1 };
    assert_eq!(emptied([7, 8]), [queries.clone(), Doubt::CacheEmptied { calls: 1 }]);
    assert_eq!(emptied([7, 7]), [queries], "the same line did so before");
}

#[test]
fn other_release_makes_other_requests() {
    let recorded = scenario("", 15, None).version;
    assert_eq!(row_doubts(&small_run(), scenario("", 14, Some(1024))), [Doubt::OtherVersion { recorded }]);
}

#[test]
fn other_model_of_card_may_make_other_requests() {
    let mut other = scenario("", 15, Some(2048));
    other.is_other_model = true;
    assert_eq!(row_doubts(&small_run(), other), [Doubt::OtherModel]);
    assert_eq!(row_doubts(&small_run(), scenario("", 15, Some(2048))), [], "only its size is known");
}

#[test]
fn request_for_a_private_pool_is_refused() {
    let mut run = small_run();
    run.alloc_in_pool(2, 30, 50, 5);
    let of_release = |minor| {
        let base = scenario("", minor, Some(1024));
        row_doubts_beside(&run, base, scenario("", minor, Some(40)))
    };
    assert_eq!(of_release(13), [Doubt::PoolRefused]);
    assert_eq!(of_release(12), [], "a MemPool is treated as a capture");
}

#[test]
fn failed_request_gets_memory() {
    let mut run = small_run();
    run.fail(2000, 20);
    let survived = row_doubts(&run, scenario("", 15, Some(4096)));
    assert_eq!(survived, [Doubt::Ooms { errors: 1 }, Doubt::Survived]);
}

#[test]
fn addresses_of_segments_decide() {
    let run = TestRun::with_deciding_addresses();
    let base = scenario("", 11, Some(1024));
    assert_eq!(row_doubts_beside(&run, base.clone(), base), [Doubt::AddressOrder]);
}

#[test]
fn speed_of_the_gpu_decides_when_a_block_is_free_again() {
    let mut run = small_run();
    run.begin_free(1, 20).complete_free(1);
    assert_eq!(base_doubts(&run), [], "the recorded run shows when it was");
    let doubts = row_doubts(&run, scenario("max_split_size_mb:64", 15, Some(1024)));
    assert_eq!(doubts, [Doubt::FreedInUse { blocks: 1 }]);
}

#[test]
fn unused_segments_may_have_been_returned() {
    let mut run = small_run();
    // With rounding, the second block has a segment of its own, which is then unused.
    run.alloc(2, 6, 40).alloc(3, 13, 40).free(3, 40).alloc_in_pool(4, 20, 60, 5);
    let rounding = scenario("roundup_power2_divisions:2", 15, Some(1024));
    assert_eq!(row_doubts(&run, rounding), [Doubt::UnknownRelease]);
}

#[test]
fn other_users_of_the_card_are_unknown() {
    let mut run = TestRun::default();
    run.alloc(1, 20, 20);
    assert_eq!(row_doubts(&run, scenario("", 15, Some(512))), [Doubt::OutsideUnknown]);
}

#[test]
fn limit_of_an_unknown_card_is_unknown() {
    let base = scenario("", 15, None);
    let limited = scenario("per_process_memory_fraction:0.5", 15, None);
    assert_eq!(row_doubts_beside(&small_run(), base.clone(), limited), [Doubt::LimitUnknown]);
    let whole = scenario("per_process_memory_fraction:1.0", 15, None);
    assert_eq!(row_doubts_beside(&small_run(), base, whole), []);
}

#[test]
fn release_refuses_a_setting() {
    let why = "torch 2.15 has no setting \"foo\"".to_owned();
    assert_eq!(row_doubts(&small_run(), scenario("foo:1", 15, Some(1024))), [Doubt::SettingRefused { why }]);
}

#[test]
fn pytorch_stops_with_an_internal_error() {
    let both = scenario("expandable_segments:True,max_split_size_mb:64", 4, Some(1024));
    let base = scenario("", 4, Some(1024));
    assert_eq!(row_doubts_beside(&small_run(), base, both), [Doubt::StopsPyTorch]);
}

#[test]
fn expandable_segments_cannot_be_shared_before_torch_2_5() {
    let of_release = |minor| {
        let mut run = TestRun::default();
        let segment = Event { addr: 100, size: 20 * MIB, ..Event::new(EventKind::SEGMENT_ALLOC) };
        run.sample(20, SAMPLE_SOURCE_RECORDER).push(segment, 1).alloc(1, 20, 20);
        run.push(Event { addr: 100, ..Event::new(EventKind::FOREIGN_EXPORT) }, 1);
        let expandable = scenario("expandable_segments:True", minor, Some(1024));
        row_doubts_beside(&run, scenario("", minor, Some(1024)), expandable)
    };
    assert_eq!((of_release(4), of_release(5)), (vec![Doubt::MemoryShared], vec![]));
}

#[test]
fn setting_is_not_modelled() {
    let settings = vec!["backend"];
    let other = scenario("backend:cudaMallocAsync", 15, Some(1024));
    assert_eq!(row_doubts(&small_run(), other), [Doubt::NotModelled { settings }]);
}

#[test]
fn garbage_collection_needs_a_known_limit() {
    let run = small_run();
    let collected = "garbage_collection_threshold:0.5";
    assert_eq!(row_doubts(&run, scenario(collected, 15, Some(1024))), [Doubt::FractionUnknown]);
    let limited = &format!("{collected},per_process_memory_fraction:0.5");
    assert_eq!(row_doubts(&run, scenario(limited, 15, Some(1024))), []);
}

#[test]
fn existing_blocks_are_the_state_to_begin_with() {
    let existing = |kind, addr_mib: u64, mib: u64| Event {
        addr: addr_mib * MIB,
        size: mib * MIB,
        flags: FLAG_EXISTED,
        ..Event::new(kind)
    };
    let mut run = TestRun::default();
    run.push(existing(EventKind::SEGMENT_ALLOC, 100, 40), 0);
    run.push(existing(EventKind::BLOCK_ALLOC, 110, 10), 0);
    assert_eq!(base_doubts(&run), [Doubt::NoHistory]);
    // A block fits behind the existing one, but not on both sides.
    run.sample(40, SAMPLE_SOURCE_RECORDER).alloc(1, 20, 40).alloc(2, 12, 52);
    let start = RecordedStart { blocks: 1, allocated_bytes: 10 * MIB, reserved_bytes: 40 * MIB };
    assert_eq!(base_doubts(&run), [Doubt::StartedLate(start)]);
    let on_card = |mib| {
        let (_, rows) = run.predict(scenario("", 15, Some(1024)), vec![scenario("", 15, Some(mib))]);
        rows[0].row.first_failure.as_ref().map(|failure| (failure.what, failure.request_bytes / MIB))
    };
    assert_eq!(on_card(52), None);
    assert_eq!(on_card(50), Some((FailedWhat::Block, 12)));
    assert_eq!(on_card(38), Some((FailedWhat::Start, 40)));
}

#[test]
fn releases_of_a_file_matter_where_their_rules_differ() {
    let run = small_run();
    let doubts_of = |setting: &str, oldest, newest| {
        let base = scenario("", newest, Some(1024));
        let versions: Vec<TorchVersion> = (oldest..=newest).filter_map(TorchVersion::new).collect();
        let rows = vec![scenario(setting, newest, Some(1024))];
        let whatif = WhatIf::new(0, base, rows, Vec::new()).with_releases(&versions);
        run.pass_to(whatif).rows.remove(0).doubts
    };
    assert_eq!(doubts_of("max_split_size_mb:64", 5, 7), []);
    assert_eq!(doubts_of("max_split_size_mb:64", 10, 11), [], "only pools with use_on_oom differ");
    let unknown = |oldest, newest| {
        let [oldest, newest] = [oldest, newest].map(|minor| TorchVersion::new(minor).expect("known"));
        vec![Doubt::ReleaseUnknown { oldest, newest }]
    };
    assert_eq!(doubts_of("max_split_size_mb:64", 12, 14), unknown(12, 14), "order of equal blocks");
    assert_eq!(
        doubts_of("max_non_split_rounding_mb:64,max_split_size_mb:64", 5, 7),
        unknown(5, 7),
        "a setting"
    );
    assert_eq!(doubts_of("roundup_power2_divisions:[256:1,>:8]", 2, 4), unknown(2, 4), "one division");
}

#[test]
fn refusals_of_an_unknown_card_are_followed() {
    let mut run = TestRun::default();
    run.alloc(1, 30, 30).free(1, 30);
    // Released for a second attempt at the request of the same stack.
    let segment = |kind| Event { addr: 7, size: 40 * MIB, ..Event::new(kind) };
    run.push(segment(EventKind::SEGMENT_FREE), 1).push(segment(EventKind::SEGMENT_ALLOC), 1).alloc(2, 40, 40);
    let (base, rows) = run.predict(scenario("", 11, None), vec![scenario("max_split_size_mb:64", 11, None)]);
    assert_eq!((base.doubts, base.row.peak_reserved_bytes), (vec![], Some(40 * MIB)));
    assert_eq!(rows[0].doubts, [Doubt::CardUnknown { refused: 1 }]);
}

#[test]
fn libraries_need_their_memory_too() {
    let mut run = small_run();
    run.free(1, 20);
    let call = Event { addr: 1 << 40, size: 64 * MIB, ..Event::new(EventKind::DEVICE_ALLOC) };
    run.push(call, 3).alloc(2, 20, 20);
    let (_, rows) = run.predict(scenario("", 15, Some(1024)), vec![scenario("", 15, Some(82))]);
    let failure = rows[0].row.first_failure.as_ref().expect("too small");
    assert_eq!((failure.what, failure.request_bytes), (FailedWhat::Library, 64 * MIB));
    assert_eq!(rows[0].row.ooms, 1);
}
