//! Blocks that stay: state, buffers and workspaces that are allocated a few times.

use std::collections::HashSet;

use gpumemtrace_format::EventKind;

use super::PartFrame;
use crate::dice::Dice;
use crate::streams::program::{Part, Program};

/// Bytes of cuBLAS workspaces before Hopper.
const CUBLAS_WORKSPACE_BYTES: u64 = 8_519_680;

/// Two blocks per parameter at the first call of the optimizer, which may come late.
pub(super) fn optimizer_state(program: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { unit, plan, .. } = *frame;
    let (adam, at) = (program.frames.adam, dice.below(5).min(plan.fill_by - 1));
    let count = dice.within(2, 40);
    Box::new(move |program| {
        if program.step == at {
            for parameter in 0..2 * count {
                program.run.alloc(adam, unit * (parameter / 2 % 5 + 1));
            }
        }
    })
}

/// Buffers that each of the first steps adds to: lazy modules, kernels' scratch, reduction buckets.
pub(super) fn warm_up(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let steps = dice.within(1, 20).min(plan.fill_by);
    let most = dice.within(1, 6);
    Box::new(move |program| {
        if program.step < steps {
            for _ in 0..program.dice.within(1, most) {
                let bytes = unit * program.dice.within(1, 4);
                program.run.alloc(line, bytes);
            }
        }
    })
}

/// Lasting blocks up to three times: a copy of the weights for an average, a new head.
pub(super) fn rare_copies(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let moments: Vec<u64> = (0..dice.within(1, 3)).map(|_| dice.below(plan.steps)).collect();
    let blocks = dice.within(1, 20);
    Box::new(move |program| {
        for _ in moments.iter().filter(|at| **at == program.step) {
            for at in 0..blocks {
                program.run.alloc(line, unit * (at + 1));
            }
        }
    })
}

/// Workspaces of cuBLAS, one for each new stream.
pub(super) fn workspaces(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, plan, .. } = *frame;
    let moments: Vec<u64> = (0..dice.within(1, 4)).map(|_| dice.below(plan.fill_by)).collect();
    Box::new(move |program| {
        for _ in moments.iter().filter(|at| **at == program.step) {
            program.run.alloc(line, CUBLAS_WORKSPACE_BYTES);
        }
    })
}

/// A compiler that allocates lasting blocks for each new shape.
pub(super) fn recompiles(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let shapes = dice.within(1, 12);
    let mut compiled = HashSet::new();
    Box::new(move |program| {
        let shape = program.dice.below(shapes);
        if program.step < plan.fill_by && compiled.insert(shape) {
            for at in 0..3 {
                program.run.alloc(line, unit * (at + 1));
            }
        }
    })
}

/// Driver memory of a communication library: a few buffers per communicator.
pub(super) fn collective_buffers(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let moments: Vec<u64> = (0..dice.within(1, 3)).map(|_| dice.below(plan.fill_by)).collect();
    let buffers = dice.within(1, 8);
    Box::new(move |program| {
        let step = program.step;
        let times = moments.iter().filter(|at| **at == step).count() as u64;
        for _ in 0..times * buffers {
            program.call_driver(EventKind::DEVICE_ALLOC, unit, line);
        }
    })
}
