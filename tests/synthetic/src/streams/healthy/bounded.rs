//! Memory with a bound: queues, caches, pools, and lists that are cleared.

use std::collections::{HashMap, HashSet, VecDeque};

use gpumemtrace_format::EventKind;

use super::PartFrame;
use crate::dice::Dice;
use crate::streams::program::{Part, Program};

/// A queue that drops its oldest entry. It is full before the end.
pub(super) fn fifo_queue(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, is_varying, plan, .. } = *frame;
    let per_step = dice.within(1, 3);
    let depth = per_step * dice.log(1, plan.fill_by);
    let sizes = if is_varying { dice.within(1, 4) } else { 1 };
    let mut held = VecDeque::new();
    Box::new(move |program| {
        for _ in 0..per_step {
            let bytes = unit * program.dice.within(1, sizes);
            held.push_back(program.run.alloc(line, bytes));
            if held.len() as u64 > depth {
                program.run.release(held.pop_front().unwrap(), line);
            }
        }
    })
}

/// A cache with random keys that drops the least recently used entry.
pub(super) fn lru_cache(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let per_step = dice.within(1, 3);
    // With twice as many keys as entries, 1.4 draws per entry fill the cache.
    let capacity = dice.log(1, (per_step * plan.fill_by / 2).max(1)).min(2000);
    let keys = capacity * dice.within(2, 10);
    let mut entries: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut clock = 0;
    Box::new(move |program| {
        for _ in 0..per_step {
            clock += 1;
            let key = program.dice.below(keys);
            if let Some((used, _)) = entries.get_mut(&key) {
                *used = clock;
                continue;
            }
            let block = program.run.alloc(line, unit * (key % 3 + 1));
            entries.insert(key, (clock, block));
            if entries.len() as u64 > capacity {
                let oldest = *entries.iter().min_by_key(|(_, (used, _))| *used).unwrap().0;
                let (_, block) = entries.remove(&oldest).unwrap();
                program.run.release(block, line);
            }
        }
    })
}

/// A cache without a bound, but with a limited number of keys.
pub(super) fn known_keys(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let per_step = dice.within(1, 4);
    // Nearly all keys occur within keys * ln(keys) draws. Take the most keys for which this fits.
    let draws = plan.fill_by * per_step;
    let fits = |keys: &u64| *keys as f64 * (*keys as f64).ln().max(1.0) <= draws as f64;
    let most = (1..=draws).take_while(fits).last().unwrap_or(1);
    let keys = dice.log(1, most);
    let mut known = HashSet::new();
    Box::new(move |program| {
        for _ in 0..per_step {
            let key = program.dice.below(keys);
            if known.insert(key) {
                program.run.alloc(line, unit * (key % 3 + 1));
            }
        }
    })
}

/// A pool that is filled at first, and then replaces random blocks.
pub(super) fn random_pool(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let (size, most) = (dice.log(2, 60), dice.within(1, 5));
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        if held.is_empty() {
            held = (0..size).map(|_| program.run.alloc(line, unit)).collect();
        }
        for _ in 0..program.dice.below(most + 1) {
            let at = program.dice.below(size) as usize;
            let bytes = unit * program.dice.within(1, 3);
            let new = program.run.alloc(line, bytes);
            program.run.release(std::mem::replace(&mut held[at], new), line);
        }
    })
}

/// A pool with random allocations, and frees in proportion to its size.
pub(super) fn pool_of_rate(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let (most, share) = (dice.within(2, 8), dice.within(2, 5));
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        for _ in 0..program.dice.below(most) {
            let bytes = unit * program.dice.within(1, 3);
            held.push(program.run.alloc(line, bytes));
        }
        for _ in 0..held.len() as u64 / share {
            let at = program.dice.below(held.len() as u64) as usize;
            program.run.release(held.swap_remove(at), line);
        }
    })
}

/// A number of blocks that grows or shrinks by one per step, up to a limit.
pub(super) fn bounded_walk(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let most = dice.within(2, 12) as usize;
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        if held.is_empty() || held.len() < most && program.dice.one_in(2) {
            held.push(program.run.alloc(line, unit));
        } else {
            let at = program.dice.below(held.len() as u64) as usize;
            program.run.release(held.swap_remove(at), line);
        }
    })
}

/// A list that is cleared every `k` steps, at least four times.
pub(super) fn sawtooth(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let (every, blocks) = (dice.log(2, frame.steps_over(5).max(2)), dice.within(1, 3));
    let mut held: Vec<u64> = Vec::new();
    Box::new(move |program| {
        if program.step % every == 0 {
            held.drain(..).for_each(|block| program.run.release(block, line));
        }
        held.extend((0..blocks).map(|_| program.run.alloc(line, unit)));
    })
}

/// A list that is cleared at random times, five times or more on average.
pub(super) fn random_sawtooth(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let every = dice.log(1, frame.steps_over(6));
    let (mut held, mut until): (Vec<u64>, u64) = (Vec::new(), every);
    Box::new(move |program| {
        held.push(program.run.alloc(line, unit));
        until = until.saturating_sub(1);
        if until == 0 {
            held.drain(..).for_each(|block| program.run.release(block, line));
            until = program.dice.within(every.div_ceil(2), every + every / 2);
        }
    })
}

/// Checkpoints every few steps: a temporary copy of the weights, and the last few copies are kept.
pub(super) fn checkpoints(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, plan, .. } = *frame;
    let kept = dice.within(1, 5);
    let every = dice.log(1, (plan.fill_by / kept).max(1));
    let tensors = dice.within(2, 10);
    let mut held: VecDeque<Vec<u64>> = VecDeque::new();
    Box::new(move |program| {
        if program.step % every != 0 {
            return;
        }
        let copy: Vec<u64> = (0..tensors).map(|at| program.run.alloc(line, unit * (at + 1))).collect();
        let saved: Vec<u64> = (0..tensors).map(|at| program.run.alloc(line, unit * (at + 1))).collect();
        for block in saved {
            program.run.release(block, line);
        }
        held.push_back(copy);
        if held.len() as u64 > kept {
            held.pop_front().unwrap().into_iter().for_each(|block| program.run.release(block, line));
        }
    })
}

/// Pinned host buffers in a ring, as a data loader uses them.
pub(super) fn pinned_pool(_: &mut Program, frame: &PartFrame, dice: &mut Dice) -> Part {
    let PartFrame { line, unit, .. } = *frame;
    let depth = dice.within(1, 6) as usize;
    let mut held = VecDeque::new();
    Box::new(move |program| {
        if program.dice.one_in(3) {
            return;
        }
        let bytes = unit * program.dice.within(1, 4);
        held.push_back((program.call_driver(EventKind::HOST_ALLOC, bytes, line), bytes));
        if held.len() > depth {
            let oldest = held.pop_front().unwrap();
            program.free_driver(oldest, EventKind::HOST_FREE, line);
        }
    })
}
