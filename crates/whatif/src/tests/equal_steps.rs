//! Steps that make equal requests and leave every allocator as they found it.

use super::run::{MIB, TestRun, scenario, walked};
use crate::{Scenario, WhatIf};

const SETTINGS: [&str; 4] = [
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
];

/// Pseudo-random numbers below a limit.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// Blocks that stay, and then steps that each allocate the same and free it in the same order.
fn steps_of_a_run(numbers: &mut Numbers, steps: usize) -> Vec<TestRun> {
    let mut weights = TestRun::default();
    for addr in 1..=numbers.below(30) {
        weights.alloc(addr, 1 + numbers.below(40), 0);
    }
    for addr in 1..=numbers.below(10) {
        weights.free(addr, 0);
    }
    let mut step = TestRun::default();
    let mut live: Vec<u64> = Vec::new();
    for addr in 100..100 + 10 + numbers.below(60) {
        step.alloc(addr, 1 + numbers.below(60), 0);
        live.push(addr);
        while live.len() > 5 || numbers.below(3) == 0 && !live.is_empty() {
            step.free(live.remove(numbers.below(live.len() as u64) as usize), 0);
        }
    }
    for addr in live {
        step.free(addr, 0);
    }
    [vec![weights], vec![step; steps]].concat()
}

/// The peaks by setting, and the number of steps after which no allocator changes.
fn peaks(minor: u32, steps: &[TestRun], stops: bool) -> (Vec<(String, Option<u64>)>, Option<usize>) {
    let others: Vec<Scenario> = SETTINGS.map(|setting| scenario(setting, minor, None)).to_vec();
    let mut whatif = WhatIf::new(0, scenario("", minor, None), others, Vec::new());
    let mut settled = None;
    for (step, number) in steps.iter().zip(0..) {
        if number > 1 && whatif.end_equal_step() && stops {
            settled = Some(number);
            break;
        }
        for (event, stack) in step.events() {
            whatif.on_event(&walked(event, number as u64, *stack));
        }
    }
    whatif.go_on_to(steps.len() as u64);
    let found = whatif.finish();
    let mut all: Vec<_> = [found.base].into_iter().chain(found.rows).map(|row| row.row).collect();
    all.sort_by(|one, other| one.setting.cmp(&other.setting));
    let curves = all.iter().map(|row| row.reserved_curve.as_ref().map(|curve| curve.peak_bytes.len()));
    assert!(curves.flatten().all(|spans| spans == steps.len() + 1), "curves last to the end");
    (all.into_iter().map(|row| (row.setting, row.peak_reserved_bytes)).collect(), settled)
}

#[test]
fn stopping_at_an_unchanged_state_changes_no_peak() {
    let mut stopped = 0;
    for seed in 0..60 {
        for minor in [9, 15] {
            let steps = steps_of_a_run(&mut Numbers(seed), 25);
            let (whole, _) = peaks(minor, &steps, false);
            let (part, settled) = peaks(minor, &steps, true);
            assert_eq!(whole, part, "seed {seed}, torch 2.{minor}, stopped after {settled:?}");
            stopped += usize::from(settled.is_some());
        }
    }
    assert!(stopped > 90, "{stopped} of 120 runs settle");
}

#[test]
fn steps_that_keep_a_block_never_end() {
    let mut steps: Vec<TestRun> = vec![TestRun::default()];
    for number in 0..20 {
        let mut step = TestRun::default();
        step.alloc(1000 + number, 3, 0).alloc(1, 7, 0).free(1, 0);
        steps.push(step);
    }
    let (peaks, settled) = peaks(15, &steps, true);
    assert_eq!(settled, None);
    assert!(peaks.iter().all(|(_, peak)| *peak >= Some(60 * MIB)), "{peaks:?}");
}
