//! Apple GPUs: what Metal recommends is no limit, and nothing is said in the words of another backend.

mod synthetic;

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::compare::PinnedByLeaks;
use gpumemtrace_replay::compare::Profile;
use gpumemtrace_replay::compare::compare;
use gpumemtrace_replay::report::{Oom, OomCause, Quantity, RemedyKind};
use synthetic::{Synthetic, analyse_by_steps};

const MIB: u64 = 1 << 20;

/// A training that leaks, and holds more than the device is said to have; then it runs out of memory.
fn beyond_what_is_there(mode: &str) -> Report {
    let mut run = Synthetic::train(40, |run, _, train| {
        let kept = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(kept, 32 * MIB);
    });
    let line = run.frame(NodeId::NONE, "/work/train.py", "big", 77);
    run.oom(line, 64 * MIB);
    run.meta.set_number("device.0.total_bytes", 256 * MIB);
    run.meta.set_list("mode", vec!["preload".to_owned(), mode.to_owned()]);
    run.report()
}

fn kinds(report: &Report) -> Vec<String> {
    let verdicts = serde_json::to_value(&report.verdicts).expect("JSON");
    let verdicts = verdicts.as_array().into_iter().flatten();
    verdicts.map(|verdict| verdict["kind"].as_str().expect("a word").to_owned()).collect()
}

#[test]
fn more_than_metal_recommends_is_no_pressure_and_ends_in_no_known_step() {
    let (cuda, metal) = (beyond_what_is_there("cuda"), beyond_what_is_there("metal"));
    assert!(kinds(&cuda).iter().any(|kind| kind == "high_pressure"), "{:?}", kinds(&cuda));
    let of_room = [
        "high_pressure",
        "cache_pressure",
        "fragmentation_like",
        "reserved_overhang",
        "hidden_memory",
        "transient_spike",
    ];
    assert!(kinds(&metal).iter().all(|kind| !of_room.contains(&&**kind)), "{:?}", kinds(&metal));
    assert!(kinds(&metal).iter().any(|kind| kind == "creep_confirmed"), "the leak is still one");
    let leaks = metal.leaks.as_deref().unwrap_or_default();
    assert!(
        !leaks.is_empty() && leaks.iter().all(|leak| leak.oom_step.is_none() && leak.steps_to_oom.is_none())
    );
    assert_eq!(metal.devices[0].total_bytes, Some(256 * MIB), "it is told as what it is");
}

#[test]
fn out_of_memory_names_mps_and_claims_no_size() {
    let metal = beyond_what_is_there("metal");
    let oom = &metal.oom.as_deref().unwrap_or_default()[0];
    assert_eq!(oom.device_free_bytes, None);
    assert_eq!(oom.cause, OomCause::Unknown);
    let has =
        |oom: &Oom, is_it: fn(&RemedyKind) -> bool| oom.remedies.iter().any(|remedy| is_it(&remedy.kind));
    let is_expandable = |kind: &RemedyKind| matches!(kind, RemedyKind::ExpandableSegments);
    assert!(!has(oom, is_expandable));
    let limit = oom.remedies.iter().find(|remedy| matches!(remedy.kind, RemedyKind::RaiseMpsLimit));
    assert_eq!(limit.map(|remedy| remedy.works), Some(None), "the trace does not contain PyTorch's limit");
    let cuda = beyond_what_is_there("cuda");
    let of_cuda = &cuda.oom.as_deref().unwrap_or_default()[0];
    assert!(has(of_cuda, is_expandable));
}

#[test]
fn a_trace_of_cuda_has_nothing_of_samples() {
    let cuda = beyond_what_is_there("cuda");
    assert!(cuda.torch_memory.is_empty());
    let text = serde_json::to_string(&cuda).unwrap_or_default();
    assert!(text.contains("\"schema\"") && !text.contains("\"torch_memory\":["));
}

/// One line leaks a block each step; another fills a cache in six steps, and no more.
fn leaking_and_filling(mode: &str) -> Synthetic {
    let mut run = Synthetic::train(60, |run, step, train| {
        let kept = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(kept, 2 * MIB);
        let cache = run.frame(train, "/work/train.py", "fill", 50);
        if (10..16).contains(&step) {
            run.alloc(cache, 4 * MIB);
        }
    });
    run.meta.set_list("mode", vec!["preload".to_owned(), mode.to_owned()]);
    run
}

#[test]
fn what_grows_and_does_not_leak_is_told_beside_what_leaks() {
    let [cuda, metal] =
        ["cuda", "metal"].map(|mode| analyse_by_steps(&leaking_and_filling(mode).file(1000)).expect("steps"));
    let profiles = [&cuda, &metal].map(|(analysis, amounts)| Profile::new(analysis, amounts));
    let comparison = compare(&profiles[0], &profiles[1]);
    let across = comparison.across_backends.expect("two backends");
    let [Some(one), Some(other)] = &across.devices[0] else { panic!("one device each") };
    for side in [one, other] {
        let PinnedByLeaks { first_step: Some(first), last_step: Some(last), .. } = side else {
            panic!("steps")
        };
        let filled = 6.0 * 4.0 * MIB as f64 / (last - first) as f64;
        assert_eq!(side.leaked_bytes_per_step, Some(Quantity(2.0 * MIB as f64)));
        assert_eq!(side.other_growth_bytes_per_step, Some(Quantity(filled)));
        let (Some(pinned), Some(ratio)) = (side.pinned_bytes_per_step, side.amplification) else {
            panic!("known")
        };
        assert_eq!(ratio, Quantity(pinned.0 / (2.0 * MIB as f64)));
    }
    let same = compare(&profiles[0], &profiles[0]);
    assert!(same.across_backends.is_none() && !same.differs);
}
