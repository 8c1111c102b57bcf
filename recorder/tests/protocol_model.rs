//! The protocol of rings, owners, start and end, in all orders that memory and scheduler allow (loom), and broken line by
//! line: of each ordering and each store, some model must notice that it is wrong.
//!
//! What loom cannot say: `membarrier` is an asymmetric fence, modelled as a whole fence on both sides; that a thread which
//! the kernel says is gone has made all its stores, modelled as a flag; a kill, which `ring_kill.rs` does.
#![allow(missing_docs, unreachable_pub, reason = "the protocol's files are private to the recorder")]
#![allow(clippy::print_stdout, reason = "says how much was tried")]
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "loom's threads run in turn, and its cells say nothing of threads"
)]

#[path = "protocol_model/atomics.rs"]
mod atomics;
#[path = "protocol_model/models.rs"]
mod models;
#[path = "../src/ring/protocol/mod.rs"]
#[allow(dead_code, reason = "each model uses its part")]
mod protocol;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use atomics::{Breakage, SourceSite, forget_seen, seen, set_broken};
use models::MODELS;

fn explore(model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 2_000;
    builder.check(model);
}

fn play(name: &str) {
    let (_, model) = MODELS.iter().find(|(known, _)| *known == name).expect("a model of this name");
    let begin = std::time::Instant::now();
    explore(*model);
    println!("{name}: {:?}", begin.elapsed());
}

#[test]
fn each_record_arrives_whole_once_and_in_order() {
    play("ring");
}

#[test]
fn a_full_ring_waits_and_overwrites_nothing() {
    play("full ring");
}

#[test]
fn a_call_in_flight_is_not_taken_and_its_completion_is_not_lost() {
    play("in flight");
}

#[test]
fn a_ring_goes_from_thread_to_thread_with_all_that_belongs_to_it() {
    play("owners");
}

#[test]
fn after_the_end_nobody_writes() {
    play("ending");
}

#[test]
fn in_a_pause_nobody_writes_and_after_it_everybody_does() {
    play("pausing");
    play("end in a pause");
}

#[test]
fn what_is_taken_at_the_end_is_what_stays() {
    play("closing");
}

#[test]
fn a_recording_starts_once_and_does_not_come_back() {
    play("start");
    play("start in vain");
}

#[test]
#[should_panic(expected = "accesses")]
fn a_record_that_was_not_waited_for_is_overwritten() {
    explore(models::overfull_ring);
}

#[test]
#[should_panic(expected = "accesses")]
fn an_end_that_does_not_wait_meets_a_writer() {
    explore(models::hasty_ending);
}

/// Lines that may be broken without harm: what they tell may be heard of later, or only by who reads what a killed process left
/// (`ring_kill.rs`).
const HARMLESS: &[(&str, Breakage)] = &[
    ("self.0[index].store(FREE, Ordering::Release);", Breakage::HoldBack),
    ("self.0[index].store(if is_ready { thread } else { FREE }, Ordering::Release);", Breakage::HoldBack),
    ("self.state.swap(ENDED, Ordering::Release);", Breakage::Weaken),
    ("self.running.store(std::ptr::null_mut(), Ordering::Relaxed);", Breakage::HoldBack),
    ("self.tail().store(number, Ordering::Release);", Breakage::HoldBack),
    ("self.tail_again().store(number, Ordering::Relaxed);", Breakage::HoldBack),
    ("self.slot(number)[N - 1].store(last, Ordering::Relaxed);", Breakage::HoldBack),
];

#[test]
fn each_line_of_the_protocol_is_needed() {
    let mut uses: BTreeMap<_, Vec<fn()>> = BTreeMap::new();
    for (_, model) in MODELS {
        forget_seen();
        explore(*model);
        for part in seen().into_iter().filter(|((file, ..), _)| file.contains("src/ring/protocol")) {
            uses.entry(part).or_default().push(*model);
        }
    }
    let mut unnoticed = BTreeSet::new();
    for (broken, models) in &uses {
        let is_noticed = models.iter().any(|model| {
            set_broken(Some(*broken));
            catch_unwind(AssertUnwindSafe(|| explore(*model))).is_err()
        });
        set_broken(None);
        if !is_noticed {
            unnoticed.insert((line_of(broken.0), broken.1));
        }
    }
    println!("{} ways to break the protocol, {} of them harmless", uses.len(), HARMLESS.len());
    let harmless = HARMLESS.iter().map(|(line, how)| ((*line).to_owned(), *how)).collect();
    assert_eq!(unnoticed, harmless, "no model notices when these are broken (left), these may be (right)");
}

/// The line itself: numbers change.
fn line_of((file, line, _): SourceSite) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = [root.join(file), file.into()]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .expect("the protocol's source");
    text.lines().nth(line as usize - 1).unwrap_or_default().trim().to_owned()
}
