//! Apple GPUs: Metal's recommended size is not a capacity, and texts have no words of CUDA.

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::compare::{PinnedByLeaks, Profile, compare};
use gpumemtrace_replay::report::{Oom, OomCause, Quantity, RemedyKind};
use gpumemtrace_synthetic::{Synthetic, analyse_by_steps};

const MIB: u64 = 1 << 20;

/// A training that leaks beyond the reported size of its device and then fails an allocation.
fn report_beyond_device_size(mode: &str) -> Report {
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
fn metal_has_no_pressure_verdicts_and_no_oom_forecast() {
    let (cuda, metal) = (report_beyond_device_size("cuda"), report_beyond_device_size("metal"));
    assert!(kinds(&cuda).iter().any(|kind| kind == "high_pressure"), "{:?}", kinds(&cuda));
    let capacity_kinds = [
        "high_pressure",
        "cache_pressure",
        "fragmentation_like",
        "reserved_overhang",
        "hidden_memory",
        "transient_spike",
    ];
    assert!(kinds(&metal).iter().all(|kind| !capacity_kinds.contains(&&**kind)), "{:?}", kinds(&metal));
    assert!(kinds(&metal).iter().any(|kind| kind == "creep_confirmed"), "the leak is still one");
    let leaks = metal.leaks.as_deref().unwrap_or_default();
    assert!(
        !leaks.is_empty() && leaks.iter().all(|leak| leak.oom_step.is_none() && leak.steps_to_oom.is_none())
    );
    assert_eq!(metal.devices[0].total_bytes, Some(256 * MIB), "the recommended limit");
}

#[test]
fn oom_on_metal_names_mps_settings_and_no_free_bytes() {
    let metal = report_beyond_device_size("metal");
    let oom = &metal.oom.as_deref().unwrap_or_default()[0];
    assert_eq!(oom.device_free_bytes, None);
    assert_eq!(oom.cause, OomCause::Unknown);
    let has =
        |oom: &Oom, matches: fn(&RemedyKind) -> bool| oom.remedies.iter().any(|remedy| matches(&remedy.kind));
    let is_expandable = |kind: &RemedyKind| matches!(kind, RemedyKind::AllocatorSetting { .. });
    assert!(!has(oom, is_expandable));
    let limit = oom.remedies.iter().find(|remedy| matches!(remedy.kind, RemedyKind::RaiseMpsLimit));
    assert_eq!(limit.map(|remedy| remedy.works), Some(None), "the trace does not contain PyTorch's limit");
    let cuda = report_beyond_device_size("cuda");
    let of_cuda = &cuda.oom.as_deref().unwrap_or_default()[0];
    assert!(has(of_cuda, is_expandable));
}

#[test]
fn cuda_trace_has_no_mps_samples() {
    let cuda = report_beyond_device_size("cuda");
    assert!(cuda.torch_memory.is_empty());
    let text = serde_json::to_string(&cuda).unwrap_or_default();
    assert!(text.contains("\"schema\"") && !text.contains("\"torch_memory\":["));
}

/// One line leaks a block per step; another fills a cache within six steps.
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
fn growth_without_a_leak_is_separate_in_the_comparison_across_backends() {
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
