//! Generates random training runs, with or without a planted leak.
//!
//! Each run draws its parts ([`parts`]), their sizes and its length from a seed, so that the
//! analysis is tested on cases that its rules were not written for. A cache that is still filling
//! at the end is indistinguishable from a leak, so caches of healthy runs are full after six
//! tenths of the run.
#![allow(dead_code, unreachable_pub)] // Each test uses some of the functions.

pub mod parts;

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{EventKind, NodeId};

use crate::synthetic::{Packed, Synthetic, TORCH};
use parts::PopulationPart;

/// A random number generator (SplitMix64), so that the runs are the same on every machine.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `limit - 1`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// A number from `least` to `most`, both included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// A number from `least` to `most`, evenly distributed on a logarithmic scale.
    pub fn log(&mut self, least: u64, most: u64) -> u64 {
        let share = self.next() as f64 / u64::MAX as f64;
        let value = (least as f64).ln() + share * ((most as f64).ln() - (least as f64).ln());
        (value.exp() as u64).clamp(least, most)
    }

    /// True with a probability of `1 / times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The signs by which the analysis can detect steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepsBy {
    Marks,
    Optimizer,
    /// Nothing but the periodicity of allocations.
    Nothing,
}

/// The training loop of a generated program.
pub struct World {
    pub run: Synthetic,
    pub dice: Dice,
    pub step: u64,
    pub steps: u64,
    /// Frame of `train()`, which the loop calls.
    pub train: NodeId,
    /// Frame of `evaluate()`, which the loop calls.
    pub evaluate: NodeId,
    /// Frame of PyTorch's optimizer, which the loop calls.
    pub adam: NodeId,
    /// Size of each leaked block. It exceeds the requested size if the remainder was too small to
    /// split.
    pub leaked: Vec<u64>,
    steps_by: StepsBy,
    /// Number of lines that [`World::line`] created.
    lines: i32,
}

impl World {
    pub fn new(seed: u64, steps: u64, steps_by: StepsBy) -> Self {
        let mut run = Synthetic::new();
        run.packed = Some(Packed::default());
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let train = run.frame(at, "/work/train.py", "train", 40);
        let evaluate = run.frame(at, "/work/train.py", "evaluate", 60);
        let wrapper = "Optimizer.profile_hook_step.<locals>.wrapper";
        let wrapper = run.frame(at, &format!("{TORCH}optim/optimizer.py"), wrapper, 50);
        let adam = run.frame(wrapper, &format!("{TORCH}optim/adam.py"), "Adam.step", 60);
        Self {
            run,
            dice: Dice::new(seed),
            step: 0,
            steps,
            train,
            evaluate,
            adam,
            leaked: Vec::new(),
            steps_by,
            lines: 0,
        }
    }

    /// Adds a new line of user code.
    pub fn line(&mut self, under: NodeId) -> NodeId {
        self.lines += 1;
        self.run.frame(under, "/work/parts.py", "part", 100 + self.lines)
    }

    /// Runs all parts for all steps, or until the device is full. Calls `at_step_end` after each
    /// step.
    pub fn run_parts(
        &mut self,
        parts: &mut [Box<dyn PopulationPart>],
        mut at_step_end: impl FnMut(&mut Synthetic),
    ) {
        let temporary = self.line(self.train);
        for step in 0..self.steps {
            self.step = step;
            if self.run.is_full() {
                return;
            }
            if self.steps_by == StepsBy::Marks {
                let train = self.train;
                self.run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], train);
            }
            let input = self.run.alloc(temporary, 1 << 16);
            for part in parts.iter_mut() {
                part.step(self);
            }
            self.run.release(input, temporary);
            if self.steps_by == StepsBy::Optimizer {
                let adam = self.adam;
                let temporary = self.run.alloc(adam, 8192);
                self.run.release(temporary, adam);
            }
            at_step_end(&mut self.run);
        }
        self.run.release_all();
    }
}

/// Generates a run of 5 to 150 steps without a leak.
pub fn healthy_run(seed: u64) -> World {
    let mut dice = Dice::new(!seed);
    let steps = dice.log(5, 150);
    let steps_by = match dice.below(8) {
        0..4 => StepsBy::Marks,
        4..7 => StepsBy::Optimizer,
        _ => StepsBy::Nothing,
    };
    let mut world = World::new(seed, steps, steps_by);
    let mut chosen: Vec<Box<dyn PopulationPart>> = Vec::new();
    for _ in 0..dice.within(2, 6) {
        chosen.push(parts::healthy_part(&mut world, &mut dice));
    }
    world.run_parts(&mut chosen, |_| {});
    world
}

/// A leak that a run contains.
#[derive(Clone, Copy, Debug)]
pub struct PlantedLeak {
    /// Requested bytes of each block.
    pub bytes: u64,
    /// Number of blocks per occurrence.
    pub blocks: u64,
    /// Steps from one occurrence to the next.
    pub period: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Step of the first occurrence.
    pub start: u64,
    pub pattern: parts::LeakPattern,
    /// Line of the allocation in `/work/leak.py`.
    pub line: u32,
}

impl PlantedLeak {
    /// Bytes of all blocks of one occurrence, rounded as PyTorch does.
    pub fn bytes_per_occurrence(&self) -> u64 {
        self.bytes.next_multiple_of(512) * self.blocks
    }
}

/// Generates a run with a leak of 512 B to 1 GiB per occurrence, every 1 to 50 steps.
pub fn leaky_run(seed: u64) -> (World, PlantedLeak) {
    let mut dice = Dice::new(seed ^ 0xdead_beef);
    let period = if dice.one_in(2) { 1 } else { dice.log(2, 50) };
    let start = dice.below(4);
    // At least six occurrences, which suffice for any period.
    let repetitions = dice.log(6, 30);
    let steps = (start + 2 + repetitions * period).min(600).max(start + 2 + 6 * period);
    let planted = PlantedLeak {
        bytes: dice.log(1, 1 << 21) * 512,
        blocks: if dice.one_in(3) { dice.within(2, 8) } else { 1 },
        period,
        steps,
        start,
        pattern: parts::LeakPattern::draw(&mut dice),
        line: 7,
    };
    let mut world = World::new(seed, steps, if dice.one_in(2) { StepsBy::Marks } else { StepsBy::Optimizer });
    let mut chosen: Vec<Box<dyn PopulationPart>> = Vec::new();
    for _ in 0..dice.within(1, 3) {
        chosen.push(parts::healthy_part(&mut world, &mut dice));
    }
    chosen.push(parts::leaking_part(&mut world, planted));
    world.run_parts(&mut chosen, |_| {});
    (world, planted)
}

/// Generates a run that fills its device. Returns the first half of it, and the step in which the
/// device was full.
pub fn run_until_full(seed: u64) -> (World, PlantedLeak, u64) {
    let mut dice = Dice::new(seed ^ 0xf00d);
    let period = if dice.one_in(2) { 1 } else { dice.log(2, 8) };
    let (bytes, blocks) = (dice.log(1 << 7, 1 << 21) * 512, dice.within(1, 3));
    // The leak fills at least 25 segments, of 2 MiB or 20 MiB.
    let least_bytes = if bytes > 1 << 20 { 500 << 20 } else { 50 << 20 };
    let occurrences = dice.within(24, 60).max(least_bytes / (bytes * blocks));
    let planted = PlantedLeak {
        bytes,
        blocks,
        period,
        steps: 2 * occurrences * period,
        start: dice.below(4),
        pattern: parts::LeakPattern::draw(&mut dice),
        line: 7,
    };
    let mut world = World::new(seed, planted.steps, StepsBy::Marks);
    let mut chosen =
        vec![parts::healthy_part(&mut world, &mut dice), parts::leaking_part(&mut world, planted)];
    let mut ends = Vec::new();
    world.run_parts(&mut chosen, |run| {
        ends.push(run.events.len());
        // The capacity is what the program uses after ten steps, and so many occurrences of the
        // leak.
        if ends.len() == 10 {
            run.capacity = run.reserved + planted.bytes_per_occurrence() * occurrences;
            run.meta.set_number("device.0.total_bytes", run.capacity);
        }
    });
    assert!(world.run.is_full(), "{planted:?}");
    let full_at = ends.len() as u64;
    world.run.events.truncate(ends[ends.len() / 2]);
    (world, planted, full_at)
}
