//! Leaks that must be found with exact numbers, and healthy programs that must have no findings.

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::report::{GrowthClass, LeakShape, Quantity, StepSource};
use gpumemtrace_synthetic::Synthetic;

fn hook(run: &mut Synthetic, caller: NodeId) -> NodeId {
    run.frame(caller, "/work/hooks.py", "Keeper.hook", 7)
}

/// A linear congruential generator, so that the runs are the same on every machine.
struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn hook_that_keeps_an_output_is_found_with_exact_growth() {
    for steps in [6, 20, 300] {
        let mut run = Synthetic::train(steps, |run, _, train| {
            let hook = hook(run, train);
            run.alloc(hook, 4 << 20);
        });
        run.release_all();
        let report = run.report();
        let leaks = report.leaks.unwrap();
        assert_eq!(leaks.len(), 1, "{steps}: {leaks:#?}");
        let leak = &leaks[0];
        assert_eq!((leak.site.file.as_deref(), leak.site.line), (Some("/work/hooks.py"), Some(7)));
        assert_eq!((leak.blocks, leak.bytes), (steps, steps * (4 << 20)));
        assert_eq!(
            (leak.blocks_per_step, leak.bytes_per_step),
            (Some(Quantity(1.0)), Some(Quantity(4_194_304.0)))
        );
        assert_eq!((leak.period_steps, leak.first_step), (Some(1), Some(0)));
        assert!(leak.share_of_growth.unwrap() > 0.8);
        assert!(leak.steps_to_oom.unwrap() > 5000);
        assert!(leak.freed_siblings.share < 1e-9);
        let steps_found = report.steps.unwrap();
        assert_eq!((steps_found.source, steps_found.count), (Some(StepSource::Optimizer), Some(steps)));
        assert_eq!(steps_found.site.unwrap().line, Some(43));
    }
}

#[test]
fn leak_of_512_bytes_per_step_is_found() {
    let run = Synthetic::train(390, |run, _, train| {
        let append = run.frame(train, "/work/train.py", "log_loss", 70);
        run.alloc(append, 4);
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 1);
    assert_eq!((leaks[0].blocks, leaks[0].bytes), (390, 390 * 512));
    assert_eq!(leaks[0].bytes_per_step, Some(Quantity(512.0)));
}

#[test]
fn growth_every_fourth_step_has_period_four() {
    let run = Synthetic::train(64, |run, step, train| {
        if step % 4 == 3 {
            let clone = run.frame(train, "/work/train.py", "keep_gradients", 75);
            for _ in 0..3 {
                run.alloc(clone, 1 << 20);
            }
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 1);
    assert_eq!((leaks[0].period_steps, leaks[0].blocks_per_step), (Some(4), Some(Quantity(0.75))));
    assert_eq!(leaks[0].bytes_per_step, Some(Quantity(3.0 / 4.0 * 1_048_576.0)));
}

#[test]
fn finding_names_the_line_that_frees_most_sibling_blocks() {
    let run = Synthetic::train(100, |run, _, train| {
        let line = hook(run, train);
        let blocks: Vec<u64> = (0..4).map(|_| run.alloc(line, 1 << 16)).collect();
        for addr in &blocks[1..] {
            let free = run.frame(train, "/work/train.py", "clean_up", 55);
            run.release(*addr, free);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 1);
    assert!((leaks[0].freed_siblings.share - 0.75).abs() < 0.01);
    assert_eq!(leaks[0].freed_siblings.site.as_ref().unwrap().line, Some(55));
}

#[test]
fn retained_graph_is_one_finding_at_the_line_that_retains_it() {
    let run = Synthetic::train(12, |run, _, _| {
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let validate = run.frame(at, "/work/train.py", "validate", 61);
        for layer in 0..8 {
            let line = run.frame(validate, "/work/model.py", "Net.forward", 20 + layer);
            // Training uses these lines too; the leaked blocks come from another function.
            let inner = run.frame(line, "/work/model.py", "Block.forward", 100 + layer);
            run.alloc(inner, 1 << 20);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 1, "{leaks:#?}");
    assert_eq!(
        (leaks[0].shape, leaks[0].site.line, leaks[0].members.len()),
        (LeakShape::RetainedGraph, Some(61), 8)
    );
    assert_eq!((leaks[0].blocks_per_step, leaks[0].bytes), (Some(Quantity(8.0)), 96 << 20));
}

#[test]
fn graph_of_several_lines_is_reported_at_the_line_with_most_of_it() {
    let run = Synthetic::train(12, |run, _, _| {
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        // The inputs, the forward pass and the loss; the call of `main` has all of them.
        for (line, bytes, layer) in [(60, 1 << 20, 20), (61, 5 << 20, 21), (61, 4 << 20, 22), (62, 512, 23)] {
            let main = run.frame(at, "/work/train.py", "main", line);
            let inner = run.frame(main, "/work/model.py", "Block.forward", 100 + layer);
            run.alloc(inner, bytes);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!((leaks.len(), leaks[0].site.line), (1, Some(61)), "{leaks:#?}");
    assert_eq!(leaks[0].bytes, 12 * ((10 << 20) + 512));
}

/// Adds a frame of PyTorch's modules below `caller`.
fn module(run: &mut Synthetic, caller: NodeId, line: i32) -> NodeId {
    run.frame(caller, &format!("{}nn/functional.py", gpumemtrace_synthetic::TORCH), "function", line)
}

#[test]
fn model_in_one_user_line_is_a_retained_graph_at_that_line() {
    let run = Synthetic::train(20, |run, _, train| {
        let line = run.frame(train, "/work/train.py", "evaluate", 66);
        for (function, bytes) in [(100, 1 << 20), (100, 1 << 20), (200, 4096), (300, 512)] {
            let inner = module(run, line, function);
            run.alloc(inner, bytes);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 1, "{leaks:#?}");
    assert_eq!((leaks[0].shape, leaks[0].site.line), (LeakShape::RetainedGraph, Some(66)));
    let functions: Vec<_> = leaks[0].members.iter().map(|member| member.line).collect();
    assert_eq!(functions, [Some(100), Some(200), Some(300)]);
}

#[test]
fn kept_outputs_of_one_line_are_not_a_graph() {
    let run = Synthetic::train(20, |run, _, train| {
        let line = run.frame(train, "/work/train.py", "evaluate", 66);
        for function in [100, 200] {
            let inner = module(run, line, function);
            run.alloc(inner, 4096);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!((leaks.len(), leaks[0].shape), (1, LeakShape::Linear));
}

#[test]
fn lasting_blocks_of_a_line_do_not_hide_its_graph() {
    let run = Synthetic::train(20, |run, step, train| {
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let validate = run.frame(at, "/work/train.py", "validate", 61);
        for layer in 0..6 {
            let line = run.frame(validate, "/work/model.py", "Net.forward", 20 + layer);
            if step == 1 {
                // A library workspace, allocated at the first call in training and larger than
                // the leak.
                let other = run.frame(train, "/work/model.py", "Net.forward", 20 + layer);
                let library = module(run, other, 500);
                run.alloc(library, 64 << 20);
            }
            let relu = module(run, line, 100);
            run.alloc(relu, 1 << 20);
        }
        let log = run.frame(train, "/work/train.py", "log_loss", 70);
        if step == 1 {
            let library = module(run, log, 500);
            run.alloc(library, 8 << 20);
        }
        let append = module(run, log, 600);
        run.alloc(append, 512);
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 2, "{leaks:#?}");
    assert_eq!((leaks[0].shape, leaks[0].site.line), (LeakShape::RetainedGraph, Some(61)));
    assert_eq!(leaks[0].site.stack[0].line, Some(100));
    assert_eq!((leaks[1].shape, leaks[1].site.line), (LeakShape::Linear, Some(70)));
    assert_eq!(leaks[1].site.stack[0].line, Some(600));
}

#[test]
fn tensor_extended_in_every_step_is_a_growing_size_and_no_leak() {
    let mut last = None;
    let run = Synthetic::train(40, |run, step, train| {
        let line = run.frame(train, "/work/train.py", "extend", 80);
        let longer = run.alloc(line, (step + 1) << 16);
        if let Some(old) = last.replace(longer) {
            run.release(old, line);
        }
    });
    let report = run.report();
    assert!(report.leaks.unwrap().is_empty());
    let growth = &report.leak_assessment.unwrap()[0].growth;
    assert_eq!(growth.len(), 1, "{growth:#?}");
    assert_eq!((growth[0].class, growth[0].blocks), (GrowthClass::GrowingSizes, 1));
    assert_eq!(growth[0].bytes_per_step, Some(Quantity(65_536.0)));
}

#[test]
fn irregular_growth_has_limited_confidence() {
    let mut noise = Noise(11);
    let run = Synthetic::train(60, |run, _, train| {
        if noise.below(2) == 0 {
            let line = run.frame(train, "/work/cache.py", "get", 5);
            run.alloc(line, 1 << 14);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!((leaks.len(), leaks[0].is_regular), (1, false));
    assert!(leaks[0].confidence.unwrap() <= 0.9);
}

#[test]
fn two_leaks_are_two_findings_with_most_bytes_first() {
    let run = Synthetic::train(30, |run, _, train| {
        let (a, b) = (hook(run, train), run.frame(train, "/work/train.py", "log_loss", 70));
        run.alloc(a, 512);
        run.alloc(b, 4096);
    });
    let lines: Vec<_> = run.report().leaks.unwrap().iter().map(|leak| leak.site.line).collect();
    assert_eq!(lines, [Some(70), Some(7)]);
}

#[test]
fn clean_training_of_any_length_has_no_findings() {
    for steps in [1, 2, 3, 5, 6, 8, 15, 16, 17, 50, 1000] {
        let mut run = Synthetic::train(steps, |_, _, _| {});
        assert!(run.report().leaks.unwrap().is_empty(), "{steps}");
        run.release_all();
        assert!(run.report().leaks.unwrap().is_empty(), "{steps}, torn down");
    }
}

#[test]
fn full_caches_accumulation_and_replaced_outputs_have_no_findings() {
    let (mut cache, mut held, mut accumulated) = (Vec::new(), None, Vec::new());
    let run = Synthetic::train(200, |run, step, train| {
        let line = run.frame(train, "/work/cache.py", "get", 5);
        if cache.len() < 40 {
            cache.push(run.alloc(line, 1 << 14));
        }
        let output = run.frame(train, "/work/train.py", "train", 41);
        let new = run.alloc(output, 1 << 12);
        if let Some(old) = held.replace(new) {
            run.release(old, train);
        }
        let micro = run.frame(train, "/work/accumulate.py", "micro_batch", 9);
        accumulated.push(run.alloc(micro, 1 << 13));
        if step % 8 == 7 {
            for addr in accumulated.drain(..) {
                run.release(addr, train);
            }
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn stationary_noise_has_no_findings() {
    let mut findings = Vec::new();
    for seed in 0..1200u64 {
        let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let kind = seed % 4;
        // Before its first reset, a sawtooth is indistinguishable from a leak.
        let steps = if kind == 3 { 30 + noise.below(60) } else { 5 + noise.below(60) };
        let mut held: Vec<u64> = Vec::new();
        let run = Synthetic::train(steps, |run, step, train| {
            let line = hook(run, train);
            let size = |noise: &mut Noise| 512 * (1 + noise.below(8));
            match kind {
                // Another number of blocks in each step.
                0 => {
                    held.drain(..).for_each(|addr| run.release(addr, train));
                    for _ in 0..noise.below(10) {
                        let bytes = size(&mut noise);
                        held.push(run.alloc(line, bytes));
                    }
                }
                // One block of varying size.
                1 => {
                    held.drain(..).for_each(|addr| run.release(addr, train));
                    let bytes = size(&mut noise);
                    held.push(run.alloc(line, bytes));
                }
                // A pool with random allocations and frees that returns to its mean.
                2 => {
                    for _ in 0..noise.below(6) {
                        held.push(run.alloc(line, 512));
                    }
                    let leave = held.len() / 3;
                    for _ in 0..leave {
                        let at = noise.below(held.len() as u64) as usize;
                        run.release(held.swap_remove(at), train);
                    }
                }
                // A sawtooth: all blocks are freed now and then.
                _ => {
                    held.push(run.alloc(line, 512));
                    if noise.below(6) == 0 || step % 12 == 11 {
                        held.drain(..).for_each(|addr| run.release(addr, train));
                    }
                }
            }
        });
        let leaks = run.report().leaks.unwrap();
        findings.extend(leaks.first().map(|leak| (seed, steps, leak.evidence.clone())));
    }
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn growth_without_steps_has_a_rate_in_time_alone() {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/serve.py", "<module>", 3);
    let (mut noise, began_ns) = (Noise(5), run.time_ns);
    for _ in 0..4000 {
        let work = run.frame(main, "/work/serve.py", "handle", 10 + noise.below(5) as i32);
        for _ in 0..noise.below(5) {
            let bytes = 512 * (1 + noise.below(50));
            let addr = run.alloc(work, bytes);
            run.release(addr, work);
        }
        run.time_ns += 1_000_000;
        if noise.below(3) == 0 {
            let keep = run.frame(main, "/work/serve.py", "remember", 30);
            let bytes = 512 * (1 + noise.below(20));
            run.alloc(keep, bytes);
        }
    }
    let run_seconds = (run.time_ns - began_ns) as f64 / 1e9;
    let report = run.report();
    assert_eq!(report.steps.unwrap().source, None);
    let leaks = report.leaks.unwrap();
    assert_eq!(leaks.len(), 1, "{leaks:#?}");
    assert_eq!((leaks[0].site.line, leaks[0].bytes_per_step, leaks[0].first_step), (Some(30), None, None));
    let expected = leaks[0].bytes as f64 / run_seconds;
    let rate = leaks[0].bytes_per_second.unwrap().0;
    assert!((rate / expected - 1.0).abs() < 0.15, "{rate} instead of {expected}");
}

#[test]
fn loop_without_optimizer_has_steps_from_its_allocations() {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/infer.py", "<module>", 3);
    for _ in 0..40 {
        for layer in 0..12 {
            let line = run.frame(main, "/work/infer.py", "layer", 10 + layer);
            let addr = run.alloc(line, 1 << 16);
            run.release(addr, line);
        }
        let keep = run.frame(main, "/work/infer.py", "remember", 50);
        run.alloc(keep, 1 << 10);
    }
    let report = run.report();
    assert_eq!(report.steps.unwrap().source, Some(StepSource::Period));
    let leaks = report.leaks.unwrap();
    assert_eq!(
        (leaks.len(), leaks[0].site.line, leaks[0].bytes_per_step),
        (1, Some(50), Some(Quantity(1024.0)))
    );
}

#[test]
fn block_per_step_through_one_stack_or_another_has_the_rate_of_both() {
    let run = Synthetic::train(120, |run, step, train| {
        let keep = run.frame(train, "/work/train.py", "keep", 70);
        // Another library function serves every seventh request, and a few more.
        let line = if step % 7 == 3 || step % 31 == 5 { 20 } else { 30 };
        let library = run.frame(keep, "/venv/torch/functional.py", "allocate", line);
        run.alloc(library, 2 << 20);
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!(leaks.len(), 1, "{leaks:#?}");
    assert_eq!((leaks[0].site.line, leaks[0].period_steps), (Some(70), Some(1)));
    assert_eq!((leaks[0].blocks, leaks[0].bytes_per_step), (120, Some(Quantity((2 << 20).into()))));
    assert_eq!((leaks[0].members.len(), leaks[0].first_step), (0, Some(0)));
}
