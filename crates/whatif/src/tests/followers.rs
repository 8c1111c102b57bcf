//! Rows share a prediction as long as their settings make no difference.

use gpumemtrace_format::event::SAMPLE_SOURCE_RECORDER;
use gpumemtrace_format::{Event, EventKind};

use super::equal_steps::Numbers;
use super::run::{MIB, TestRun, scenario, walked};
use crate::{Scenario, WhatIf};

const SETTINGS: [&str; 7] = [
    "max_split_size_mb:256",
    "max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:8,max_split_size_mb:128",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:64",
];
/// Settings that do what the defaults do, and that share no prediction.
const ALONE: &str = "garbage_collection_threshold:0.9";

/// A run that allocates blocks up to `most_mib`, frees them, and is refused memory now and then.
fn random_run(numbers: &mut Numbers, most_mib: u64) -> TestRun {
    let mut run = TestRun::default();
    let (mut live, mut pending, mut reserved_mib) = (Vec::new(), Vec::new(), 20);
    run.sample(20, SAMPLE_SOURCE_RECORDER);
    for addr in 1..120 {
        match numbers.below(60) {
            0 => _ = run.sample(20 + numbers.below(400), SAMPLE_SOURCE_RECORDER),
            1 => {
                let size = (1 + numbers.below(100)) * MIB;
                run.push(Event { addr: addr << 40, size, ..Event::new(EventKind::DEVICE_ALLOC) }, 2);
            }
            2 => _ = run.push(Event { size: 20 * MIB, ..Event::new(EventKind::SEGMENT_FREE) }, 3),
            3 => _ = run.fail(most_mib, reserved_mib),
            4 => _ = run.alloc_in_pool(addr, 1 + numbers.below(most_mib), reserved_mib, 7),
            5..25 if !live.is_empty() => {
                let freed = live.swap_remove(numbers.below(live.len() as u64) as usize);
                if numbers.below(5) == 0 {
                    run.begin_free(freed, reserved_mib);
                    pending.push(freed);
                } else {
                    run.free(freed, reserved_mib);
                }
            }
            25..30 if !pending.is_empty() => _ = run.complete_free(pending.remove(0)),
            _ => {
                reserved_mib += 2 * numbers.below(10);
                run.alloc(addr, 1 + numbers.below(most_mib), reserved_mib);
                live.push(addr);
            }
        }
    }
    run
}

#[test]
fn shared_predictions_are_those_of_each_row_alone() {
    let numbers = &mut Numbers(3);
    for case in 0..240 {
        let most_mib = [4, 15, 60, 300][case % 4];
        let card_mib = [None, Some(700), Some(1 << 16)][case / 4 % 3];
        let minor = [4, 9, 15][case / 12 % 3];
        let run = random_run(numbers, most_mib);
        let rows: Vec<Scenario> = SETTINGS.map(|setting| scenario(setting, minor, card_mib)).to_vec();
        let (_, shared) = run.predict(scenario("", minor, card_mib), rows.clone());
        for row in rows {
            let setting = row.setting.clone();
            let (_, alone) = run.predict(scenario(ALONE, minor, card_mib), vec![row]);
            let shared = shared.iter().find(|shared| shared.row.setting == setting).expect("a row");
            let as_text = |row| format!("{row:#?}");
            assert_eq!(as_text(shared), as_text(&alone[0]), "case {case}, {setting}");
        }
    }
}

#[test]
fn base_is_beyond_a_peak_once_it_reserved_more_or_failed() {
    let mut run = TestRun::default();
    run.alloc(1, 30, 30).alloc(2, 50, 80);
    let pass = |card_mib| {
        let mut whatif = WhatIf::new(0, scenario("", 15, Some(card_mib)), Vec::new(), Vec::new());
        for (event, stack) in run.events() {
            whatif.on_event(&walked(event, 0, *stack));
        }
        whatif.go_on_to(1);
        whatif
    };
    assert!(pass(100).is_base_beyond(79 * MIB));
    assert!(!pass(100).is_base_beyond(80 * MIB));
    assert!(pass(40).is_base_beyond(80 * MIB), "the second block gets no memory");
}
