//! The totals beside a model that copies all live blocks at each new peak.

use std::collections::BTreeMap;

use gpumemtrace_format::ThreadId;
use gpumemtrace_replay::report::{BlockLayer, WalkedBlock};
use proptest::prelude::*;

use super::totals::{Amount, WindowRow, WindowTotals};

fn block(stack: u32, size_bytes: u64) -> WalkedBlock {
    WalkedBlock {
        layer: BlockLayer::Torch,
        device: 0,
        addr: 0,
        size_bytes,
        requested_bytes: None,
        stream: None,
        pool: None,
        stack,
        site: 0,
        time_ns: 0,
        step: 0,
        seq: 0,
        thread: ThreadId(1),
    }
}

/// Blocks with their keys: ten stacks have one.
fn key_of(block: &WalkedBlock) -> u32 {
    block.stack / 10
}

#[derive(Clone, Debug)]
enum LiveChange {
    Allocate {
        stack: u32,
        size_bytes: u64,
    },
    /// Frees one of the live blocks, if there is any.
    Free(usize),
}

fn changes() -> impl Strategy<Value = Vec<LiveChange>> {
    let size_bytes = prop_oneof![8 => 0..100u64, 1 => Just(u64::MAX / 1024)];
    let change = prop_oneof![
        3 => (0..40u32, size_bytes).prop_map(|(stack, size_bytes)| LiveChange::Allocate { stack, size_bytes }),
        2 => (0..64usize).prop_map(LiveChange::Free),
    ];
    prop::collection::vec(change, 0..200)
}

/// Copies the live blocks at each peak.
#[derive(Default)]
struct NaiveModel {
    first_stacks: BTreeMap<u32, u32>,
    live: Vec<WalkedBlock>,
    peak: Vec<WalkedBlock>,
    allocated: Vec<WalkedBlock>,
    last_step: Option<Vec<WalkedBlock>>,
}

fn total_bytes(blocks: &[WalkedBlock]) -> u64 {
    blocks.iter().map(|block| block.size_bytes).sum()
}

fn amount_of_key(blocks: &[WalkedBlock], key: u32) -> Amount {
    let mut sum = Amount::default();
    for block in blocks.iter().filter(|block| key_of(block) == key) {
        sum.bytes += block.size_bytes;
        sum.blocks += 1;
    }
    sum
}

impl NaiveModel {
    fn rows(&self) -> Vec<WindowRow<u32>> {
        let row = |(key, first_stack): (&u32, &u32)| WindowRow {
            key: *key,
            first_stack: *first_stack,
            peak: amount_of_key(&self.peak, *key),
            end: amount_of_key(&self.live, *key),
            last_step: self.last_step.as_ref().map(|blocks| amount_of_key(blocks, *key)),
            allocated: amount_of_key(&self.allocated, *key),
        };
        let has_blocks = |row: &WindowRow<u32>| {
            [row.peak, row.end, row.allocated, row.last_step.unwrap_or_default()]
                .iter()
                .any(|sum| sum.blocks > 0)
        };
        self.first_stacks.iter().map(row).filter(has_blocks).collect()
    }
}

proptest! {
    #[test]
    fn rows_equal_a_model(changes in changes(), begin in 0..250usize) {
        let (mut totals, mut model) = (WindowTotals::default(), NaiveModel::default());
        for (index, change) in changes.iter().enumerate() {
            if index == begin {
                totals.begin_window();
                model.peak = model.live.clone();
            }
            if index % 9 == 8 {
                totals.end_step();
                if index >= begin {
                    model.last_step = Some(model.live.clone());
                }
            }
            match change {
                LiveChange::Allocate { stack, size_bytes } => {
                    let block = block(*stack, *size_bytes);
                    totals.allocate(key_of(&block), &block);
                    model.first_stacks.entry(key_of(&block)).or_insert(*stack);
                    model.live.push(block);
                    if index >= begin {
                        model.allocated.push(block);
                    }
                }
                LiveChange::Free(_) if model.live.is_empty() => {}
                LiveChange::Free(at) => {
                    let block = model.live.swap_remove(at % model.live.len());
                    totals.free(key_of(&block), &block);
                }
            }
            if index >= begin && total_bytes(&model.live) > total_bytes(&model.peak) {
                model.peak = model.live.clone();
            }
        }
        if begin >= changes.len() {
            // No event is inside the window.
            model.peak = model.live.clone();
        }
        let mut rows = totals.into_rows();
        rows.sort_unstable_by_key(|row| row.key);
        prop_assert_eq!(rows, model.rows());
    }
}

#[test]
fn peak_of_an_empty_window_is_the_present_state() {
    let mut totals = WindowTotals::default();
    let (large, small) = (block(1, 100), block(2, 10));
    totals.allocate(1, &large);
    totals.allocate(2, &small);
    totals.free(1, &large);
    let present = Amount { bytes: 10, blocks: 1 };
    let row = WindowRow {
        key: 2,
        first_stack: 2,
        peak: present,
        end: present,
        last_step: None,
        allocated: Amount::default(),
    };
    assert_eq!(totals.into_rows(), [row]);
}
