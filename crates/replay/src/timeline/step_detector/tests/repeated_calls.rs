//! Loops with iterations that take different paths.

use super::{Program, StepSource, period, scatter};

/// The kind of a request. Kinds come in any order.
fn kind(number: u64) -> u64 {
    let number = scatter(number) | 1;
    scatter(number * number) % 3
}

/// One request below `call`. Its route has an inner loop.
fn request(program: &mut Program, call: &str, number: u64) {
    let route = kind(number);
    program.alloc(&format!("{call} route{route}:2"), scatter(number));
    for _ in 0..=scatter(number) % 4 {
        program.alloc(&format!("{call} route{route}:8 layer:3"), 8);
        program.free(&format!("{call} route{route}:9"));
    }
}

fn assert_no_steps(program: Program) {
    assert_eq!(program.steps().0, None);
}

#[test]
fn calls_of_a_loop_with_several_routes_are_steps() {
    let mut program = Program::default();
    program.alloc("main:2 load:1", 9);
    for number in 0..150 {
        request(&mut program, &format!("main:10 handle:{}", 4 + kind(number)), number);
        program.free("main:10");
    }
    assert_eq!(program.steps(), period(150));
}

#[test]
fn calls_of_several_functions_at_one_instruction_are_steps() {
    for has_loops in [false, true] {
        let mut program = Program::default();
        for number in 0..150 {
            if has_loops {
                request(&mut program, "main:10", number);
            } else {
                program.alloc(&format!("main:10 route{}:2", kind(number)), 8);
            }
            program.free("main:14");
        }
        assert_eq!(program.steps(), period(150));
    }
}

#[test]
fn workers_with_several_routes_are_counted_by_thread() {
    let mut program = Program::default();
    for number in 0..200 {
        // The other worker returns while this one is inside its request.
        program.thread = (number % 2) as u32;
        program.alloc(&format!("run:2 handle:4 route{}:2", kind(number)), 8);
        program.thread = 1 - program.thread;
        if number > 0 {
            program.free("run:2");
        }
    }
    assert_eq!(program.steps(), period(200));
}

#[test]
fn other_tasks_run_while_the_call_of_a_coroutine_is_suspended() {
    let mut program = Program::default();
    let call = "main:2 Handle._run:4 serve:8";
    for number in 0..150 {
        let route = kind(number);
        program.alloc(&format!("{call} route{route}:2"), 8);
        if scatter(number).is_multiple_of(2) {
            program.free("main:2 Handle._run:4 prepare:6");
        }
        program.alloc(&format!("{call} route{route}:6"), 8);
        program.free(call);
    }
    assert_eq!(program.steps(), period(150));
}

#[test]
fn returns_that_are_not_seen_give_no_steps() {
    let mut program = Program::default();
    for number in 0..150 {
        request(&mut program, &format!("main:10 handle:{}", 4 + kind(number)), number);
        // What the first route returns is kept.
        if kind(number) > 0 {
            program.free("main:10");
        }
    }
    assert_no_steps(program);
}

#[test]
fn calls_of_suspended_coroutines_give_no_steps() {
    let mut program = Program::default();
    for number in 0..150 {
        // Another coroutine of the same function returns while this one waits.
        let route = kind(number);
        program.alloc(&format!("run:2 handle:{} route{route}:2", 4 + route), 8);
        if scatter(number * 7).is_multiple_of(2) {
            program.free("run:2");
        }
        program.alloc(&format!("run:2 handle:{} route{route}:8", 4 + route), 8);
        program.free("run:2");
    }
    assert_no_steps(program);
}

#[test]
fn branches_of_the_loop_itself_give_no_steps() {
    let mut program = Program::default();
    for number in 0..150 {
        let call = ["main:10", "main:20"][(kind(number) % 2) as usize];
        request(&mut program, call, number);
        program.free(call);
    }
    assert_no_steps(program);
}

#[test]
fn code_after_the_calls_gives_no_steps() {
    let mut program = Program::default();
    for number in 0..150 {
        request(&mut program, "main:10", number);
        program.free("main:10");
        // The calls may be layers, and this the end of a forward pass.
        if number % 30 == 29 {
            program.alloc("main:20 head:3", 4);
            program.free("main:20");
        }
    }
    assert_no_steps(program);
}

#[test]
fn stages_that_do_not_always_allocate_give_no_steps() {
    let mut program = Program::default();
    for number in 0..150 {
        for stage in 0..3 {
            if kind(3 * number + stage) > 0 {
                program.alloc(&format!("main:10 stage{stage}:2"), 8);
                program.free("main:10");
            }
        }
    }
    assert_no_steps(program);
}

#[test]
fn layers_in_a_fixed_order_give_no_steps() {
    for order in ["conv conv pool", "conv conv pool pool", "norm mix norm feed"] {
        let mut program = Program::default();
        for layer in order.split(' ').cycle().take(120) {
            // Both allocations occur twice, so no allocation is that of the loop.
            program.alloc(&format!("main:10 {layer}:2"), 8);
            program.alloc(&format!("main:10 {layer}:2"), 8);
            program.free("main:10");
        }
        assert_no_steps(program);
    }
}

#[test]
fn layers_of_a_model_with_several_paths_are_no_steps() {
    let mut program = Program::default();
    for number in 0..150 {
        request(&mut program, "main:4 _call_impl:1 Net.forward:3", number);
        program.free("main:4 _call_impl:1 Net.forward:3");
    }
    assert_ne!(program.steps().0, Some(StepSource::Period));
}
