//! Model-checks the protocol of rings, ownership, start and shutdown in all orders that the memory
//! model and the scheduler allow (loom). Then breaks each ordering and each store once: some model
//! must fail.
//!
//! Limits of the models: `membarrier` is an asymmetric fence, modelled as a full fence on both
//! sides. An ended thread has made all its stores, modelled as a flag. Kills are tested by
//! `ring_kill.rs`.
#![allow(missing_docs, unreachable_pub, reason = "the protocol's files are private to the recorder")]
#![allow(clippy::print_stdout, reason = "prints the number of breakages")]
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "loom's threads run in turn, and its cells are not marked as shared"
)]

#[path = "protocol_model/atomics.rs"]
mod atomics;
#[path = "protocol_model/models/mod.rs"]
mod models;
#[path = "../src/ring/protocol/mod.rs"]
#[allow(dead_code, reason = "each model uses a part")]
mod protocol;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use atomics::{Breakage, SourceSite, clear_possible_breakages, possible_breakages, set_broken};
use models::MODELS;

fn explore(model: fn()) {
    let mut builder = loom::model::Builder::new();
    // `scripts/nightly` raises both through LOOM_MAX_PREEMPTIONS and LOOM_MAX_BRANCHES.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = builder.max_branches.max(2_000);
    builder.check(model);
}

fn run_model(name: &str) {
    let (_, model) = MODELS.iter().find(|(known, _)| *known == name).expect("a model of this name");
    let begin = std::time::Instant::now();
    explore(*model);
    println!("{name}: {:?}", begin.elapsed());
}

#[test]
fn record_arrives_complete_once_and_in_order() {
    run_model("ring");
}

#[test]
fn full_ring_waits_and_overwrites_no_record() {
    run_model("full ring");
}

#[test]
fn call_in_flight_is_not_drained_and_its_completion_is_not_lost() {
    run_model("in flight");
}

#[test]
fn ring_passes_between_threads_with_its_state() {
    run_model("ownership");
}

#[test]
fn no_hook_stores_after_the_end() {
    run_model("shutdown");
}

#[test]
fn no_hook_stores_during_a_pause_and_no_event_is_lost() {
    run_model("pause");
    run_model("end in a pause");
}

#[test]
fn records_drained_at_the_end_are_final() {
    run_model("closing");
}

#[test]
fn recording_starts_once_and_does_not_restart() {
    run_model("start");
    run_model("failed start");
}

#[test]
#[should_panic(expected = "accesses")]
fn model_detects_an_overwritten_record() {
    explore(models::overfull_ring);
}

#[test]
#[should_panic(expected = "accesses")]
fn model_detects_an_end_that_does_not_wait() {
    explore(models::hasty_shutdown);
}

/// Lines that may be broken without harm: their effect may come later, or matters only to a reader
/// of the files of a killed process (`ring_kill.rs`).
const HARMLESS: &[(&str, Breakage)] = &[
    ("self.0[index].store(FREE, Ordering::Release);", Breakage::DelayStore),
    ("self.0[index].store(if is_ready { thread } else { FREE }, Ordering::Release);", Breakage::DelayStore),
    ("self.state.swap(ENDED, Ordering::Release);", Breakage::Weaken),
    ("self.running.store(std::ptr::null_mut(), Ordering::Relaxed);", Breakage::DelayStore),
    ("self.tail().store(number, Ordering::Release);", Breakage::DelayStore),
    ("self.tail_copy().store(number, Ordering::Relaxed);", Breakage::DelayStore),
    ("self.slot(number)[N - 1].store(last, Ordering::Relaxed);", Breakage::DelayStore),
];

#[test]
fn every_line_of_the_protocol_is_needed() {
    let mut uses: BTreeMap<_, Vec<fn()>> = BTreeMap::new();
    for (_, model) in MODELS {
        clear_possible_breakages();
        explore(*model);
        for breakage in
            possible_breakages().into_iter().filter(|((file, ..), _)| file.contains("src/ring/protocol"))
        {
            uses.entry(breakage).or_default().push(*model);
        }
    }
    let mut undetected = BTreeSet::new();
    for (broken, models) in &uses {
        let is_detected = models.iter().any(|model| {
            set_broken(Some(*broken));
            catch_unwind(AssertUnwindSafe(|| explore(*model))).is_err()
        });
        set_broken(None);
        if !is_detected {
            undetected.insert((line_of(broken.0), broken.1));
        }
    }
    println!("{} ways to break the protocol, {} of them harmless", uses.len(), HARMLESS.len());
    let harmless = HARMLESS.iter().map(|(line, how)| ((*line).to_owned(), *how)).collect();
    assert_eq!(
        undetected, harmless,
        "no model fails when these lines are broken (left), as expected (right)"
    );
}

/// The source text of a site, because line numbers change.
fn line_of((file, line, _): SourceSite) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = [root.join(file), file.into()]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .expect("the protocol's source");
    text.lines().nth(line as usize - 1).unwrap_or_default().trim().to_owned()
}
