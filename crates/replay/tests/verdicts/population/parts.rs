//! Parts of generated programs: typical uses of memory in each step.

use gpumemtrace_format::NodeId;

use super::World;
use gpumemtrace_synthetic::dice::Dice;

/// A part of a program that runs in each step.
pub trait PopulationPart {
    fn step(&mut self, world: &mut World);
}

impl<F: FnMut(&mut World)> PopulationPart for F {
    fn step(&mut self, world: &mut World) {
        self(world);
    }
}

fn part(step: impl FnMut(&mut World) + 'static) -> Box<dyn PopulationPart> {
    Box::new(step)
}

/// The step by which caches must be full.
fn fill_by_step(world: &World) -> u64 {
    (world.steps * 6 / 10).max(1)
}

/// Draws one typical use of memory without a leak.
pub fn healthy_part(world: &mut World, dice: &mut Dice) -> Box<dyn PopulationPart> {
    let under = if dice.one_in(4) { world.evaluate } else { world.train };
    let line = world.line(under);
    let unit = dice.log(1, 1 << 12) * 512;
    match dice.below(16) {
        0 => optimizer_state(world, dice, unit),
        1 => activations(line, dice, unit),
        2 => replaced_output(line, dice, unit),
        3 => bounded_cache(line, dice, unit, fill_by_step(world)),
        4 => dictionary(line, dice, unit, fill_by_step(world)),
        5 => accumulation(line, dice, unit, world.steps),
        6 => longest_batch_buffer(line, dice, unit),
        7 => evaluation(world, dice, unit),
        8 => pool(line, dice, unit),
        9 => rare_lasting_blocks(line, dice, unit, world.steps),
        10 => workspaces(line, dice, world.steps),
        11 => queue(line, dice, unit),
        12 => deque(line, dice, unit, fill_by_step(world)),
        13 => recompiles(line, dice, unit, fill_by_step(world)),
        14 => bounded_walk(line, dice, unit),
        _ => phases(line, dice, unit, world.steps),
    }
}

/// Optimizer state: two blocks per parameter at the first call of the optimizer, which may come
/// late.
fn optimizer_state(world: &mut World, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let (adam, at) = (world.adam, dice.below(3));
    let count = dice.within(2, 20);
    part(move |world| {
        if world.step == at {
            for i in 0..2 * count {
                world.run.alloc(adam, unit * (i / 2 + 1));
            }
        }
    })
}

/// Activations with sizes that follow the length of the batch, freed within the step.
fn activations(line: NodeId, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let (layers, lengths) = (dice.within(1, 6), dice.within(1, 40));
    part(move |world| {
        let length = world.dice.within(1, lengths);
        let blocks: Vec<u64> = (0..layers).map(|i| world.run.alloc(line, unit * length * (i + 1))).collect();
        for block in blocks.into_iter().rev() {
            world.run.release(block, line);
        }
    })
}

/// An output that lives until the next step replaces it.
fn replaced_output(line: NodeId, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let lengths = dice.within(1, 40);
    let mut last = None;
    part(move |world| {
        let length = world.dice.within(1, lengths);
        let new = world.run.alloc(line, unit * length);
        if let Some(old) = last.replace(new) {
            world.run.release(old, line);
        }
    })
}

/// A bounded cache that drops its oldest entry.
fn bounded_cache(line: NodeId, dice: &mut Dice, unit: u64, fill_by: u64) -> Box<dyn PopulationPart> {
    let per_step = dice.within(1, 3);
    let capacity = per_step * dice.within(1, fill_by);
    let varying = dice.within(1, 4);
    let mut held = std::collections::VecDeque::new();
    part(move |world| {
        for _ in 0..per_step {
            let bytes = unit * world.dice.within(1, varying);
            held.push_back(world.run.alloc(line, bytes));
            if held.len() as u64 > capacity {
                world.run.release(held.pop_front().unwrap(), line);
            }
        }
    })
}

/// An unbounded cache with a limited number of keys.
fn dictionary(line: NodeId, dice: &mut Dice, unit: u64, fill_by: u64) -> Box<dyn PopulationPart> {
    // Nearly all keys occur within keys * ln(keys) draws. Take the most keys for which this fits.
    let per_step = dice.within(1, 4);
    let draws = fill_by * per_step;
    let keys =
        (1..=draws).take_while(|k| *k as f64 * (*k as f64).ln().max(1.0) <= draws as f64).last().unwrap_or(1);
    let mut cached = std::collections::HashSet::new();
    part(move |world| {
        for _ in 0..per_step {
            let key = world.dice.below(keys);
            if cached.insert(key) {
                world.run.alloc(line, unit * (key % 3 + 1));
            }
        }
    })
}

/// Gradient accumulation: the graphs of several micro-batches are held and freed together.
fn accumulation(line: NodeId, dice: &mut Dice, unit: u64, steps: u64) -> Box<dyn PopulationPart> {
    let every = dice.within(2, 16).min((steps / 3).max(1));
    let (mut held, blocks) = (Vec::new(), dice.within(1, 4));
    part(move |world| {
        (0..blocks).for_each(|_| held.push(world.run.alloc(line, unit)));
        if world.step % every == every - 1 {
            held.drain(..).for_each(|block| world.run.release(block, line));
        }
    })
}

/// A buffer that is reallocated for the longest batch so far.
fn longest_batch_buffer(line: NodeId, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let (even, lengths) = (dice.one_in(2), dice.within(2, 1000));
    let mut buffer: Option<(u64, u64)> = None;
    part(move |world| {
        let length = if even { world.dice.within(1, lengths) } else { world.dice.log(1, lengths) };
        if buffer.is_none_or(|(longest, _)| length > longest) {
            let new = world.run.alloc(line, unit * length / 8);
            if let Some((_, old)) = buffer.replace((length, new)) {
                world.run.release(old, line);
            }
        }
    })
}

/// Evaluation every few steps: outputs are collected and freed, and the best model so far is kept.
fn evaluation(world: &mut World, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let (outputs, best_line) = (world.line(world.evaluate), world.line(world.evaluate));
    let every = dice.within(2, 30);
    let mut best: Vec<u64> = Vec::new();
    part(move |world| {
        if world.step % every != every - 1 {
            return;
        }
        let collected: Vec<u64> =
            (0..world.dice.within(2, 12)).map(|_| world.run.alloc(outputs, unit)).collect();
        if best.is_empty() || world.dice.one_in(3) {
            best.drain(..).for_each(|block| world.run.release(block, best_line));
            best.extend((1..5).map(|i| world.run.alloc(best_line, unit * i)));
        }
        for block in collected {
            world.run.release(block, outputs);
        }
    })
}

/// A pool with random allocations, and frees in proportion to its size.
fn pool(line: NodeId, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let (allocations, share) = (dice.within(2, 8), dice.within(2, 5));
    let mut held: Vec<u64> = Vec::new();
    part(move |world| {
        for _ in 0..world.dice.below(allocations) {
            let bytes = unit * world.dice.within(1, 3);
            held.push(world.run.alloc(line, bytes));
        }
        for _ in 0..held.len() as u64 / share {
            let at = world.dice.below(held.len() as u64) as usize;
            world.run.release(held.swap_remove(at), line);
        }
    })
}

/// Lasting blocks up to three times: a copy of the weights for an average, a layer that is
/// unfrozen.
fn rare_lasting_blocks(line: NodeId, dice: &mut Dice, unit: u64, steps: u64) -> Box<dyn PopulationPart> {
    let moments: Vec<u64> = (0..dice.within(1, 3)).map(|_| dice.below(steps)).collect();
    let blocks = dice.within(1, 20);
    part(move |world| {
        for _ in moments.iter().filter(|at| **at == world.step) {
            for i in 0..blocks {
                world.run.alloc(line, unit * (i + 1));
            }
        }
    })
}

/// Workspaces of cuBLAS, one for each new stream.
fn workspaces(line: NodeId, dice: &mut Dice, steps: u64) -> Box<dyn PopulationPart> {
    let moments: Vec<u64> = (0..dice.within(1, 3)).map(|_| dice.below((steps / 2).max(1))).collect();
    part(move |world| {
        for _ in moments.iter().filter(|at| **at == world.step) {
            world.run.alloc(line, 8_519_680);
        }
    })
}

/// A prefetch queue of random length.
fn queue(line: NodeId, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let depth = dice.within(1, 8);
    let mut held = std::collections::VecDeque::new();
    part(move |world| {
        let length = world.dice.below(depth + 1);
        while (held.len() as u64) < length {
            held.push_back(world.run.alloc(line, unit));
        }
        while held.len() as u64 > length {
            world.run.release(held.pop_front().unwrap(), line);
        }
    })
}

/// A deque of the latest outputs.
fn deque(line: NodeId, dice: &mut Dice, unit: u64, fill_by: u64) -> Box<dyn PopulationPart> {
    let length = dice.within(1, fill_by);
    let mut held = std::collections::VecDeque::new();
    part(move |world| {
        held.push_back(world.run.alloc(line, unit));
        if held.len() as u64 > length {
            world.run.release(held.pop_front().unwrap(), line);
        }
    })
}

/// A compiler that allocates lasting blocks for each new shape.
fn recompiles(line: NodeId, dice: &mut Dice, unit: u64, fill_by: u64) -> Box<dyn PopulationPart> {
    let shapes = dice.within(1, 8);
    let mut compiled = std::collections::HashSet::new();
    part(move |world| {
        let shape = world.dice.below(shapes);
        if world.step < fill_by && compiled.insert(shape) {
            for i in 0..3 {
                world.run.alloc(line, unit * (i + 1));
            }
        }
    })
}

/// A queue of requests that grows or shrinks by one per step, up to a limit.
fn bounded_walk(line: NodeId, dice: &mut Dice, unit: u64) -> Box<dyn PopulationPart> {
    let most = dice.within(2, 12) as usize;
    let mut held: Vec<u64> = Vec::new();
    part(move |world| {
        if held.is_empty() || held.len() < most && world.dice.one_in(2) {
            held.push(world.run.alloc(line, unit));
        } else {
            let at = world.dice.below(held.len() as u64) as usize;
            world.run.release(held.swap_remove(at), line);
        }
    })
}

/// Blocks that are more numerous in one phase of the run than in the others.
fn phases(line: NodeId, dice: &mut Dice, unit: u64, steps: u64) -> Box<dyn PopulationPart> {
    let (from, length) = (dice.below(steps), dice.within(1, steps));
    let mut held: Vec<u64> = Vec::new();
    part(move |world| {
        held.drain(..).for_each(|block| world.run.release(block, line));
        let blocks = if (from..from + length).contains(&world.step) { 6 } else { 2 };
        (0..blocks).for_each(|_| held.push(world.run.alloc(line, unit)));
    })
}
