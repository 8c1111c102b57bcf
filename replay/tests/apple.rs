//! Apple GPUs: what Metal recommends is no limit, and nothing is said in the words of another backend.

mod synthetic;

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Verdict;
use synthetic::Synthetic;

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

fn kinds(report: &Report) -> Vec<&str> {
    report.verdicts.iter().flatten().map(|verdict: &Verdict| verdict.kind).collect()
}

#[test]
fn more_than_metal_recommends_is_no_pressure_and_ends_in_no_known_step() {
    let (cuda, metal) = (beyond_what_is_there("cuda"), beyond_what_is_there("metal"));
    assert!(kinds(&cuda).contains(&"high_pressure"), "{:?}", kinds(&cuda));
    let of_room = [
        "high_pressure",
        "cache_pressure",
        "fragmentation_like",
        "reserved_overhang",
        "hidden_memory",
        "transient_spike",
    ];
    assert!(kinds(&metal).iter().all(|kind| !of_room.contains(kind)), "{:?}", kinds(&metal));
    assert!(kinds(&metal).contains(&"creep_confirmed"), "the leak is still one");
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
    assert!(oom.why.contains("by which limit it was refused is not known"), "{}", oom.why);
    let actions: Vec<&str> = oom.remedies.iter().map(|remedy| &*remedy.action).collect();
    let all = actions.join("; ");
    assert!(
        all.contains("torch.mps.empty_cache()") && all.contains("PYTORCH_MPS_HIGH_WATERMARK_RATIO"),
        "{all}"
    );
    assert!(
        !all.contains("cuda") && !all.contains("PYTORCH_ALLOC_CONF") && !oom.why.contains("driver"),
        "{all}"
    );
    let limit =
        oom.remedies.iter().find(|remedy| remedy.action.contains("WATERMARK")).map(|remedy| remedy.works);
    assert_eq!(limit, Some(None), "the trace does not tell");
    let cuda = beyond_what_is_there("cuda");
    let of_cuda = &cuda.oom.as_deref().unwrap_or_default()[0];
    assert!(of_cuda.remedies.iter().any(|remedy| remedy.action.contains("torch.cuda.empty_cache()")));
    assert!(of_cuda.remedies.iter().any(|remedy| remedy.action.contains("PYTORCH_ALLOC_CONF")));
}

#[test]
fn a_trace_of_cuda_has_nothing_of_samples() {
    let cuda = beyond_what_is_there("cuda");
    assert!(cuda.torch_memory.is_empty());
    let text = serde_json::to_string(&cuda).unwrap_or_default();
    assert!(text.contains("\"schema\"") && !text.contains("\"torch_memory\":["));
}
