//! Where the addresses of segments do not matter, one prediction per scenario suffices.

use super::*;
use crate::device::AddressOrder;
use crate::prediction::PredictionInput;
use crate::requests::{RecordedAddr, Request, TimedRequest};
use crate::rows::is_same_answer;

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
            let addr = live.swap_remove(random(live.len() as u64) as usize);
            Request::Free { addr, is_immediate: true }
        } else if random(500) == 0 {
            Request::ReleaseCached { only_pool: None }
        } else {
            let addr = RecordedAddr(number << 9);
            live.push(addr);
            // Few different sizes, so that free blocks are often equal.
            let unit_bytes = [100 << 10, 1 << 20, 3 << 20, 11 << 20][random(4) as usize];
            let requested_bytes = unit_bytes * (1 + random(4));
            Request::Alloc { addr, requested_bytes, stream: random(2), pool: 0 }
        };
        let timed = TimedRequest { request, reserved_bytes: None, time_ns: number, step: 0, stack: 0 };
        inputs.push(PredictionInput::Request(timed));
    }
    inputs
}

/// Whether both orders of addresses lead to the same answer.
fn is_order_irrelevant(setting: &str, version: TorchVersion, program: &[PredictionInput]) -> bool {
    let scenario = Scenario::new(setting, version, None).expect("accepted");
    let [ascending, descending] = [AddressOrder::AsRecorded, AddressOrder::Descending].map(|order| {
        let mut prediction = scenario.begin(order);
        prediction.go_on(program);
        prediction
    });
    is_same_answer(&ascending, &descending)
}

#[test]
fn two_orders_of_addresses_are_tried_where_they_matter() {
    let programs: Vec<_> = (1..=8).map(|seed| random_program(3000, seed)).collect();
    let is_same = |setting: &str, version| {
        programs.iter().filter(|program| is_order_irrelevant(setting, version, program)).count()
    };
    for version in TorchVersion::all() {
        for setting in ["", "max_split_size_mb:32", "roundup_power2_divisions:4"] {
            let scenario = Scenario::new(setting, version, None).expect("accepted");
            if scenario.begin_all().len() == 1 {
                assert_eq!(is_same(setting, version), programs.len(), "{setting:?} in {version}");
            } else {
                assert!(is_same(setting, version) < programs.len(), "{setting:?} in {version}");
            }
        }
    }
    let of_version = |minor| Scenario::new("", TorchVersion::new(minor).expect("known"), None);
    assert_eq!(of_version(11).expect("accepted").begin_all().len(), 2);
    assert_eq!(of_version(12).expect("accepted").begin_all().len(), 1);
}
