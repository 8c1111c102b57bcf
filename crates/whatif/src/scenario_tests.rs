//! Whether the addresses of segments matter.

use super::*;
use crate::device::AddressOrder;
use crate::prediction::PredictionInput;
use crate::requests::RecordedBlock;
use crate::requests::{Request, TimedRequest};

/// A program that allocates and frees blocks of all sizes on two streams.
fn random_program(requests: u64, mut seed: u64) -> Vec<PredictionInput> {
    let mut random = |limit: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % limit
    };
    let mut live = Vec::new();
    let mut inputs = Vec::new();
    for number in 0..requests {
        let request = if live.len() > 40 || (!live.is_empty() && random(3) == 0) {
            let block = live.swap_remove(random(live.len() as u64) as usize);
            Request::Free { block: Some(block), is_immediate: true }
        } else if random(500) == 0 {
            Request::ReleaseCached { only_pool: None }
        } else {
            let block = RecordedBlock(number as u32);
            live.push(block);
            // Few different sizes, so that free blocks are often equal.
            let unit_bytes = [100 << 10, 1 << 20, 3 << 20, 11 << 20][random(4) as usize];
            let requested_bytes = unit_bytes * (1 + random(4));
            Request::Alloc { block, requested_bytes, stream: random(2), pool: 0 }
        };
        let timed = TimedRequest {
            request,
            reserved_bytes: None,
            time_ns: number,
            step: 0,
            stack: 0,
            was_refused: false,
        };
        inputs.push(PredictionInput::Request(timed));
    }
    inputs
}

/// The statistics that two orders of addresses must share.
const COMPARED: &[&str] = &[
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "reserved_bytes.all.current",
    "segment.all.allocated",
    "num_alloc_retries",
    "num_ooms",
];

/// Whether the addresses decided with one of two orders, and whether both gave the same answer.
fn try_both_orders(scenario: &Scenario, program: &[PredictionInput]) -> (bool, bool) {
    let orders = [AddressOrder::AsRecorded, AddressOrder::Random { seed: 1 }];
    let [ascending, random] = orders.map(|order| {
        let mut prediction = scenario.begin(order);
        prediction.go_on(program);
        prediction
    });
    let is_same = ascending.stop == random.stop
        && COMPARED.iter().all(|name| ascending.stat(name) == random.stat(name));
    (ascending.did_address_decide() || random.did_address_decide(), is_same)
}

#[test]
fn orders_of_addresses_give_one_answer_unless_they_decide() {
    let programs: Vec<_> = (1..=40).map(|seed| random_program(60 * seed, seed)).collect();
    let settings = [
        "",
        "max_split_size_mb:32",
        "roundup_power2_divisions:4",
        "expandable_segments:True",
        "garbage_collection_threshold:0.05",
    ];
    for version in TorchVersion::all() {
        let (mut undecided, mut decided, mut different) = (0, 0, 0);
        for setting in settings {
            let scenario = Scenario::new(setting, version, Some(2 << 30)).expect("accepted");
            for program in &programs {
                let (did_decide, is_same) = try_both_orders(&scenario, program);
                assert!(did_decide || is_same, "{setting:?} in {version}");
                undecided += u32::from(!did_decide);
                decided += u32::from(did_decide);
                different += u32::from(!is_same);
            }
        }
        assert!(undecided > 0, "{version}");
        // Since 2.12 a number decides.
        assert_eq!(decided > 0 && different > 0, version.minor() < 12, "{version}: {decided}, {different}");
    }
}
