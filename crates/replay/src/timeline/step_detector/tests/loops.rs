//! Loops without an optimizer.

use super::{Program, period, scatter};

#[test]
fn outer_loop_is_found_whatever_the_sizes_and_the_number_of_inner_iterations() {
    let mut program = Program::default();
    program.alloc("main:1 load:3", 1);
    for request in 0..40 {
        program.alloc("main:10", scatter(request));
        for layer in 0..4 + scatter(request) % 9 {
            program.alloc("main:20 Net.forward:4 Layer.forward:2", scatter(layer));
            program.alloc("main:20 Net.forward:4 Layer.forward:6", scatter(layer));
            program.free("main:20 Net.forward:4 Layer.forward:7");
        }
        program.alloc("main:20 Net.forward:8", scatter(request));
        program.alloc("main:20 Net.forward:8", scatter(request));
    }
    assert_eq!(program.steps(), period(40));
}

#[test]
fn inner_loop_in_the_same_function_is_no_step() {
    let mut program = Program::default();
    for request in 0..40 {
        program.alloc("main:10", 8);
        for token in 0..3 + scatter(request) % 5 {
            program.alloc("main:20", token);
            program.alloc("main:24", 4);
            program.free("main:26");
        }
    }
    assert_eq!(program.steps(), period(40));
}

#[test]
fn rare_branch_and_evaluation_inside_the_loop_are_no_steps() {
    let mut program = Program::default();
    for step in 0..100 {
        program.alloc("main:10", 8);
        program.alloc("main:14", 8);
        if step % 10 == 9 {
            program.alloc("main:20 log:3", 4);
            program.alloc("main:20 log:5", 4);
        }
        if step % 25 == 24 {
            for _ in 0..5 {
                program.alloc("main:30 evaluate:6", 8);
                program.alloc("main:30 evaluate:9", 8);
            }
        }
    }
    assert_eq!(program.steps(), period(100));
}

#[test]
fn rare_branch_after_a_single_call_is_no_step() {
    for (name, is_constant) in [("handle", true), ("generate", false)] {
        let mut program = Program::default();
        for step in 0..40 {
            let rounds = if is_constant { 10 } else { 2 + scatter(step) % 9 };
            for round in 0..rounds {
                program.alloc(&format!("main:10 {name}:2"), scatter(round));
                program.alloc(&format!("main:10 {name}:6"), 8);
            }
            program.alloc("main:20 log:3", 4);
        }
        // With a varying number of rounds, it must be an inner loop in the called function.
        assert_eq!(program.steps(), period(if is_constant { 400 } else { 40 }), "{name}");
    }
}

#[test]
fn loop_in_a_called_function_is_inner_if_code_precedes_it() {
    let mut program = Program::default();
    for _ in 0..20 {
        program.alloc("main:10 denoise:2", 8);
        for _ in 0..50 {
            program.alloc("main:10 denoise:12 Net.forward:4", 8);
            program.alloc("main:10 denoise:14", 8);
        }
        program.alloc("main:20", 4);
    }
    assert_eq!(program.steps(), period(20));
}

#[test]
fn one_list_of_buffers_is_no_loop() {
    let mut program = Program::default();
    program.alloc("main:2", 1);
    for _ in 0..100 {
        program.alloc("main:4", 4096);
    }
    assert_eq!(program.steps(), (None, 100));
    // In each of some iterations it is a part of them.
    let mut program = Program::default();
    for _ in 0..10 {
        for _ in 0..100 {
            program.alloc("main:4", 4096);
        }
        program.alloc("main:8", 8);
        program.free("main:9");
    }
    assert_eq!(program.steps(), period(10));
}

#[test]
fn loop_with_one_allocation_is_found_by_its_frees() {
    let mut program = Program::default();
    for step in 0..50 {
        program.alloc("main:4", 8);
        if step > 0 {
            program.free("main:6");
        }
    }
    assert_eq!(program.steps(), period(50));
}

#[test]
fn loop_over_a_part_of_the_run_is_no_step() {
    let mut program = Program::default();
    for index in 0..60 {
        program.alloc("main:4 load:3", 8);
        program.free("main:4 load:5");
        if index == 59 {
            (0..90).for_each(|number| program.alloc(&format!("main:6 serve:{number}"), 8));
        }
    }
    assert_eq!(program.steps().0, None);
}

#[test]
fn code_that_often_does_not_run_at_the_begin_of_a_loop_gives_no_wrong_number() {
    let mut program = Program::default();
    for request in 0..100 {
        if scatter(request).is_multiple_of(3) {
            program.alloc("main:4 miss:1", 8);
        }
        program.alloc("main:8", 8);
        program.alloc("main:12", 8);
        program.free("main:14");
    }
    assert_eq!(program.steps().0, None);
}

#[test]
fn workers_with_the_same_loop_are_counted_together_in_any_order() {
    for order in [3, 7] {
        let mut program = Program::default();
        let mut left = [40; 2];
        for turn in 0.. {
            if left == [0; 2] {
                break;
            }
            // Threads take turns in the middle of iterations.
            let worker = (scatter(turn * order) % 2) as usize;
            program.thread = worker as u32;
            if left[worker] > 0 {
                left[worker] -= 1;
                program.alloc("run:2 handle:4", scatter(turn));
                program.alloc("run:2 handle:8", 8);
            }
        }
        assert_eq!(program.steps(), period(80));
    }
}

/// A model that is called `calls` times and has 40 equal layers; `between` calls is a free.
fn layers(calls: u32, between: Option<&str>) -> Program {
    let mut program = Program::default();
    for _ in 0..calls {
        for _ in 0..40 {
            program.alloc("main:4 _call_impl:1 Net.forward:3 Block.forward:2", 8);
            program.alloc("main:4 _call_impl:1 Net.forward:3 Block.forward:6", 4);
            program.free("main:4 _call_impl:1 Net.forward:3 Block.forward:7");
        }
        if let Some(between) = between {
            program.free(between);
        }
    }
    program
}

#[test]
fn layers_of_one_model_call_are_no_steps() {
    assert_eq!(layers(1, None).steps().0, None);
    assert_eq!(layers(1, Some("main:6")).steps().0, None);
}

#[test]
fn calls_of_a_model_are_told_apart_by_what_lies_between() {
    let mut program = Program::default();
    for _ in 0..30 {
        program.alloc("main:4 _call_impl:1 Net.forward:3", 8);
        program.alloc("main:4 _call_impl:1 Net.forward:6", 8);
        program.free("main:5");
    }
    assert_eq!(program.steps(), period(30));
}
