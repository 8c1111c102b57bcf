//! Runs by the thousand: what healthy programs do with memory, put together at random, with or without a planted leak.
//!
//! Constraint: a rule that is tried on the cases it was made for proves nothing. Consequence: each run draws its parts, their
//! sizes and its length from a seed. What cannot be told from a leak by anybody is not called healthy: a cache that is still
//! filling when the run ends. Whatever fills has filled by six tenths of the run.
#![allow(dead_code, unreachable_pub)] // Each test uses its own part.

pub mod parts;

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{EventKind, NodeId};

use crate::synthetic::{Packed, Synthetic, TORCH};
use parts::PopulationPart;

/// A small generator: tests must give the same runs everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// Evenly on a logarithmic scale.
    pub fn log(&mut self, least: u64, most: u64) -> u64 {
        let share = self.next() as f64 / u64::MAX as f64;
        let value = (least as f64).ln() + share * ((most as f64).ln() - (least as f64).ln());
        (value.exp() as u64).clamp(least, most)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// How the program's steps can be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepsBy {
    Marks,
    Optimizer,
    /// Only by what recurs, if anything does.
    Nothing,
}

/// The loop of a program: parts live in it.
pub struct World {
    pub run: Synthetic,
    pub dice: Dice,
    pub step: u64,
    pub steps: u64,
    /// `train()`, called at the loop.
    pub train: NodeId,
    /// `evaluate()`, called at the loop.
    pub evaluate: NodeId,
    /// PyTorch's optimizer, called at the loop.
    pub adam: NodeId,
    /// What each block that was left behind holds: PyTorch's allocator gives more than was asked for where a rest is too small.
    pub leaked: Vec<u64>,
    by: StepsBy,
    names: i32,
}

impl World {
    pub fn new(seed: u64, steps: u64, by: StepsBy) -> Self {
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
            by,
            names: 0,
        }
    }

    /// A line of the user's own that nobody else has.
    pub fn line(&mut self, under: NodeId) -> NodeId {
        self.names += 1;
        self.run.frame(under, "/work/parts.py", "part", 100 + self.names)
    }

    /// Runs all parts to the end; `at_step_end` is told how many events there are.
    pub fn go(&mut self, parts: &mut [Box<dyn PopulationPart>], mut at_step_end: impl FnMut(&mut Synthetic)) {
        let temporary = self.line(self.train);
        for step in 0..self.steps {
            self.step = step;
            if self.run.is_full() {
                return;
            }
            if self.by == StepsBy::Marks {
                let train = self.train;
                self.run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], train);
            }
            let input = self.run.alloc(temporary, 1 << 16);
            for part in parts.iter_mut() {
                part.step(self);
            }
            self.run.release(input, temporary);
            if self.by == StepsBy::Optimizer {
                let adam = self.adam;
                let temporary = self.run.alloc(adam, 8192);
                self.run.release(temporary, adam);
            }
            at_step_end(&mut self.run);
        }
        self.run.release_all();
    }
}

/// A healthy run.
pub fn clean(seed: u64) -> World {
    let mut dice = Dice::new(!seed);
    let steps = dice.log(5, 150);
    let by = match dice.below(8) {
        0..4 => StepsBy::Marks,
        4..7 => StepsBy::Optimizer,
        _ => StepsBy::Nothing,
    };
    let mut world = World::new(seed, steps, by);
    let mut chosen: Vec<Box<dyn PopulationPart>> = Vec::new();
    for _ in 0..dice.within(2, 6) {
        chosen.push(parts::healthy(&mut world, &mut dice));
    }
    world.go(&mut chosen, |_| {});
    world
}

/// What was planted.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    pub bytes: u64,
    pub blocks: u64,
    pub period: u64,
    pub steps: u64,
    pub start: u64,
    pub way: parts::Way,
    /// Line of the leaf in `/work/leak.py`.
    pub line: u32,
}

impl Planted {
    /// As PyTorch rounds it, for all blocks of one time.
    pub fn bytes_each_time(&self) -> u64 {
        self.bytes.next_multiple_of(512) * self.blocks
    }
}

/// A run with a leak of 512 B to 1 GiB a step, every 1 to 50 steps.
pub fn leaky(seed: u64) -> (World, Planted) {
    let mut dice = Dice::new(seed ^ 0xdead_beef);
    let period = if dice.one_in(2) { 1 } else { dice.log(2, 50) };
    let start = dice.below(4);
    // From where on the evidence is plain: five repetitions of a leak at each step, six of a rarer one.
    let repetitions = dice.log(6, 30);
    let steps = (start + 2 + repetitions * period).min(600).max(start + 2 + 6 * period);
    let planted = Planted {
        bytes: dice.log(1, 1 << 21) * 512,
        blocks: if dice.one_in(3) { dice.within(2, 8) } else { 1 },
        period,
        steps,
        start,
        way: parts::Way::drawn(&mut dice),
        line: 7,
    };
    let mut world = World::new(seed, steps, if dice.one_in(2) { StepsBy::Marks } else { StepsBy::Optimizer });
    let mut chosen: Vec<Box<dyn PopulationPart>> = Vec::new();
    for _ in 0..dice.within(1, 3) {
        chosen.push(parts::healthy(&mut world, &mut dice));
    }
    chosen.push(parts::leak(&mut world, planted));
    world.go(&mut chosen, |_| {});
    (world, planted)
}

/// A run that goes on until its device is full: what there is of it half way, and the step in which the device was full.
pub fn until_full(seed: u64) -> (World, Planted, u64) {
    let mut dice = Dice::new(seed ^ 0xf00d);
    let period = if dice.one_in(2) { 1 } else { dice.log(2, 8) };
    let (bytes, blocks) = (dice.log(1 << 7, 1 << 21) * 512, dice.within(1, 3));
    // A device holds many segments, of 2 or of 20 MiB.
    let many = if bytes > 1 << 20 { 500 << 20 } else { 50 << 20 };
    let times = dice.within(24, 60).max(many / (bytes * blocks));
    let planted = Planted {
        bytes,
        blocks,
        period,
        steps: 2 * times * period,
        start: dice.below(4),
        way: parts::Way::drawn(&mut dice),
        line: 7,
    };
    let mut world = World::new(seed, planted.steps, StepsBy::Marks);
    let mut chosen = vec![parts::healthy(&mut world, &mut dice), parts::leak(&mut world, planted)];
    let mut ends = Vec::new();
    world.go(&mut chosen, |run| {
        ends.push(run.events.len());
        // What else the program needs, and so many times the leak.
        if ends.len() == 10 {
            run.capacity = run.reserved + planted.bytes_each_time() * times;
            run.meta.set_number("device.0.total_bytes", run.capacity);
        }
    });
    assert!(world.run.is_full(), "{planted:?}");
    let full_at = ends.len() as u64;
    world.run.events.truncate(ends[ends.len() / 2]);
    (world, planted, full_at)
}
