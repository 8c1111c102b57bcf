//! Blocks that live for a step or a few.

use std::collections::VecDeque;

use super::PartFrame;
use crate::dice::Dice;
use crate::streams::program::{Part, Program};

/// Activations with sizes that follow the length of the batch, freed within the step.
pub(super) fn activations(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, is_varying, .. } = *frame;
    let (layers, lengths) = (dice.within(1, 6), if is_varying { dice.within(1, 40) } else { 1 });
    Box::new(move |program| {
        let length = program.dice.within(1, lengths);
        let blocks: Vec<u64> = (1..=layers).map(|at| program.run.alloc(line, unit * length * at)).collect();
        blocks.into_iter().rev().for_each(|block| program.run.release(block, line));
    })
}

/// The outputs of the last one to three steps.
pub(super) fn double_buffer(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, is_varying, .. } = *frame;
    let (depth, lengths) = (dice.within(1, 3) as usize, if is_varying { dice.within(1, 40) } else { 1 });
    let mut held = VecDeque::new();
    Box::new(move |program| {
        let bytes = unit * program.dice.within(1, lengths);
        held.push_back(program.run.alloc(line, bytes));
        if held.len() > depth {
            program.run.release(held.pop_front().unwrap(), line);
        }
    })
}

/// All blocks of a step, freed when the next step begins.
pub(super) fn held_over(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, is_varying, .. } = *frame;
    let most = dice.within(2, 10);
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        held.drain(..).for_each(|block| program.run.release(block, line));
        let count = if is_varying { program.dice.within(1, most) } else { most };
        held.extend((0..count).map(|at| program.run.alloc(line, unit * (at % 3 + 1))));
    })
}

/// Gradient accumulation: the graphs of several micro-batches, freed together.
pub(super) fn accumulation(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let every = dice.within(2, 16).min(frame.steps_over(4));
    let (mut held, blocks) = (Vec::new(), dice.within(1, 4));
    Box::new(move |program| {
        (0..blocks).for_each(|_| held.push(program.run.alloc(line, unit)));
        if program.step % every == every - 1 {
            held.drain(..).for_each(|block| program.run.release(block, line));
        }
    })
}

/// Evaluation every few steps: outputs are collected, then freed. The best model so far is kept.
pub(super) fn evaluation(program: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { unit, .. } = *frame;
    let outputs = program.line(program.frames.evaluate, "evaluation");
    let best_line = program.line(program.frames.evaluate, "evaluation");
    let every = dice.within(2, 30).min(frame.steps_over(4).max(2));
    let is_freed_at_next = dice.one_in(2);
    let (mut best, mut collected): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    Box::new(move |program| {
        if program.step % every != every - 1 {
            return;
        }
        collected.drain(..).for_each(|block| program.run.release(block, outputs));
        let count = program.dice.within(2, 12);
        collected.extend((0..count).map(|_| program.run.alloc(outputs, unit)));
        if best.is_empty() || program.dice.one_in(3) {
            best.drain(..).for_each(|block| program.run.release(block, best_line));
            best.extend((1..5).map(|at| program.run.alloc(best_line, unit * at)));
        }
        if !is_freed_at_next {
            collected.drain(..).for_each(|block| program.run.release(block, outputs));
        }
    })
}

/// Random sizes, lifetimes of up to `k` steps, and random numbers of blocks.
pub(super) fn noise(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let longest = dice.log(1, 50).min(frame.steps_over(8));
    let most = dice.within(1, 4);
    let mut held: VecDeque<Vec<u64>> = VecDeque::from(vec![Vec::new(); longest as usize + 1]);
    Box::new(move |program| {
        for block in held.pop_front().unwrap() {
            program.run.release(block, line);
        }
        held.push_back(Vec::new());
        for _ in 0..program.dice.below(most + 1) {
            let bytes = unit * program.dice.log(1, 20);
            let block = program.run.alloc(line, bytes);
            let lifetime = program.dice.below(longest + 1) as usize;
            held[lifetime].push(block);
        }
    })
}

/// A prefetch queue of random length.
pub(super) fn prefetch(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let depth = dice.within(1, 8);
    let mut held = VecDeque::new();
    Box::new(move |program| {
        let length = program.dice.below(depth + 1) as usize;
        while held.len() < length {
            held.push_back(program.run.alloc(line, unit));
        }
        while held.len() > length {
            program.run.release(held.pop_front().unwrap(), line);
        }
    })
}
