//! Programs that use more memory over time, none of which stays.

use super::PartFrame;
use crate::dice::Dice;
use crate::streams::plan::StepsBy;
use crate::streams::program::{Part, Program};

/// Buffers that are reallocated for the largest batch so far.
pub(super) fn ratchet(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let (is_even, lengths) = (dice.one_in(2), dice.within(2, 1000));
    let mut buffers: Vec<Option<(u64, u64)>> = vec![None; dice.within(1, 4) as usize];
    Box::new(move |program| {
        let at = program.dice.below(buffers.len() as u64) as usize;
        let buffer = &mut buffers[at];
        let length = if is_even { program.dice.within(1, lengths) } else { program.dice.log(1, lengths) };
        if buffer.is_none_or(|(longest, _)| length > longest) {
            let new = program.run.alloc(line, (unit * length / 8).min(1 << 30));
            if let Some((_, old)) = buffer.replace((length, new)) {
                program.run.release(old, line);
            }
        }
    })
}

/// Episodes with more blocks from one to the next. All of an episode die with it: when it ends, or
/// when the next one begins.
pub(super) fn longer_episodes(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let (first, is_held_over) = (dice.within(1, 5), dice.one_in(2));
    let most = dice.within(10, if plan.steps > 1000 { 15 } else { 60 });
    let noise = if dice.one_in(2) { 0 } else { dice.within(1, 3) };
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        held.drain(..).for_each(|block| program.run.release(block, line));
        let length = first + program.step * most / plan.steps + program.dice.below(noise + 1);
        held.extend((0..length).map(|_| program.run.alloc(line, unit)));
        if !is_held_over {
            held.drain(..).for_each(|block| program.run.release(block, line));
        }
    })
}

/// More micro-batches per step over time. Their blocks die when the next step begins.
pub(super) fn accumulation_ramp(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let (stages, is_doubled) = (dice.within(3, 6), dice.one_in(2));
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        held.drain(..).for_each(|block| program.run.release(block, line));
        let stage = program.step * stages / plan.steps;
        let batches = if is_doubled { 1 << stage } else { stage + 1 };
        held.extend((0..batches).map(|at| program.run.alloc(line, unit * (at % 2 + 1))));
    })
}

/// Layers that begin to train one after the other: gradients, which the next step replaces, and the
/// optimizer's state for them until [`StreamPlan::fill_by`].
pub(super) fn unfreezing(program: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let adam = program.frames.adam;
    let (layers, has_state) = (dice.within(3, 16), dice.one_in(2) && plan.steps_by != StepsBy::Requests);
    let until = if has_state { plan.fill_by } else { plan.steps };
    let (mut gradients, mut with_state): (Vec<u64>, u64) = (Vec::new(), 0);
    Box::new(move |program| {
        gradients.drain(..).for_each(|block| program.run.release(block, line));
        let trained = (program.step * layers / until).min(layers - 1) + 1;
        gradients.extend((0..trained).map(|at| program.run.alloc(line, unit * (at % 3 + 1))));
        if has_state && with_state < trained {
            with_state = trained;
            for _ in 0..2 {
                program.run.alloc(adam, unit);
            }
        }
    })
}

/// One to three tensors that live across steps and get larger every few steps.
pub(super) fn curriculum(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let every = dice.log(1, frame.steps_over(6));
    let mut held: Vec<Option<u64>> = vec![None; dice.within(1, 3) as usize];
    let jitter = if dice.one_in(2) { 1 } else { 4 };
    Box::new(move |program| {
        let length = program.step / every + 1;
        for tensor in &mut held {
            let bytes = (unit * length + 512 * program.dice.below(jitter)).min(2 << 30);
            let new = program.run.alloc(line, bytes);
            if let Some(old) = tensor.replace(new) {
                program.run.release(old, line);
            }
        }
    })
}

/// Activations of longer and longer sequences, such as sorted batches. They die within the step.
pub(super) fn longer_sequences(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let (layers, every) = (dice.within(1, 5), dice.log(1, frame.steps_over(6)));
    Box::new(move |program| {
        let bytes = (unit * (program.step / every + 1)).min(1 << 30);
        let blocks: Vec<u64> = (0..layers).map(|_| program.run.alloc(line, bytes)).collect();
        blocks.into_iter().rev().for_each(|block| program.run.release(block, line));
    })
}

/// Training, evaluation and fine-tuning, each with its own set of blocks. The next phase frees
/// them, and may keep more.
pub(super) fn phases(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let phases = dice.within(2, 4).min(plan.steps);
    let sizes: Vec<u64> = (0..phases).map(|_| dice.log(1, 40)).collect();
    let (mut held, mut current): (Vec<u64>, Option<u64>) = (Vec::new(), None);
    Box::new(move |program| {
        let phase = program.step * phases / plan.steps;
        if current != Some(phase) {
            current = Some(phase);
            held.drain(..).for_each(|block| program.run.release(block, line));
            held.extend((0..sizes[phase as usize]).map(|at| program.run.alloc(line, unit * (at % 4 + 1))));
        }
        for _ in 0..=phase {
            let block = program.run.alloc(line, unit);
            program.run.release(block, line);
        }
    })
}
