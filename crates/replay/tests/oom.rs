//! Growth towards an out-of-memory error: which lines are named, by how much, and what helps.

use gpumemtrace_format::{Detail, Event, EventKind, NodeId, TrackerState};
use gpumemtrace_replay::report::{
    FirstOom, Oom, OomCause, OomGrowthPattern, OomPredictions, RemedyKind, SettingVerdict, VerdictEvidence,
};
use gpumemtrace_replay::{AnalysisOptions, TimeSpec, report};
use gpumemtrace_synthetic::{Synthetic, TORCH, analyse_part};

const MIB: u64 = 1 << 20;

fn last_oom(run: &Synthetic) -> Oom {
    run.report().oom.expect("the section").pop().expect("an error")
}

/// Line, grown bytes and pattern of each row.
fn rows(oom: &Oom) -> Vec<(Option<u32>, u64, OomGrowthPattern)> {
    oom.growth.iter().map(|line| (line.site.line, line.bytes, line.pattern)).collect()
}

/// A frame of the validation loop, in line 88, and the model's line that it calls.
fn validation_frames(run: &mut Synthetic) -> (NodeId, NodeId) {
    let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 97);
    let validate = run.frame(at, "/work/train.py", "validate", 88);
    let call = run.frame(validate, &format!("{TORCH}nn/modules/module.py"), "Module._call_impl", 200);
    (validate, run.frame(call, "/work/model.py", "Net.forward", 22))
}

/// Runs the model in rounds; each keeps its activation and a small loss.
fn validate(run: &mut Synthetic, rounds: u64) {
    let (validate, forward) = validation_frames(run);
    for _ in 0..rounds {
        run.alloc(forward, 64 * MIB);
        let temporary = run.alloc(forward, 8 * MIB);
        run.alloc(validate, 512);
        run.release(temporary, validate);
    }
}

fn fail(run: &mut Synthetic, bytes: u64) {
    let (_, forward) = validation_frames(run);
    run.meta.set_number("device.0.total_bytes", run.reserved + MIB);
    run.oom(forward, bytes);
}

#[test]
fn growth_after_the_last_step_is_named_at_its_calling_line() {
    let mut run = Synthetic::train(15, |_, _, _| {});
    validate(&mut run, 12);
    fail(&mut run, 64 * MIB);
    let oom = last_oom(&run);
    assert_eq!(rows(&oom), [(Some(88), 12 * (64 * MIB + 512), OomGrowthPattern::Repeated)]);
    let line = &oom.growth[0];
    assert_eq!((line.blocks, line.moments, line.held_bytes), (24, 12, line.bytes));
    assert_eq!((line.first_step, line.frees_older_blocks), (Some(15), Some(false)));
    assert!(!oom.unchanged.iter().any(|one| one.site.line == Some(88) || one.site.line == Some(22)));
}

#[test]
fn growth_is_the_same_with_since_at_the_last_step() {
    let mut run = Synthetic::train(15, |_, _, _| {});
    validate(&mut run, 12);
    fail(&mut run, 64 * MIB);
    let options = AnalysisOptions { since: Some(TimeSpec::Step(15)), ..AnalysisOptions::default() };
    let part = report(&[analyse_part(&run.file(1000), options)], &[]).oom.expect("the section");
    assert_eq!(rows(&part[0]), rows(&last_oom(&run)));
}

#[test]
fn growth_of_several_phases_sums_up() {
    let mut run = Synthetic::train(60, |run, step, _| {
        if step % 15 == 14 {
            validate(run, 1);
        }
    });
    fail(&mut run, 64 * MIB);
    let oom = last_oom(&run);
    assert_eq!(rows(&oom), [(Some(88), 4 * (64 * MIB + 512), OomGrowthPattern::Repeated)]);
    assert_eq!(oom.growth[0].moments, 4);
}

#[test]
fn growth_without_steps_excludes_the_set_up() {
    let mut run = Synthetic::new();
    let build = run.frame(NodeId::NONE, "/work/serve.py", "load", 10);
    for _ in 0..20 {
        run.alloc(build, 16 * MIB);
    }
    let serve = run.frame(NodeId::NONE, "/work/serve.py", "answer", 30);
    let cache = run.frame(NodeId::NONE, "/work/serve.py", "answer", 31);
    for request in 0..200 {
        // No constant period.
        for piece in 0..=request * 7919 % 13 {
            let work = run.alloc(serve, MIB * (1 + piece % 3));
            run.release(work, serve);
        }
        run.alloc(cache, (1 + request * 31 % 5) * 512);
    }
    run.meta.set_number("device.0.total_bytes", run.reserved + MIB);
    run.oom(serve, 64 * MIB);
    let oom = last_oom(&run);
    let lines: Vec<_> = oom.growth.iter().map(|line| line.site.line).collect();
    assert_eq!(lines, [Some(31)]);
    assert_eq!(oom.unchanged[0].site.line, Some(10));
    assert_eq!(oom.unchanged[0].bytes, 320 * MIB);
}

#[test]
fn growth_never_exceeds_what_the_line_holds() {
    // A line keeps every block for 30 steps, then frees all but the last 3.
    let mut kept = Vec::new();
    let mut run = Synthetic::train(40, |run, step, train| {
        let line = run.frame(train, "/work/train.py", "log", 31);
        kept.push(run.alloc(line, 20 * MIB));
        if step == 30 {
            for addr in kept.drain(..kept.len() - 3) {
                run.release(addr, line);
            }
        }
    });
    fail(&mut run, 64 * MIB);
    let oom = last_oom(&run);
    let [line] = &oom.growth[..] else { panic!("{:?}", oom.growth) };
    assert_eq!((line.site.line, line.bytes, line.held_bytes), (Some(31), 180 * MIB, 240 * MIB));
}

#[test]
fn temporary_of_a_leaking_line_does_not_halve_its_growth() {
    let mut run = Synthetic::train(60, |run, _, train| {
        let line = run.frame(train, "/work/train.py", "log", 31);
        let temporary = run.alloc(line, 4 * MIB);
        run.alloc(line, 4 * MIB);
        run.release(temporary, train);
    });
    let line = run.frame(NodeId::NONE, "/work/train.py", "log", 31);
    run.alloc(line, 4 * MIB);
    fail(&mut run, 64 * MIB);
    let oom = last_oom(&run);
    let kept = oom.growth.iter().find(|line| line.site.line == Some(31)).unwrap();
    assert!(kept.bytes >= 58 * 4 * MIB && kept.bytes == kept.blocks * 4 * MIB, "{kept:#?}");
}

#[test]
fn cache_that_turns_over_did_not_grow() {
    let mut cache = std::collections::VecDeque::new();
    let mut run = Synthetic::train(40, |run, _, train| {
        let line = run.frame(train, "/work/train.py", "cached", 33);
        cache.push_back(run.alloc(line, 20 * MIB));
        if cache.len() > 8 {
            run.release(cache.pop_front().unwrap(), line);
        }
        let leak = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(leak, MIB);
    });
    fail(&mut run, 64 * MIB);
    // The first block of each line is from step 0, whose end is the base.
    assert_eq!(rows(&last_oom(&run)), [(Some(31), 39 * MIB, OomGrowthPattern::Repeated)]);
    let options = AnalysisOptions { since: Some(TimeSpec::Step(20)), ..AnalysisOptions::default() };
    let part = report(&[analyse_part(&run.file(1000), options)], &[]).oom.expect("the section");
    assert_eq!(rows(&part[0]), [(Some(31), 20 * MIB, OomGrowthPattern::Repeated)]);
}

#[test]
fn memory_of_each_step_comes_after_what_stays() {
    let mut run = Synthetic::train(40, |run, _, train| {
        let leak = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(leak, MIB);
        let batch = run.frame(train, "/work/train.py", "batch", 20);
        let work = run.alloc(batch, 512 * MIB);
        run.release(work, train);
    });
    let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
    let train = run.frame(at, "/work/train.py", "train", 40);
    let batch = run.frame(train, "/work/train.py", "batch", 20);
    run.alloc(batch, 512 * MIB);
    fail(&mut run, 64 * MIB);
    let oom = last_oom(&run);
    let found =
        [(Some(31), 39 * MIB, OomGrowthPattern::Repeated), (Some(20), 512 * MIB, OomGrowthPattern::EachStep)];
    assert_eq!(rows(&oom), found);
    let freed: Vec<_> = oom
        .remedies
        .iter()
        .filter_map(|remedy| match &remedy.kind {
            RemedyKind::FixLeak { site, .. } => Some(site.line),
            _ => None,
        })
        .collect();
    assert_eq!(freed, [Some(31)], "freeing the batch of the step is no remedy");
}

#[test]
fn memory_that_stopped_growing_long_ago_is_unchanged() {
    let mut run = Synthetic::train(100, |run, step, train| {
        let copy = run.frame(train, "/work/train.py", "average", 50);
        if step == 10 {
            run.alloc(copy, 300 * MIB);
        }
        let leak = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(leak, MIB);
    });
    fail(&mut run, 64 * MIB);
    let oom = last_oom(&run);
    assert_eq!(rows(&oom), [(Some(31), 99 * MIB, OomGrowthPattern::Repeated)]);
    assert_eq!((oom.unchanged[0].site.line, oom.unchanged[0].bytes), (Some(50), 300 * MIB));
}

#[test]
fn error_after_which_the_program_allocates_is_recovered() {
    let mut run = Synthetic::train(20, |_, _, _| {});
    fail(&mut run, 64 * MIB);
    validate(&mut run, 1);
    fail(&mut run, 64 * MIB);
    let outcomes = |run: &Synthetic| -> Vec<Option<bool>> {
        run.report().oom.iter().flatten().map(|oom| oom.recovered).collect()
    };
    assert_eq!(outcomes(&run), [Some(true), None], "how the process ended is unknown");
    run.meta.set_text("wait_status", "exit 1");
    assert_eq!(outcomes(&run), [Some(true), Some(false)]);
    run.meta.set_text("wait_status", "exit 0");
    assert_eq!(outcomes(&run), [Some(true), None]);
}

fn works(oom: &Oom, is_kind: impl Fn(&RemedyKind) -> bool) -> Vec<Option<bool>> {
    oom.remedies.iter().filter(|remedy| is_kind(&remedy.kind)).map(|remedy| remedy.works).collect()
}

#[test]
fn expandable_segments_are_judged_by_what_the_device_can_hold() {
    let expandable = |oom: &Oom| works(oom, |kind| matches!(kind, RemedyKind::AllocatorSetting { .. }));
    let mut run = Synthetic::train(20, |_, _, _| {});
    validate(&mut run, 4);
    fail(&mut run, 200 * MIB);
    assert_eq!(expandable(&last_oom(&run)), [Some(false)], "the device is full of live blocks");
    run.meta.set_number("device.0.total_bytes", run.reserved + 198 * MIB);
    assert_eq!(expandable(&last_oom(&run)), [None], "free pieces and the driver's memory suffice");
    for conf in ["expandable_segments:True", "backend:cudaMallocAsync"] {
        run.meta.set_text("allocator_conf", conf);
        assert_eq!(expandable(&last_oom(&run)), [], "{conf}");
    }
}

/// The settings that the report names for the last error, and what it says about them.
fn settings_with(predictions: OomPredictions, run: &Synthetic) -> Vec<(Vec<String>, bool, Option<bool>)> {
    let is_oom = |event: &&Event| event.kind == EventKind::BLOCK_OOM;
    let seq = run.events.iter().find(is_oom).expect("an error").seq;
    let first = FirstOom { seq, device: 0, reserved_bytes: 0, free_bytes: 0, driver_bytes: 0, card_bytes: 0 };
    let mut analysis = run.analyse();
    analysis.oom_predictions = predictions;
    analysis.first_oom = Some(first);
    let last = report(&[analysis], &[]).oom.expect("the section").pop().expect("an error");
    let settings = last.remedies.into_iter().filter_map(|remedy| match remedy.kind {
        RemedyKind::AllocatorSetting { setting, is_over_limit } => {
            Some((vec![setting], is_over_limit, remedy.works))
        }
        RemedyKind::AllocatorSettings { settings } => Some((settings, false, remedy.works)),
        _ => None,
    });
    settings.collect()
}

#[test]
fn predicted_settings_are_listed_by_what_they_reserve() {
    let mut run = Synthetic::train(20, |_, _, _| {});
    validate(&mut run, 4);
    fail(&mut run, 20 * MIB);
    run.meta.set_number("device.0.total_bytes", run.reserved + 10 * MIB);
    let expandable = "expandable_segments:True";
    let settings = |verdicts: &[(&str, Option<bool>, u64)]| {
        let verdict = |(setting, works, peak): &(&str, Option<bool>, u64)| SettingVerdict {
            setting: (*setting).to_owned(),
            works: *works,
            peak_reserved_bytes: *peak,
        };
        settings_with(OomPredictions::Made(verdicts.iter().map(verdict).collect()), &run)
    };
    let (yes, no) = (Some(true), Some(false));
    let one = |setting: &str, works| (vec![setting.to_owned()], false, works);
    let both = [(expandable, yes, 9), ("max_split_size_mb:64", yes, 8), ("max_split_size_mb:20", yes, 7)];
    assert_eq!(settings(&both), [one("max_split_size_mb:20", yes), one(expandable, yes)]);
    let equal =
        [(expandable, yes, 9), ("max_split_size_mb:64", yes, 9), ("large_segment_size_mb:64", yes, 9)];
    assert_eq!(settings(&equal), [one(expandable, yes), one("max_split_size_mb:64", yes)], "at most two");
    let combined = [(expandable, yes, 8), ("roundup_power2_divisions:8,expandable_segments:True", yes, 9)];
    assert_eq!(settings(&combined), [one(expandable, yes)], "the other option adds nothing");
    assert_eq!(settings(&[("", yes, 8), (expandable, yes, 8)]), [one("", yes)]);
    let none = [(expandable, no, 9), ("max_split_size_mb:64", no, 9)];
    let all = none.map(|(setting, ..)| setting.to_owned()).to_vec();
    assert_eq!(settings(&none), [(all, false, no)]);
    let unknown = [(expandable, no, 9), ("max_split_size_mb:64", None, 9)];
    assert_eq!(settings(&unknown), [one(expandable, None)], "others may help");
    assert_eq!(settings(&[]), [one(expandable, None)]);
    let over_limit = settings_with(OomPredictions::OverLimit, &run);
    assert_eq!(over_limit, [(vec![expandable.to_owned()], true, None)]);
    // The predictions are for the first error.
    fail(&mut run, 20 * MIB);
    run.meta.set_number("device.0.total_bytes", run.reserved + 10 * MIB);
    assert_eq!(settings_with(OomPredictions::OverLimit, &run), [one(expandable, None)]);
}

#[test]
fn only_an_error_of_pytorch_in_a_complete_trace_is_predicted() {
    let mut run = Synthetic::train(20, |_, _, _| {});
    validate(&mut run, 4);
    fail(&mut run, 20 * MIB);
    assert_eq!(run.analyse().first_oom, None, "the tracker was not attached");
    let detail = Detail { requested_bytes: 20 * MIB, stream: 0, pool: 0 };
    let last = run.events.last_mut().expect("the error");
    (last.detail, last.addr) = (Some(detail), 3 * MIB);
    let seq = last.seq;
    let reserved_bytes = run.reserved;
    let known = FirstOom {
        seq,
        device: 0,
        reserved_bytes,
        free_bytes: 3 * MIB,
        driver_bytes: reserved_bytes,
        card_bytes: reserved_bytes + 3 * MIB,
    };
    assert_eq!(run.analyse().first_oom, Some(known), "the card has at least what is in use and free");
    run.meta.set_text("pluggable", "caching");
    assert_eq!(run.analyse().first_oom, None);
}

#[test]
fn freeing_a_line_helps_only_if_whole_segments_become_free() {
    let fix = |oom: &Oom| works(oom, |kind| matches!(kind, RemedyKind::FixLeak { .. }));
    // The pinning run cuts each segment for both lines.
    let run = |is_pinned: bool| {
        let mut run = Synthetic::train(40, |run, _, train| {
            let leak = run.frame(train, "/work/train.py", "log", 31);
            run.alloc(leak, if is_pinned { 19 * MIB } else { 20 * MIB });
            let state = run.frame(train, "/work/train.py", "state", 32);
            if is_pinned {
                run.alloc(state, 512);
            }
        });
        fail(&mut run, 30 * MIB);
        last_oom(&run)
    };
    assert_eq!(fix(&run(false)), [Some(true)]);
    assert_eq!(fix(&run(true))[0], None, "small blocks pin every segment");
}

#[test]
fn request_that_the_driver_could_serve_is_no_fragmentation() {
    let mut run = Synthetic::train(20, |_, _, _| {});
    let line = run.frame(NodeId::NONE, "/work/train.py", "big", 77);
    run.oom(line, 64 * MIB);
    let report = run.report();
    assert_eq!(report.oom.as_ref().unwrap()[0].cause, OomCause::OtherLimit);
}

#[test]
fn device_without_unusable_memory_is_not_called_fragmented() {
    // All segments are free: PyTorch's cache, which has no fragments.
    let mut run = Synthetic::new();
    let line = run.frame(NodeId::NONE, "/work/train.py", "work", 7);
    let blocks: Vec<u64> = (0..4).map(|_| run.alloc(line, 20 * MIB)).collect();
    for addr in blocks {
        run.release(addr, line);
    }
    run.meta.set_number("device.0.total_bytes", 81 * MIB);
    run.oom(line, 30 * MIB);
    let verdicts = run.report().verdicts.unwrap();
    let is_fragmented = |evidence: &VerdictEvidence| {
        matches!(evidence, VerdictEvidence::FragmentationLike { unusable_bytes: 0, .. })
    };
    assert!(!verdicts.iter().any(|verdict| is_fragmented(&verdict.evidence)), "{verdicts:?}");
}

#[test]
fn refused_block_is_an_error_only_if_each_block_is_a_driver_call() {
    let errors = |tracker: Option<TrackerState>, refusals| {
        let mut run = Synthetic::new();
        run.call_driver_from(&format!("{TORCH}lib/libc10_cuda.so"));
        if let Some(state) = tracker {
            run.event(EventKind::TRACKER, 0, 0, [state as u64, 0], NodeId::NONE);
        }
        let kept = run.frame(NodeId::NONE, "/work/train.py", "<module>", 7);
        for block in 1..=8 {
            run.event(EventKind::DEVICE_ALLOC, block << 30, 64 * MIB, [0; 2], kept);
        }
        for _ in 0..refusals {
            run.event(EventKind::DEVICE_ALLOC, 0, 64 * MIB, [0; 2], kept);
            run.events.last_mut().expect("the call").result = 2;
        }
        let ooms = run.report().oom.unwrap_or_default();
        ooms.iter().map(|oom| (oom.requested_bytes, oom.live_bytes, rows(oom))).collect::<Vec<_>>()
    };
    let error = [(64 * MIB, 512 * MIB, vec![(Some(7), 512 * MIB, OomGrowthPattern::Repeated)])];
    for uncached in [TrackerState::OtherAllocator, TrackerState::CacheOff] {
        assert_eq!(errors(Some(uncached), 1), error);
        assert_eq!(errors(Some(uncached), 2), error, "PyTorch repeats a refused call once");
    }
    // PyTorch's own allocator frees its cache and tries again.
    for cached in [None, Some(TrackerState::UnknownVersion), Some(TrackerState::NotWanted)] {
        assert_eq!(errors(cached, 2), []);
    }
}
